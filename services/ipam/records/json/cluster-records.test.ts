import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { describe, expect, it } from 'vitest';

import type { HistoryEntry } from '../history.js';
import type { RecordValue } from '../view.js';
import { encodeHistoryEntry } from './history.js';
import { parseJson } from './json.js';
import { RecordKeys } from './keys.js';
import { decodeRecord, encodeRecord, serialize, type DecodedRecord } from './registry.js';

const keys = new RecordKeys('/calico');

const CONFIG_KEY = '/calico/ipam/v2/config';
const RESERVATION_KEY = '/calico/resources/v3/projectcalico.org/ipreservations/printers';
const NODE_KEY = '/calico/resources/v3/projectcalico.org/nodes/node-1';

const RESERVATION = `{"kind":"IPReservation","apiVersion":"projectcalico.org/v3","metadata":{"name":"printers","uid":"0b9a",
 "creationTimestamp":"2026-08-22T06:00:00Z","generation":3},
 "spec":{"reservedCIDRs":["10.65.0.7"," 10.65.1.9/24 ","nonsense","fd00::/64","10.0.0.0/33"],"note":"x"}}`;

const NODE = `{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node-1","uid":"77","labels":{"rack":"r1"},
 "creationTimestamp":"2026-08-22T06:00:00Z","annotations":{"a":"b"}},
 "spec":{"bgp":{"ipv4Address":"192.0.2.1/24","ipv6Address":"2001:db8::1/64","ipv4IPIPTunnelAddr":"10.65.0.1",
 "asNumber":64512},"wireguard":{"interfaceIPv4Address":"10.65.0.4","later":true},"ipv4VXLANTunnelAddr":"10.65.0.2",
 "vxlanTunnelMACAddr":"66:00:00:00:00:01","ipv6VXLANTunnelAddr":"fd00::2","vxlanTunnelMACAddrV6":"66:00:00:00:00:02",
 "addresses":[{"address":"192.0.2.1/24","type":"CalicoNodeIP"}],"orchRefs":[{"nodeName":"node-1","orchestrator":"k8s"}]},
 "status":{"podCIDRs":["10.1.0.0/24"]}}`;

function prefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text} ${parsed.fault}`);
  return parsed.prefix;
}

function decode(key: string, text: string): DecodedRecord {
  const name = keys.parse(key);
  if (!name) throw new Error(`${key} names no record`);
  return decodeRecord(key, name, Buffer.from(text));
}

function rewrite(key: string, text: string, change = (record: RecordValue): RecordValue => record): unknown {
  const decoded = decode(key, text);
  return parseJson(Buffer.from(serialize(encodeRecord(change(decoded.record), decoded))).toString());
}

describe('the cluster information', () => {
  const lockKeys = new RecordKeys('/calico', { hasLock: true });
  const key = '/calico/resources/v3/projectcalico.org/clusterinformations/default';

  it.each([
    ['{"spec":{"datastoreReady":false,"clusterType":"typha"}}', true],
    ['{"spec":{"datastoreReady":true}}', false],
    ['{"spec":{"calicoVersion":"v3.32"}}', false],
    ['{"spec":{"datastoreReady":null}}', false],
    ['{}', false],
  ])('%s is a lock: %s', (text, isLocked) => {
    expect(lockKeys.parse(key)).toEqual({ kind: 'clusterInformation' });
    const { record } = decodeRecord(key, { kind: 'clusterInformation' }, Buffer.from(text));
    expect(record).toEqual({ kind: 'clusterInformation', value: { isLocked } });
  });

  it('is not read where only Podwire writes, because it could not be unlocked there', () => {
    expect(keys.parse(key)).toBeUndefined();
    expect(lockKeys.parse(`${key}/x`)).toBeUndefined();
  });
});

describe('the IPAM configuration', () => {
  it('reads an omitted field as its zero value', () => {
    expect(decode(CONFIG_KEY, '{}').record).toEqual({
      kind: 'config',
      value: { strictAffinity: false, autoAllocateBlocks: false, maxBlocksPerHostCount: 0, cooldownSeconds: 0 },
    });
  });

  it.each([
    ['{"strict_affinity":1}', 'strict_affinity is 1; expected true or false'],
    ['{"maxBlocksPerHost":1000001}', 'maxBlocksPerHost is 1000001; expected an integer from 0 to 1000000'],
    ['{"ipCooldownSeconds":1.5}', 'ipCooldownSeconds is 1.5; expected an integer'],
  ])('refuses %s', (text, reason) => {
    expect(() => decode(CONFIG_KEY, text)).toThrow(reason);
  });

  it('keeps unknown fields', () => {
    const text = '{"auto_allocate_blocks":true,"kubeVirtVMAddressPersistence":"Disabled","ipCooldownSeconds":-1}';
    expect(rewrite(CONFIG_KEY, text)).toEqual({
      strict_affinity: false,
      auto_allocate_blocks: true,
      maxBlocksPerHost: 0,
      kubeVirtVMAddressPersistence: 'Disabled',
      ipCooldownSeconds: -1,
    });
  });
});

describe('a reservation', () => {
  it('accepts bare addresses, blanks and host bits, and skips malformed entries', () => {
    expect(decode(RESERVATION_KEY, RESERVATION).record).toEqual({
      kind: 'reservation',
      value: {
        name: 'printers',
        uid: '0b9a',
        createTimeMs: Date.parse('2026-08-22T06:00:00Z'),
        prefixes: [prefix('10.65.0.7/32'), prefix('10.65.1.0/24'), prefix('fd00::/64')],
      },
    });
  });

  it('keeps its text when the addresses are unchanged', () => {
    expect(rewrite(RESERVATION_KEY, RESERVATION)).toEqual(JSON.parse(RESERVATION));
  });

  it('writes new addresses', () => {
    const changed = rewrite(RESERVATION_KEY, RESERVATION, (record) => {
      if (record.kind !== 'reservation') throw new Error(record.kind);
      return {
        kind: 'reservation',
        value: { ...record.value, prefixes: [prefix('10.0.0.1/32'), prefix('10.2.0.0/16')] },
      };
    });
    expect(changed).toMatchObject({ spec: { reservedCIDRs: ['10.0.0.1', '10.2.0.0/16'], note: 'x' } });
  });
});

describe('a node', () => {
  it('reads addresses, labels and tunnels', () => {
    const { record } = decode(NODE_KEY, NODE);
    expect(record).toEqual({
      kind: 'node',
      value: {
        name: 'node-1',
        uid: '77',
        createTimeMs: Date.parse('2026-08-22T06:00:00Z'),
        deletionTimeMs: undefined,
        labels: { rack: 'r1' },
        registeredLabels: {},
        ipv4: { address: prefix('192.0.2.1/32'), subnetBits: 24 },
        ipv6: { address: prefix('2001:db8::1/128'), subnetBits: 64 },
        tunnels: new Map([
          ['ipipTunnelAddress', { address: prefix('10.65.0.1/32') }],
          ['vxlanTunnelAddress', { address: prefix('10.65.0.2/32') }],
          ['vxlanV6TunnelAddress', { address: prefix('fd00::2/128') }],
        ]),
        tunnelMacs: new Map([
          ['vxlanTunnelAddress', '66:00:00:00:00:01'],
          ['vxlanV6TunnelAddress', '66:00:00:00:00:02'],
        ]),
        interfaces: [],
        asNumber: 64512,
      },
    });
  });

  it('is rewritten with every unknown field', () => {
    expect(rewrite(NODE_KEY, NODE)).toEqual(JSON.parse(NODE));
  });

  it('loses the fields of a removed tunnel', () => {
    const changed = rewrite(NODE_KEY, NODE, (record) => {
      if (record.kind !== 'node') throw new Error(record.kind);
      return {
        kind: 'node',
        value: { ...record.value, tunnels: new Map(), tunnelMacs: new Map(), ipv6: undefined, labels: {} },
      };
    });
    expect(changed).toEqual({
      ...JSON.parse(NODE),
      metadata: { name: 'node-1', uid: '77', creationTimestamp: '2026-08-22T06:00:00Z', annotations: { a: 'b' } },
      spec: {
        bgp: { ipv4Address: '192.0.2.1/24', asNumber: 64512 },
        wireguard: { interfaceIPv4Address: '10.65.0.4', later: true },
        addresses: [{ address: '192.0.2.1/24', type: 'CalicoNodeIP' }],
        orchRefs: [{ nodeName: 'node-1', orchestrator: 'k8s' }],
      },
    });
  });

  it('reads an address without a subnet, and keeps it', () => {
    const text = '{"metadata":{"name":"n"},"spec":{"bgp":{"ipv4Address":"192.0.2.1"}}}';
    expect(decode(NODE_KEY, text).record).toMatchObject({ value: { ipv4: { subnetBits: 32 } } });
    expect(rewrite(NODE_KEY, text)).toMatchObject({ spec: { bgp: { ipv4Address: '192.0.2.1' } } });
  });

  it.each([
    ['{"spec":{"bgp":{"ipv4Address":"fd00::1/64"}}}', 'spec.bgp.ipv4Address is "fd00::1/64"'],
    ['{"spec":{"bgp":{"ipv4Address":"10.0.0.1/33"}}}', 'expected an IPv4 address with the length of its subnet'],
    ['{"spec":{"ipv4VXLANTunnelAddr":"x"}}', 'spec.ipv4VXLANTunnelAddr is "x"; expected an address'],
    ['{"spec":{"ipv4VXLANTunnelAddr":"10.0.0.1","vxlanTunnelMACAddr":"x"}}', 'spec.vxlanTunnelMACAddr is "x"'],
  ])('refuses %s', (text, reason) => {
    expect(() => decode(NODE_KEY, text)).toThrow(reason);
  });
});

describe('the history', () => {
  const entry: HistoryEntry = {
    address: prefix('10.65.79.2/32'),
    block: prefix('10.65.79.0/26'),
    handleId: 'net.c1',
    owner: { node: 'n1', pod: 'web-0' },
    allocatedAtMs: Date.parse('2026-08-22T06:00:00.250Z'),
    releasedAtMs: Date.parse('2026-08-22T07:00:00.500Z'),
    sequenceNumber: 1755842000123456790n,
  };

  it('is outside the prefix that a start reads, by day and address', () => {
    const key = keys.historyEntry(entry);
    expect(key).toBe('/podwire/calico/history/00020687/10.65.79.2/1755842000123456790');
    expect(key.startsWith(keys.root)).toBe(false);
    expect(key.startsWith(keys.history)).toBe(true);
  });

  it('has the holder, begin and end', () => {
    expect(encodeHistoryEntry(entry)).toEqual({
      address: '10.65.79.2',
      block: '10.65.79.0/26',
      handleID: 'net.c1',
      attributes: { node: 'n1', pod: 'web-0' },
      allocatedAt: '2026-08-22T06:00:00.250Z',
      releasedAt: '2026-08-22T07:00:00.500Z',
      sequenceNumber: '1755842000123456790',
    });
  });
});

describe("a node's session", () => {
  const KEY = '/calico/podwire/nodes/node-1';
  const SESSION = `{"machineId":"m1","bootId":"b1","displaced":[{"machineId":"m0","bootId":"b0"}],"generation":3,"address":"192.0.2.1","revision":41,"heardAtMs":1787380405100,
   "leases":[{"address":"10.65.0.9","sequenceNumber":1755842000123456791}],"reportedAtMs":1787380405000,"epoch":"e1",
   "conflicts":[{"address":"fd00::7","attachment":"net/c1/eth0","holder":"net.c2 on node-2"}],"later":{"x":1}}`;

  it('is read, and written with every unknown field', () => {
    expect(decode(KEY, SESSION).record).toEqual({
      kind: 'nodeSession',
      value: {
        name: 'node-1',
        machineId: 'm1',
        bootId: 'b1',
        displaced: [{ machineId: 'm0', bootId: 'b0' }],
        generation: 3,
        address: '192.0.2.1',
        revision: 41,
        heardAtMs: 1787380405100,
        leases: [{ address: { family: 4, value: 0x0a410009n }, sequenceNumber: 1755842000123456791n }],
        reportedAtMs: 1787380405000,
        epoch: 'e1',
        conflicts: [
          {
            address: { family: 6, value: 0xfd000000000000000000000000000007n },
            attachment: 'net/c1/eth0',
            holder: 'net.c2 on node-2',
          },
        ],
      },
    });
    expect(rewrite(KEY, SESSION)).toEqual(parseJson(SESSION));
  });

  it.each([
    ['{"bootId":"b","generation":1,"revision":1,"heardAtMs":1}', 'machineId is missing'],
    [SESSION.replace('10.65.0.9', 'x'), 'leases[0].address is "x"; expected an address'],
  ])('is refused as %s', (text, reason) => expect(() => decode(KEY, text)).toThrow(reason));
});

describe('the store epoch', () => {
  it.each(['{"id":"e1","importId":"i","phase":"first","later":1}', '{"id":"e2","importId":"","phase":"waiting"}'])(
    '%s is read and written',
    (text) => expect(rewrite('/calico/podwire/epoch', text)).toEqual(JSON.parse(text)),
  );
});

import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { takeAddress } from '../../testing/records.js';
import { replaceAttributes, type Block } from '../block.js';
import { endpointKey, type Endpoint } from '../endpoint.js';
import { unavailableReason, type Pool } from '../pool.js';
import type { RecordValue } from '../view.js';
import { formatJson, parseJson } from './json.js';
import { RecordKeys } from './keys.js';
import { decodeRecord, encodeRecord, serialize, type DecodedRecord } from './registry.js';

const keys = new RecordKeys('/calico');

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

/** The stored text of a record after it was read and written back without a change. */
function rewrite(key: string, text: string): string {
  const decoded = decode(key, text);
  return Buffer.from(serialize(encodeRecord(decoded.record, decoded))).toString();
}

const canonical = (text: string): unknown => parseJson(text);

const BLOCK_KEY = '/calico/ipam/v2/assignment/ipv4/block/10.65.79.0-29';
const HANDLE_KEY = '/calico/ipam/v2/handle/k8s-pod-network.9f2c';
const AFFINITY_KEY = '/calico/ipam/v2/host/node-1/ipv6/block/fd80:24e2:f998:72d6::-122';
const POOL_KEY = '/calico/resources/v3/projectcalico.org/ippools/default';

/** A block as Calico writes it, with fields of later releases at every level. */
const BLOCK = `{"cidr":"10.65.79.0/29","affinity":"host:node-1","affinity_claim_time":"2026-08-22T06:33:20Z",
 "allocations":[0,null,1,2,null,null,null,null],"unallocated":[1,4,5,6,7],
 "attributes":[
   {"handle_id":"ipip-tunnel-addr-node-1","secondary":{"node":"node-1","type":"ipipTunnelAddress"}},
   {"handle_id":"k8s-pod-network.9f2c","secondary":{"namespace":"default","node":"node-1","pod":"web-0"},
    "alternateOwnerAttrs":{"vmi-name":"vm"},"future":9007199254740993},
   {"releasedAt":"2026-08-22T06:34:00Z"}],
 "sequenceNumber":1755842000123456791,
 "sequenceNumberForAllocation":{"0":1755842000123456789,"2":1755842000123456790,"3":1755842000123456790},
 "deleted":false,"later":{"big":[18446744073709551615,-9223372036854775808]}}`;

const POOL = `{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"default","uid":"0b9a","generation":2,
 "creationTimestamp":"2026-08-22T06:00:00Z"},"spec":{"cidr":"10.65.0.0/16","vxlanMode":"CrossSubnet","ipipMode":"Never",
 "natOutgoing":true,"blockSize":29,"nodeSelector":"all()","allowedUses":["Workload","Tunnel"],"assignmentMode":"Automatic"}}`;

const ENDPOINT: Endpoint = {
  attachment: { network: 'k8s-pod-network', containerId: '9f2c', interfaceName: 'eth0' },
  uid: '6d1f5a2e-0c47-8f3b-9d55-3a7c0b9e2d10',
  createTimeMs: Date.parse('2026-08-22T06:33:25Z'),
  nodeName: 'node-1',
  pod: { namespace: 'default', name: 'web-0', uid: 'c0ffee' },
  addresses: [
    {
      address: prefix('10.65.79.2/32'),
      block: prefix('10.65.79.0/29'),
      poolName: 'default',
      sequenceNumber: 1755842000123456790n,
    },
  ],
  mac: '02:00:00:00:00:01',
  hostInterfaceName: 'podw0123456789a',
  netns: { bootId: 'e0d978de-042c-4128-a37c-56b96fc30000', inode: 4026532000n },
};

describe('records as Calico stores them', () => {
  it('reads a block', () => {
    const { record } = decode(BLOCK_KEY, BLOCK);
    expect(record).toEqual({
      kind: 'block',
      value: {
        prefix: prefix('10.65.79.0/29'),
        owner: { kind: 'host', name: 'node-1' },
        claimTimeMs: Date.UTC(2026, 7, 22, 6, 33, 20),
        allocations: [0, null, 1, 2, null, null, null, null],
        unallocated: [1, 4, 5, 6, 7],
        attributes: [
          {
            handleId: 'ipip-tunnel-addr-node-1',
            owner: { node: 'node-1', type: 'ipipTunnelAddress' },
            releasedAtMs: undefined,
          },
          {
            handleId: 'k8s-pod-network.9f2c',
            owner: { namespace: 'default', node: 'node-1', pod: 'web-0' },
            alternateOwner: { 'vmi-name': 'vm' },
            releasedAtMs: undefined,
          },
          { handleId: undefined, owner: {}, releasedAtMs: Date.UTC(2026, 7, 22, 6, 34) },
        ],
        sequenceNumber: 1755842000123456791n,
        sequenceNumbers: [
          1755842000123456789n,
          null,
          1755842000123456790n,
          1755842000123456790n,
          ...Array.from({ length: 4 }, () => null),
        ],
      },
    });
  });

  it.each([
    ['block', BLOCK_KEY, BLOCK],
    ['handle', HANDLE_KEY, '{"block":{"10.65.79.0/26":1,"fd80::/122":2},"deleted":false,"later":1755842000123456789}'],
    ['affinity', AFFINITY_KEY, '{"state":"pendingDeletion","deleted":false,"later":{"x":[1,null]}}'],
    ['pool', POOL_KEY, POOL],
  ])('rewrites a %s with every unknown field', (_, key, text) => {
    expect(canonical(rewrite(key, text))).toEqual(canonical(text));
  });

  it('keeps the unknown fields of an attribute whose index moves', () => {
    const decoded = decode(BLOCK_KEY, BLOCK);
    if (decoded.record.kind !== 'block') throw new Error('not a block');
    const { value } = decoded.record;
    const moved: Block = {
      ...value,
      allocations: [null, null, 0, null, null, null, null, null],
      unallocated: [1, 4, 5, 6, 7, 0, 3],
      attributes: value.attributes.slice(1, 2),
      sequenceNumbers: value.sequenceNumbers.with(0, null).with(3, null),
    };
    expect(encodeRecord({ kind: 'block', value: moved }, decoded).attributes).toEqual([
      expect.objectContaining({ alternateOwnerAttrs: { 'vmi-name': 'vm' }, future: 9007199254740993n }),
    ]);
  });

  it('keeps the unknown fields of a changed allocation, and gives them to no other', () => {
    const decoded = decode(BLOCK_KEY, BLOCK);
    if (decoded.record.kind !== 'block') throw new Error('not a block');
    const { value } = decoded.record;
    const [, vm] = value.attributes;
    expect(vm?.alternateOwner).toEqual({ 'vmi-name': 'vm' });
    const moved = replaceAttributes(value, 2, { ...vm!, owner: { pod: 'web-1' }, alternateOwner: vm!.owner });
    const next = takeAddress(moved, { handleId: vm!.handleId, owner: { pod: 'x' }, releasedAtMs: undefined })!;
    const { attributes } = encodeRecord({ kind: 'block', value: next.block }, decoded);
    expect(attributes).toEqual([
      expect.objectContaining({ handle_id: 'ipip-tunnel-addr-node-1' }),
      { releasedAt: '2026-08-22T06:34:00Z' },
      {
        handle_id: 'k8s-pod-network.9f2c',
        secondary: { pod: 'web-1' },
        alternateOwnerAttrs: { namespace: 'default', node: 'node-1', pod: 'web-0' },
        future: 9007199254740993n,
      },
      { handle_id: 'k8s-pod-network.9f2c', secondary: { pod: 'x' } },
    ]);
    // Entries that differ only in the second owner stay separate.
    const apart = replaceAttributes(value, 2, { ...vm!, alternateOwner: undefined });
    expect(encodeRecord({ kind: 'block', value: apart }, decoded).attributes).toContainEqual({
      handle_id: 'k8s-pod-network.9f2c',
      secondary: { namespace: 'default', node: 'node-1', pod: 'web-0' },
      future: 9007199254740993n,
    });
  });

  it('drops the claim time with the owner, and the owner field of old releases', () => {
    const old = BLOCK.replace('"affinity":"host:node-1"', '"affinity":null,"hostAffinity":"node-2"');
    const decoded = decode(BLOCK_KEY, old);
    if (decoded.record.kind !== 'block') throw new Error('not a block');
    expect(decoded.record.value.owner).toEqual({ kind: 'host', name: 'node-2' });
    const given: Block = { ...decoded.record.value, owner: undefined, claimTimeMs: undefined };
    const raw = encodeRecord({ kind: 'block', value: given }, decoded);
    expect(raw.affinity).toBeNull();
    expect(Object.keys(raw)).not.toContain('hostAffinity');
    expect(Object.keys(raw)).not.toContain('affinity_claim_time');
  });

  it.each([
    ['', 'confirmed'],
    ['{}', 'confirmed'],
    ['{"state":""}', 'confirmed'],
    ['{"state":"pending","deleted":false}', 'pending'],
  ])('reads the affinity %j as %s', (text, state) => {
    expect(decode(AFFINITY_KEY, text).record.value).toMatchObject({
      state,
      owner: { kind: 'host', name: 'node-1' },
      block: prefix('fd80:24e2:f998:72d6::/122'),
    });
  });

  it('gives a pool Calico’s defaults', () => {
    const { record } = decode(POOL_KEY, '{"metadata":{"name":"default"},"spec":{"cidr":"fd80::/48"}}');
    expect(record.value).toEqual({
      name: 'default',
      uid: '',
      prefix: prefix('fd80::/48'),
      labels: {},
      blockSizeBits: 122,
      disabled: false,
      deletionTimeMs: undefined,
      notAllocatable: undefined,
      createTimeMs: 0,
      ipipMode: 'Never',
      vxlanMode: 'Never',
      natOutgoing: false,
      disableBgpExport: false,
      nodeSelector: 'all()',
      namespaceSelector: '',
      allowedUses: ['Workload', 'Tunnel'],
      assignmentMode: 'Automatic',
    });
  });

  it.each([
    ['disabled', POOL.replace('"spec":{', '"spec":{"disabled":true,')],
    ['being deleted', POOL.replace('"metadata":{', '"metadata":{"deletionTimestamp":"2026-08-22T06:00:00Z",')],
    ['not allocatable', POOL.replace(/}$/, ',"status":{"conditions":[{"type":"Allocatable","status":"False"}]}}')],
  ])('takes a pool that is %s out of use, and stores it unchanged', (_, text) => {
    const { record } = decode(POOL_KEY, text);
    expect(record.kind === 'pool' && unavailableReason(record.value)).toMatch(
      /^(disabled|being deleted|not allocatable: .*)$/,
    );
    expect(canonical(rewrite(POOL_KEY, text))).toEqual(canonical(text));
  });

  const condition = (status: string, reason: string) =>
    POOL.replace(
      /}$/,
      `,"status":{"conditions":[{"type":"Other"},{"type":"Allocatable","status":"${status}","reason":"${reason}"}]}}`,
    );

  it.each([
    ['False', 'CIDROverlap', {}, 2],
    ['False', 'CIDROverlap', { notAllocatable: undefined }, 1],
    ['False', 'CIDROverlap', { notAllocatable: undefined, disabled: true }, 1],
    ['False', 'PoolDisabled', { disabled: true }, 2],
    ['False', 'PoolDisabled', { disabled: false }, 1],
    ['False', 'Terminating', { deletionTimeMs: 0 }, 2],
    ['True', 'OK', { disabled: false }, 2],
    ['True', 'OK', { disabled: true }, 1],
  ])('keeps a condition %s for %s of a pool made %o: %i left', (status, reason, change, left) => {
    const text = condition(status, reason);
    const decoded = decode(POOL_KEY, text);
    if (decoded.record.kind !== 'pool') throw new Error('not a pool');
    const raw = encodeRecord({ kind: 'pool', value: { ...decoded.record.value, ...change } }, decoded);
    expect(raw).toMatchObject({ status: { conditions: { length: left } } });
  });

  it('removes a missing selector from a stored pool, and keeps labels and annotations', () => {
    const metadata = '"metadata":{"labels":{"a":"b"},"annotations":{"c":"d"},';
    const text = POOL.replace('"metadata":{', metadata).replace('"spec":{', '"spec":{"namespaceSelector":"has(a)",');
    const decoded = decode(POOL_KEY, text);
    if (decoded.record.kind !== 'pool') throw new Error('not a pool');
    const value = { ...decoded.record.value, namespaceSelector: '', natOutgoing: false };
    const { metadata: written, spec } = encodeRecord({ kind: 'pool', value }, decoded);
    expect(written).toMatchObject({ labels: { a: 'b' }, annotations: { c: 'd' } });
    expect(spec).not.toHaveProperty('namespaceSelector');
    expect(spec).toHaveProperty('natOutgoing', false);
  });

  it('writes a new pool as a v3 resource', () => {
    const decoded = decode(POOL_KEY, POOL);
    if (decoded.record.kind !== 'pool') throw new Error('not a pool');
    const pool: Pool = decoded.record.value;
    expect(encodeRecord({ kind: 'pool', value: pool }, undefined)).toMatchObject({
      kind: 'IPPool',
      apiVersion: 'projectcalico.org/v3',
      metadata: { name: 'default', uid: '0b9a', creationTimestamp: '2026-08-22T06:00:00Z' },
      spec: { cidr: '10.65.0.0/16', blockSize: 29, ipipMode: 'Never', vxlanMode: 'CrossSubnet', natOutgoing: true },
    });
  });
});

describe('workload endpoints', () => {
  const record: RecordValue = { kind: 'endpoint', key: endpointKey(ENDPOINT), value: ENDPOINT };
  const key = keys.of(record);

  it('are named as Calico names them', () => {
    expect(key).toBe('/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--1-k8s-web--0-eth0');
    expect(endpointKey({ ...ENDPOINT, pod: undefined })).toEqual({
      namespace: 'default',
      name: 'node--1-cni-9f2c-eth0',
    });
  });

  it('are read as they were written', () => {
    for (const value of [ENDPOINT, { ...ENDPOINT, pod: undefined, netns: undefined, addresses: [] }]) {
      const own: RecordValue = { kind: 'endpoint', key: endpointKey(value), value };
      const text = Buffer.from(serialize(encodeRecord(own, undefined))).toString();
      const { record: read } = decode(keys.of(own), text);
      expect(read.kind === 'endpoint' && { kind: read.kind, key: read.key, value: read.value }).toEqual(own);
    }
  });

  it('are v3 resources with Calico’s labels and fields', () => {
    expect(encodeRecord(record, undefined)).toMatchObject({
      kind: 'WorkloadEndpoint',
      apiVersion: 'projectcalico.org/v3',
      metadata: {
        name: 'node--1-k8s-web--0-eth0',
        namespace: 'default',
        uid: ENDPOINT.uid,
        creationTimestamp: '2026-08-22T06:33:25Z',
        labels: { 'projectcalico.org/namespace': 'default', 'projectcalico.org/orchestrator': 'k8s' },
        annotations: { 'podwire.dev/network': 'k8s-pod-network', 'podwire.dev/netns-inode': '4026532000' },
      },
      spec: { node: 'node-1', pod: 'web-0', containerID: '9f2c', endpoint: 'eth0', ipNetworks: ['10.65.79.2/32'] },
    });
  });

  it('of Calico’s own plugin are not interpreted, but keep their fields when they are taken over', () => {
    const theirs = '{"metadata":{"uid":"1","labels":{"app":"web"}},"spec":{"node":"node-1","profiles":["p"]}}';
    const decoded = decode(key, theirs);
    expect(decoded.record.kind).toBe('foreignEndpoint');
    expect(encodeRecord(record, decoded)).toMatchObject({
      metadata: { uid: ENDPOINT.uid, creationTimestamp: '2026-08-22T06:33:25Z', labels: { app: 'web' } },
      spec: { profiles: ['p'], pod: 'web-0' },
    });
  });

  it('whose first address has no known time have neither UID nor creation time, and get none', () => {
    const before = encodeRecord({ ...record, value: { ...ENDPOINT, uid: '', createTimeMs: undefined } }, undefined);
    expect(before).toMatchObject({ metadata: { creationTimestamp: null } });
    expect(before).not.toHaveProperty('metadata.uid');
    const decoded = decode(key, formatJson(before));
    expect(decoded.record).toMatchObject({ value: { uid: '', createTimeMs: undefined } });
    expect(encodeRecord(record, decoded)).toMatchObject({ metadata: { uid: ENDPOINT.uid } });
  });

  it('lose outdated annotations', () => {
    const before = { record, raw: encodeRecord(record, undefined) };
    const value: Endpoint = { ...ENDPOINT, netns: undefined };
    const text = formatJson(encodeRecord({ ...record, value }, before));
    expect(text).not.toContain('podwire.dev/netns-inode');
  });
});

describe('records that cannot be read', () => {
  it.each([
    [BLOCK_KEY, 'not json', 'it is not JSON'],
    [BLOCK_KEY, '[]', 'it is not a JSON object'],
    [BLOCK_KEY, BLOCK.replace('10.65.79.0/29', '10.65.79.8/29'), 'cidr differs from the key'],
    [BLOCK_KEY, BLOCK.replace('[0,null,', '[0,'), 'allocations has 7 entries'],
    [BLOCK_KEY, BLOCK.replace('[0,null,1,2', '[0,null,1,3'), 'allocations[3] is 3'],
    [BLOCK_KEY, BLOCK.replace('[1,4,5,6,7]', '[1,4,5,6,6]'), 'lists an address twice'],
    [BLOCK_KEY, BLOCK.replace('[1,4,5,6,7]', '[1,4,5,6,7,0]'), 'address 0 is both allocated and free'],
    [BLOCK_KEY, BLOCK.replace('[1,4,5,6,7]', '[1,4,5,6]'), 'address 7 is neither allocated nor free'],
    [BLOCK_KEY, BLOCK.replace('host:node-1', 'node-1'), 'affinity is "node-1"'],
    [BLOCK_KEY, BLOCK.replace('{"0":', '{"8":'), 'sequenceNumberForAllocation.8 is not an address'],
    [BLOCK_KEY, BLOCK.replace('1755842000123456791', '-1'), 'sequenceNumber is -1'],
    [HANDLE_KEY, '{"block":{"10.0.0.0/26":-1}}', 'block.10.0.0.0/26 is -1'],
    [AFFINITY_KEY, '{"state":"maybe"}', 'state is "maybe"'],
    [POOL_KEY, POOL.replace('10.65.0.0/16', '10.65.0.1/16'), 'spec.cidr is "10.65.0.1/16"'],
    [POOL_KEY, POOL.replace('"blockSize":29', '"blockSize":8'), 'spec.blockSize is 8'],
  ])('%s: %.20s… fails with key and reason', (key, text, reason) => {
    const failure = expect.objectContaining({ code: 'STORE_CORRUPT', message: expect.stringContaining(reason) });
    expect(() => decode(key, text)).toThrow(failure);
    expect(() => decode(key, text)).toThrow(key);
  });
});

describe('keys', () => {
  const cidr = fc.oneof(
    fc.tuple(fc.ipV4(), fc.integer({ min: 20, max: 32 })).map(([, length]) => prefix(`10.0.0.0/${length}`)),
    fc.integer({ min: 116, max: 128 }).map((length) => prefix(`fd80:24e2:f998:72d6::/${length}`)),
  );
  const name = fc.stringMatching(/^[a-z0-9][a-z0-9.-]{0,20}$/);

  it('lead back to what they name', () => {
    fc.assert(
      fc.property(cidr, name, name, (block, first, second) => {
        const owner = { kind: 'host', name: first } as const;
        expect(keys.parse(keys.block(block))).toEqual({ kind: 'block', prefix: block });
        expect(keys.parse(keys.affinity(owner, block))).toEqual({ kind: 'affinity', owner, block });
        expect(keys.parse(keys.handle(first))).toEqual({ kind: 'handle', id: first });
        expect(keys.parse(keys.pool(first))).toEqual({ kind: 'pool', name: first });
        expect(keys.parse(keys.session(first))).toEqual({ kind: 'nodeSession', name: first });
        const key = { namespace: first, name: second };
        expect(keys.parse(keys.endpoint(key))).toEqual({ kind: 'endpoint', key });
      }),
      { seed: 20261121 },
    );
  });

  it.each([
    '/other/ipam/v2/handle/a',
    '/calico/ipam/v2/config/x',
    '/calico/ipam/v2/handle/a/b',
    '/calico/ipam/v2/host/n',
    '/calico/podwire/nodes/',
    '/calico/podwire/barrier',
  ])('%s does not name a known record', (key) => expect(keys.parse(key)).toBeUndefined());
});

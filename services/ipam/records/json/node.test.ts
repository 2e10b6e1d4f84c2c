import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import type { Node } from '../node.js';
import { parseJson, type Json } from './json.js';
import { RecordKeys } from './keys.js';
import { decodeRecord, encodeRecord, serialize } from './registry.js';

const keys = new RecordKeys('/calico');
const KEY = keys.node('node-1');

interface Stored {
  readonly metadata?: Json;
  readonly spec?: Json;
}

function decode(stored: Stored) {
  const decoded = decodeRecord(KEY, { kind: 'node', name: 'node-1' }, Buffer.from(JSON.stringify(stored)));
  const { record } = decoded;
  if (record.kind !== 'node') throw new Error('is no node');
  return { decoded, node: record.value };
}

function rewrite(stored: Stored, change: Partial<Node> = {}): unknown {
  const { decoded, node } = decode(stored);
  const encoded = encodeRecord({ kind: 'node', value: { ...node, ...change } }, decoded);
  return parseJson(Buffer.from(serialize(encoded)).toString());
}

function prefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text} ${parsed.fault}`);
  return parsed.prefix;
}

describe('the labels that the node registered', () => {
  const metadata = { annotations: { a: 'b', 'podwire.dev/registered-labels': '{"rack":"r1","arch":"arm"}' } };

  test('are read from an annotation', () => {
    expect(decode({ metadata }).node.registeredLabels).toEqual({ rack: 'r1', arch: 'arm' });
    expect(decode({}).node.registeredLabels).toEqual({});
  });

  test('stay in the order in which they were written', () => {
    expect(rewrite({ metadata }, { registeredLabels: { arch: 'arm', rack: 'r1' } })).toMatchObject({ metadata });
  });

  test.each([
    [{ rack: 'r2' }, { a: 'b', 'podwire.dev/registered-labels': '{"rack":"r2"}' }],
    [{}, { a: 'b' }],
  ])('become %j', (registeredLabels, annotations) => {
    expect(rewrite({ metadata }, { registeredLabels })).toMatchObject({ metadata: { annotations } });
  });

  test.each(['{', '[]', '{"a":1}'])('cannot be %s', (text) => {
    const annotations = { 'podwire.dev/registered-labels': text };
    expect(() => decode({ metadata: { annotations } })).toThrow('registered-labels');
  });
});

describe('the Kubernetes cluster of a node', () => {
  const metadata = { annotations: { a: 'b', 'podwire.dev/kubernetes-cluster': 'uid-1' } };

  test('is kept in an annotation', () => {
    expect(decode({ metadata }).node.kubernetesCluster).toBe('uid-1');
    expect(decode({}).node.kubernetesCluster).toBeUndefined();
    expect(rewrite({ metadata })).toMatchObject({ metadata });
    expect(rewrite({}, { kubernetesCluster: 'uid-2' })).toMatchObject({
      metadata: { annotations: { 'podwire.dev/kubernetes-cluster': 'uid-2' } },
    });
  });
});

describe('the number of recalls of leases', () => {
  const metadata = { annotations: { a: 'b', 'podwire.dev/lease-recalls': '7' } };

  test('is kept in an annotation', () => {
    expect(decode({ metadata }).node.leaseRecallCount).toBe(7);
    expect(decode({}).node.leaseRecallCount).toBeUndefined();
    expect(rewrite({ metadata })).toMatchObject({ metadata });
    expect(rewrite({ metadata }, { leaseRecallCount: 8 })).toMatchObject({
      metadata: { annotations: { a: 'b', 'podwire.dev/lease-recalls': '8' } },
    });
  });

  test.each(['-1', '1e3', 'x', ''])('begins again at %j', (text) => {
    const annotations = { 'podwire.dev/lease-recalls': text };
    expect(decode({ metadata: { annotations } }).node.leaseRecallCount).toBeUndefined();
  });
});

describe('the AS number', () => {
  test.each([
    [64512, 64512],
    ['64512', 64512],
    ['1.10', 65546],
    [4294967295, 4294967295],
    [undefined, undefined],
  ])('%j is %j, and keeps its notation', (asNumber, expected) => {
    const bgp = asNumber === undefined ? {} : { asNumber };
    expect(decode({ spec: { bgp } }).node.asNumber).toBe(expected);
    expect(rewrite({ spec: { bgp: { ...bgp, more: 1 } } })).toMatchObject({ spec: { bgp: { ...bgp, more: 1 } } });
  });

  test.each([-1, 1.5, 4294967296, '1.65536', 'x', '1.2.3', true])('%j is invalid', (asNumber) => {
    expect(() => decode({ spec: { bgp: { asNumber } } })).toThrow('expected an AS number');
  });
});

describe('interfaces', () => {
  const interfaces = [
    { name: 'eth0', addresses: ['192.0.2.1/24', 'nonsense', '2001:db8::1/64'], more: true },
    { addresses: ['192.0.2.9/24'] },
    { name: 'eth1' },
  ];
  const eth0 = {
    name: 'eth0',
    addresses: [
      { address: prefix('192.0.2.1/32'), subnetBits: 24 },
      { address: prefix('2001:db8::1/128'), subnetBits: 64 },
    ],
  };

  test('are read as far as possible', () => {
    expect(decode({ spec: { interfaces } }).node.interfaces).toEqual([eth0, { name: 'eth1', addresses: [] }]);
  });

  test('that are unchanged keep their notation', () => {
    expect(rewrite({ spec: { interfaces } })).toMatchObject({ spec: { interfaces } });
  });

  test('that differ are rewritten', () => {
    expect(rewrite({ spec: { interfaces } }, { interfaces: [eth0] })).toMatchObject({
      spec: { interfaces: [{ name: 'eth0', addresses: ['192.0.2.1/24', '2001:db8::1/64'] }] },
    });
    expect(rewrite({ spec: { interfaces, other: 1 } }, { interfaces: [] })).toMatchObject({ spec: { other: 1 } });
    expect(rewrite({ spec: { interfaces } }, { interfaces: [] })).not.toHaveProperty('spec.interfaces');
  });
});

describe('the MAC address of a tunnel', () => {
  test('is known before the tunnel has an address', () => {
    const spec = { vxlanTunnelMACAddr: '66:00:00:00:00:01' };
    const { node } = decode({ spec });
    expect(node.tunnels).toEqual(new Map());
    expect(node.tunnelMacs).toEqual(new Map([['vxlanTunnelAddress', '66:00:00:00:00:01']]));
    expect(rewrite({ spec })).toMatchObject({ spec });
  });
});

test('a missing creation time stays missing', () => {
  expect(rewrite({ metadata: { name: 'node-1' } })).toMatchObject({ metadata: { creationTimestamp: null } });
});

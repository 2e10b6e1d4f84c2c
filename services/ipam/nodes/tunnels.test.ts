import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import { attributesAt } from '../records/block.js';
import { tunnelHandleId, type TunnelKind } from '../records/node.js';
import type { Pool } from '../records/pool.js';
import type { RecordValue } from '../records/view.js';
import { config, failureOf, nodeRecord, NOW_MS, poolRecord, prefix, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { assignTunnel, releaseTunnel } from './tunnels.js';

const VXLAN: TunnelKind = 'vxlanTunnelAddress';

const vxlanPool = (rest: Partial<Pool> = {}) =>
  poolRecord('v', '10.0.0.0/28', { blockSizeBits: 30, vxlanMode: 'CrossSubnet', ...rest });
const start = (...records: RecordValue[]) =>
  new TestView([nodeRecord('n1'), poolRecord('plain', '10.9.0.0/28', { blockSizeBits: 30 }), vxlanPool(), ...records]);

function assign(view: TestView, kind: TunnelKind = VXLAN) {
  const outcome = view.apply(assignTunnel(view, { nodeName: 'n1', kind, nowMs: NOW_MS }));
  expect(inconsistencies(view, NOW_MS)).toEqual([]);
  return { ...outcome, address: formatPrefix(outcome.address), released: outcome.released.map(formatPrefix) };
}

const recorded = (view: TestView, kind: TunnelKind = VXLAN) => {
  const address = view.node('n1')?.tunnels.get(kind)?.address;
  return address && formatPrefix(address);
};

const held = (view: TestView) =>
  view.blocks().flatMap((block) => block.allocations.flatMap((_, ordinal) => attributesAt(block, ordinal) ?? []));

describe('a tunnel gets an address', () => {
  test.each<[TunnelKind, Partial<Pool>, string, string]>([
    ['ipipTunnelAddress', { ipipMode: 'Always' }, '10.8.0.0/28', 'ipip-tunnel-addr-n1'],
    ['vxlanTunnelAddress', { vxlanMode: 'Always' }, '10.8.0.0/28', 'vxlan-tunnel-addr-n1'],
    ['vxlanV6TunnelAddress', { vxlanMode: 'CrossSubnet' }, 'fd00::/124', 'vxlan-v6-tunnel-addr-n1'],
  ])('%s: under the handle and with the attributes of Calico’s, in the node’s record', (kind, rest, cidr, handle) => {
    const blockSizeBits = cidr.includes(':') ? 126 : 30;
    const view = new TestView([nodeRecord('n1'), poolRecord('p', cidr, { blockSizeBits, ...rest })]);
    const { address, isKept } = assign(view, kind);
    expect(isKept).toBe(false);
    expect(recorded(view, kind)).toBe(address);
    expect(tunnelHandleId('n1', kind)).toBe(handle);
    expect(held(view)).toEqual([{ handleId: handle, owner: { node: 'n1', type: kind }, releasedAtMs: undefined }]);
    expect([...view.handle(handle)!.blocks.values()]).toEqual([1]);
  });

  test('from a pool with its encapsulation, whatever the pool selects', () => {
    const view = start(vxlanPool({ nodeSelector: 'has(nothing)', assignmentMode: 'Manual' }));
    expect(assign(view).address).toMatch(/^10\.0\.0\./);
  });

  test('once: a repeat changes nothing', () => {
    const view = start();
    const first = assign(view);
    const again = assignTunnel(view, { nodeName: 'n1', kind: VXLAN, nowMs: NOW_MS });
    expect(again.changes).toEqual([]);
    expect(assign(view)).toEqual({ ...first, isKept: true });
  });

  test('that its handle holds already, where the node’s record lacks it', () => {
    const view = start();
    const { address } = assign(view);
    view.put(nodeRecord('n1'));
    expect(assign(view)).toEqual({ address, isKept: false, released: [] });
    expect(recorded(view)).toBe(address);
  });

  test('for each kind its own', () => {
    const view = start(vxlanPool({ ipipMode: 'Always' }));
    expect(assign(view, 'ipipTunnelAddress').address).not.toBe(assign(view).address);
    expect(view.node('n1')!.tunnels.size).toBe(2);
  });
});

describe('a wrong address is replaced', () => {
  test('one that another holder has', () => {
    const view = start();
    const pod = view.apply(allocate(view, { request: request('c1', { pools: ['v'] }), nowMs: NOW_MS }));
    const theirs = pod.endpoint.addresses[0]!.address;
    view.put(nodeRecord('n1', { tunnels: new Map([[VXLAN, { address: theirs }]]) }));
    const { address, released } = assign(view);
    expect(address).not.toBe(formatPrefix(theirs));
    expect(released).toEqual([]);
    expect(view.handle('net.c1')?.blocks.size).toBe(1);
  });

  test.each<[string, Partial<Pool>]>([
    ['is disabled', { disabled: true }],
    ['has another encapsulation', { vxlanMode: 'Never' }],
    ['is no longer for tunnels', { allowedUses: ['Workload'] }],
  ])('one whose pool %s, and it is released', (_, rest) => {
    const view = start();
    const old = assign(view).address;
    view.put(vxlanPool(rest));
    view.put(poolRecord('w', '10.1.0.0/28', { blockSizeBits: 30, vxlanMode: 'Always' }));
    const { address, released } = assign(view);
    expect(released).toEqual([old]);
    expect(address).toMatch(/^10\.1\.0\./);
    expect(recorded(view)).toBe(address);
    expect(held(view)).toHaveLength(1);
    expect(view.history.map(({ handleId }) => handleId)).toEqual(['vxlan-tunnel-addr-n1']);
  });

  test('one that cools down after its release is not reused', () => {
    const view = start(config({ cooldownSeconds: 30 }));
    const old = assign(view).address;
    view.apply(releaseTunnel(view, { nodeName: 'n1', kind: VXLAN, nowMs: NOW_MS }));
    view.put(nodeRecord('n1', { tunnels: new Map([[VXLAN, { address: prefix(old) }]]) }));
    expect(assign(view).address).not.toBe(old);
  });
});

describe('another tool deletes the block of a tunnel', () => {
  test('no pod gets the address, and the node’s next block has it again', () => {
    const view = start();
    const { address } = assign(view);
    const [block] = view.blocks();
    view.remove({ kind: 'block', prefix: block!.prefix });
    const pods = ['a', 'b', 'c'].map((id) => {
      const decision = allocate(view, { request: request(id, { pools: ['v'] }), nowMs: NOW_MS });
      return formatPrefix(view.apply(decision).endpoint.addresses[0]!.address);
    });
    expect(view.blocks().map(({ prefix: each }) => formatPrefix(each))).toEqual([formatPrefix(block!.prefix)]);
    expect(pods).not.toContain(address);
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
    expect(assign(view)).toEqual({ address, isKept: true, released: [] });
  });
});

describe('the end of a tunnel', () => {
  test('releases its address and clears the record; a repeat does nothing', () => {
    const view = start();
    const { address } = assign(view);
    const { released } = view.apply(releaseTunnel(view, { nodeName: 'n1', kind: VXLAN, nowMs: NOW_MS }));
    expect(released.map(formatPrefix)).toEqual([address]);
    expect(recorded(view)).toBeUndefined();
    expect(view.all('handle')).toEqual([]);
    const again = releaseTunnel(view, { nodeName: 'n1', kind: VXLAN, nowMs: NOW_MS });
    expect(again).toEqual({ changes: [], outcome: { released: [] } });
  });

  test('works when the node is gone', () => {
    const view = start();
    assign(view);
    view.remove({ kind: 'node', name: 'n1' });
    const { released } = view.apply(releaseTunnel(view, { nodeName: 'n1', kind: VXLAN, nowMs: NOW_MS }));
    expect(released).toHaveLength(1);
    expect(view.all('node')).toEqual([]);
  });
});

describe('is refused, and nothing changes', () => {
  const refused = (view: TestView) => {
    const before = view.snapshot();
    const failure = failureOf(() => assignTunnel(view, { nodeName: 'n1', kind: VXLAN, nowMs: NOW_MS }));
    expect(view.snapshot()).toEqual(before);
    return failure;
  };

  test('for a node that is unregistered, or being deleted', () => {
    expect(refused(new TestView([vxlanPool()])).code).toBe('NODE_NOT_FOUND');
    expect(refused(start(nodeRecord('n1', { deletionTimeMs: NOW_MS }))).code).toBe('NODE_BEING_DELETED');
  });

  test('without a pool of the encapsulation', () => {
    expect(refused(start(vxlanPool({ vxlanMode: 'Never' })))).toMatchObject({
      code: 'NO_POOL',
      message: expect.stringContaining('no enabled IPv4 pool allows VXLAN tunnels'),
    });
  });

  test('when those pools are full', () => {
    const view = start();
    for (let i = 0; i < 16; i++)
      view.apply(allocate(view, { request: request(`c${i}`, { pools: ['v'] }), nowMs: NOW_MS }));
    expect(refused(view)).toMatchObject({
      code: 'POOLS_EXHAUSTED',
      message: expect.stringContaining('no IPv4 address for the VXLAN tunnel on node n1: pool "v" 10.0.0.0/28: all 4'),
    });
  });
});

import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { MapView } from '../records/testing/map-view.js';
import type { View } from '../records/view.js';
import { calico, countedHandles, withAllocations, handleRecord, storedHandles } from '../testing/allocations.js';
import { block, claimedBlock, config, NOW_MS, poolRecord, request } from '../testing/records.js';
import { allocate } from './allocate.js';
import { continueHandleRelease } from './release.js';

const step = (view: View, handleId: string, searchesAllBlocks = false) =>
  continueHandleRelease(view, { handleId, nowMs: NOW_MS, searchesAllBlocks });

/** Releases to the end. @returns the released addresses, and the number of steps */
function releaseAll(view: MapView, handleId: string, searchesAllBlocks = false) {
  const addresses: string[] = [];
  for (let steps = 1; ; steps++) {
    const decision = step(view, handleId, searchesAllBlocks);
    expect(decision.changes.length).toBeLessThanOrEqual(128);
    const outcome = view.apply(decision);
    addresses.push(...outcome.addresses.map(formatPrefix));
    if (outcome.state === 'done') return { addresses, steps };
  }
}

describe('a handle', () => {
  test('of a container is deleted with its addresses of both families and its endpoint, in one step', () => {
    const view = new MapView([poolRecord('four', '10.0.0.0/26'), poolRecord('six', 'fd00::/122')]);
    view.apply(allocate(view, { request: request('c1', { families: [4, 6] }), nowMs: NOW_MS }));
    view.apply(allocate(view, { request: request('c2'), nowMs: NOW_MS }));
    expect(releaseAll(view, 'net.c1')).toEqual({ addresses: ['10.0.0.0/32', 'fd00::/128'], steps: 1 });
    expect(Object.keys(storedHandles(view))).toEqual(['net.c2']);
    expect(view.all('endpoint').map(({ value }) => value.attachment.containerId)).toEqual(['c2']);
    expect(view.history.map(({ handleId }) => handleId)).toEqual(['net.c1', 'net.c1']);
  });

  test.each(['default.web-0', '9f2c0a', 'lb-9f2c', 'ipip-tunnel-addr-n1', 'vxlan-tunnel-addr-n1'])(
    'of an old or other kind of Calico is deleted: %s',
    (id) => {
      const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [0, 2], attributes: calico(id) });
      const view = new MapView([poolRecord('p', '10.0.0.0/26'), ...claimedBlock(held)]);
      view.put(handleRecord(id, ['10.0.0.0/30', 2]));
      expect(releaseAll(view, id)).toEqual({ addresses: ['10.0.0.0/32', '10.0.0.2/32'], steps: 1 });
      expect(view.all('handle')).toEqual([]);
      expect(view.blocks()[0]).toMatchObject({ unallocated: [1, 3, 0, 2], attributes: [] });
    },
  );

  test('that does not exist has nothing, and changes nothing', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/26')]);
    expect(step(view, 'net.c1')).toEqual({
      changes: [{ type: 'release', handleId: 'net.c1', nowMs: NOW_MS }],
      outcome: { state: 'done', addresses: [] },
    });
  });

  test.each([
    ['a block that is gone', [['10.9.0.0/26', 1]], []],
    ['more than it has', [['10.0.0.0/30', 7]], ['10.0.0.1/32']],
    [
      'both',
      [
        ['10.0.0.0/30', 7],
        ['10.9.0.0/26', 1],
      ],
      ['10.0.0.1/32'],
    ],
    ['a CIDR that is none', [['x', 1]], []],
  ] as const)('with a wrong count is deleted: %s', (_, counts, addresses) => {
    const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [1], attributes: calico('h') });
    const view = new MapView([...claimedBlock(addresses.length > 0 ? held : block('10.0.0.0/30', 'n1'))]);
    view.put(handleRecord('h', ...counts));
    expect(releaseAll(view, 'h').addresses).toEqual(addresses);
    expect(view.all('handle')).toEqual([]);
  });

  test('whose name has a carriage return from an old migration is deleted', () => {
    const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [1], attributes: calico('h') });
    const view = new MapView([...claimedBlock(held), handleRecord('h\r', ['10.0.0.0/30', 1])]);
    expect(releaseAll(view, 'h').addresses).toEqual(['10.0.0.1/32']);
    expect(view.all('handle')).toEqual([]);
  });

  test('whose record was lost is found by searching all blocks, if requested', () => {
    const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [1], attributes: calico('h') });
    const view = new MapView(claimedBlock(held));
    expect(releaseAll(view, 'h').addresses).toEqual([]);
    expect(releaseAll(view, 'h', true).addresses).toEqual(['10.0.0.1/32']);
  });

  test('in more blocks than a transaction holds is deleted in steps, with correct counts after each', () => {
    const blocks = Array.from({ length: 300 }, (_, i) => `10.0.${i >> 6}.${(i & 63) * 4}/30`);
    const view = new MapView([poolRecord('p', '10.0.0.0/16', { blockSizeBits: 30 })]);
    for (const cidr of blocks) {
      const held = withAllocations(
        block(cidr, 'n1'),
        { ordinals: [1], attributes: calico('h') },
        { ordinals: [2], attributes: calico('other') },
      );
      for (const record of claimedBlock(held)) view.put(record);
    }
    for (const id of ['h', 'other']) view.put(handleRecord(id, ...blocks.map((cidr) => [cidr, 1] as const)));
    for (let state = 'more'; state === 'more';) {
      const decision = step(view, 'h');
      expect(decision.changes.length).toBeLessThanOrEqual(128);
      ({ state } = view.apply(decision));
      expect(storedHandles(view)).toEqual(countedHandles(view));
    }
    expect(Object.keys(storedHandles(view))).toEqual(['other']);
  });

  test('in many missing blocks is deleted in steps', () => {
    const gone = Array.from({ length: 250 }, (_, i) => [`10.9.${i}.0/26`, 1] as const);
    const view = new MapView([handleRecord('h', ...gone)]);
    expect(releaseAll(view, 'h')).toEqual({ addresses: [], steps: 3 });
    expect(view.all('handle')).toEqual([]);
  });

  test('does not include another one whose name begins with its own', () => {
    const held = withAllocations(
      block('10.0.0.0/30', 'n1'),
      { ordinals: [0], attributes: calico('net.c1') },
      { ordinals: [1], attributes: calico('net.c10') },
    );
    const view = new MapView([
      ...claimedBlock(held),
      handleRecord('net.c1', ['10.0.0.0/30', 1]),
      handleRecord('net.c10', ['10.0.0.0/30', 1]),
    ]);
    expect(releaseAll(view, 'net.c1').addresses).toEqual(['10.0.0.0/32']);
    expect(storedHandles(view)).toEqual({ 'net.c10': { '10.0.0.0/30': 1 } });
  });
});

test('addresses cool down where that is configured', () => {
  const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [0, 1], attributes: calico('h') });
  const view = new MapView([
    ...claimedBlock(held),
    handleRecord('h', ['10.0.0.0/30', 2]),
    config({ cooldownSeconds: 5 }),
  ]);
  releaseAll(view, 'h');
  expect(view.blocks()[0]).toMatchObject({
    unallocated: [2, 3],
    attributes: [{ handleId: undefined, owner: {}, releasedAtMs: Math.floor(NOW_MS / 1000) * 1000 }],
    allocations: [0, 0, null, null],
  });
});

import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { release } from '../addresses/release.js';
import { listBlocks } from '../blocks/blocks.js';
import { unavailableReason, poolVersion } from '../records/pool.js';
import {
  affinity,
  attachment,
  block,
  claimedBlock,
  failureOf,
  fullBlock,
  host,
  NOW_MS,
  pool,
  poolRecord,
  prefix,
  request,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { getPool, listPools } from './pools.js';

test('a pool is out of use for one reason at a time', () => {
  const out = (rest: Parameters<typeof pool>[2]) => unavailableReason(pool('p', '10.0.0.0/16', rest));
  expect(out({})).toBeUndefined();
  expect(out({ disabled: true, deletionTimeMs: 0 })).toBe('being deleted');
  expect(out({ disabled: true, notAllocatable: 'CIDROverlap' })).toBe('disabled');
  expect(out({ notAllocatable: 'CIDROverlap' })).toBe('not allocatable: CIDROverlap');
});

test('a pool’s version differs with each of its fields', () => {
  const base = pool('p', '10.0.0.0/16');
  const variants = [
    base,
    { ...base, uid: 'other' },
    { ...base, disabled: true },
    { ...base, prefix: prefix('10.0.0.0/17') },
    { ...base, blockSizeBits: 27 },
    { ...base, nodeSelector: '' },
    { ...base, namespaceSelector: 'all()' },
    { ...base, allowedUses: ['Tunnel'] },
    { ...base, assignmentMode: 'Manual' as const },
    { ...base, createTimeMs: 0 },
    { ...base, deletionTimeMs: 0 },
    { ...base, notAllocatable: 'CIDROverlap' },
    { ...base, ipipMode: 'Always' as const },
    { ...base, vxlanMode: 'Always' as const },
    { ...base, natOutgoing: true },
    { ...base, disableBgpExport: true },
  ];
  expect(new Set(variants.map(poolVersion)).size).toBe(variants.length);
  expect(poolVersion({ ...base })).toBe(poolVersion(base));
});

describe('lists', () => {
  const view = new TestView([
    poolRecord('a', '10.0.0.0/24'),
    poolRecord('b', 'fd00::/48'),
    poolRecord('c', '10.1.0.0/24'),
    ...claimedBlock(block('10.0.0.64/26', 'n2'), 'pending'),
    ...claimedBlock(block('fd00::/122', 'n1')),
    ...claimedBlock(fullBlock('10.0.0.0/26', 'n1')),
    { kind: 'block', value: block('10.7.0.0/26', 'n1', { owner: undefined }) },
  ]);
  const blocks = (rest: Partial<Parameters<typeof listBlocks>[1]>) => {
    const query = { after: undefined, limit: 10, poolName: '', nodeName: '', ...rest };
    const { items, more } = listBlocks(view, query);
    return { cidrs: items.map(({ block: { prefix: cidr } }) => formatPrefix(cidr)), more };
  };

  test('blocks in the order of their addresses, IPv4 first, page by page', () => {
    const all = ['10.0.0.0/26', '10.0.0.64/26', '10.7.0.0/26', 'fd00::/122'];
    expect(blocks({})).toEqual({ cidrs: all, more: false });
    expect(blocks({ limit: 2 })).toEqual({ cidrs: all.slice(0, 2), more: true });
    expect(blocks({ limit: 2, after: prefix('10.0.0.64/26') })).toEqual({ cidrs: all.slice(2), more: false });
  });

  test('blocks in pages small enough for a message, with at least one block', () => {
    const large = ['10.0.0.0/20', '10.0.16.0/21', '10.0.24.0/21', '10.0.32.0/26'].map((cidr) => fullBlock(cidr, 'n1'));
    const full = new TestView(large.map((value) => ({ kind: 'block', value })));
    const sizes: number[] = [];
    for (let after: ReturnType<typeof prefix> | undefined, more = true; more;) {
      const page = listBlocks(full, { after, limit: 10, poolName: '', nodeName: '' });
      sizes.push(page.items.length);
      after = page.items.at(-1)!.block.prefix;
      more = page.more;
    }
    expect(sizes).toEqual([1, 2, 1]);
  });

  test('blocks of one pool, of one node, and of both', () => {
    expect(blocks({ poolName: 'a' }).cidrs).toEqual(['10.0.0.0/26', '10.0.0.64/26']);
    expect(blocks({ nodeName: 'n1' }).cidrs).toEqual(['10.0.0.0/26', 'fd00::/122']);
    expect(blocks({ poolName: 'a', nodeName: 'n2' }).cidrs).toEqual(['10.0.0.64/26']);
    expect(blocks({ poolName: 'unknown' }).cidrs).toEqual([]);
  });

  test('blocks with their pool and the state of their owner’s claim', () => {
    const { items } = listBlocks(view, { after: undefined, limit: 3, poolName: '', nodeName: '' });
    expect(items.map(({ poolName, affinityState }) => [poolName, affinityState])).toEqual([
      ['a', 'confirmed'],
      ['a', 'pending'],
      [undefined, undefined],
    ]);
  });

  test('pools in the order of their names with their utilization, page by page', () => {
    const first = listPools(view, { after: '', limit: 2 });
    expect(first.items.map(({ pool: { name } }) => name)).toEqual(['a', 'b']);
    expect(first.items.map(({ utilization }) => utilization)).toEqual([
      { capacity: 256n, allocated: 64n, cooling: 0n, reserved: 0n, available: 192n, leased: 0n, blocks: 2n },
      { capacity: 1n << 80n, allocated: 0n, cooling: 0n, reserved: 0n, available: 1n << 80n, leased: 0n, blocks: 1n },
    ]);
    expect(first.more).toBe(true);
    const second = listPools(view, { after: 'b', limit: 2 });
    expect(second.items.map(({ pool: { name } }) => name)).toEqual(['c']);
    expect(second.more).toBe(false);
  });

  test('one pool, or that there is none of that name', () => {
    expect(getPool(view, 'a').utilization.allocated).toBe(64n);
    expect(failureOf(() => getPool(view, 'z')).code).toBe('POOL_NOT_FOUND');
  });
});

test('an empty node keeps its affinity after a release, so its next container is near', () => {
  const view = new TestView([poolRecord('p', '10.0.0.0/16')]);
  view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
  const before = view.affinitiesOf(host('n1'));
  view.apply(release(view, attachment('c1'), NOW_MS));
  expect(view.affinitiesOf(host('n1'))).toEqual(before);
  expect(before).toEqual([affinity(formatPrefix(before[0]!.block), 'n1')]);
});

import { formatPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import type { Block } from '../records/block.js';
import type { Pool } from '../records/pool.js';
import { TestView } from '../testing/test-view.js';
import { fnv1a32 } from '../records/versions.js';
import { ReservedAddresses } from '../reservations/reservations.js';
import { affinity, block, claimedBlock, fullBlock, host, NOW_MS, pool, prefix } from '../testing/records.js';
import {
  beginSearch,
  blockCount,
  blocksWithRoom,
  idleBlocks,
  walkBlocks,
  type Search,
  type WalkResult,
} from './search.js';

const NOTHING = new ReservedAddresses([]);

interface Finding {
  readonly pool: Pool;
  readonly seed: string;
  readonly reserved?: ReservedAddresses;
}

/** A search whose walks start where the seed decides, for blocks of any size. */
function searchFrom(view: TestView, seed: string, reserved = NOTHING): Search {
  const rest = { nodeLabels: {}, namespaceLabels: {}, pools: [], maxBlocksCount: 0, nowMs: NOW_MS };
  const search = beginSearch(view, { family: 4, use: 'Workload', owner: host(seed), seed, ...rest }, []);
  return { ...search, reserved };
}

/** The first unclaimed block. */
function findUnclaimed(view: TestView, { pool: walked, seed, reserved }: Finding): Prefix | undefined {
  for (const met of walkBlocks(searchFrom(view, seed, reserved), walked))
    if (met.kind === 'unclaimed') return met.prefix;
  return undefined;
}

/** The blocks of a pool in the order in which the walk offers them, each taken as soon as it is offered. */
function walkAll(view: TestView, finding: Finding): string[] {
  const offered: string[] = [];
  for (;;) {
    const found = findUnclaimed(view, finding);
    if (!found) return offered;
    offered.push(formatPrefix(found));
    view.put({ kind: 'block', value: block(formatPrefix(found), 'other') });
  }
}

/** A view of many blocks that counts how many of them are read. */
class CountingView extends TestView {
  looked = 0;
  readonly #sorted: readonly Block[];

  constructor(blocks: readonly Block[]) {
    super();
    this.#sorted = blocks;
  }

  override *blocksIn(range: Prefix): Generator<Block> {
    for (const found of this.#sorted) {
      if (!prefixContains(range, found.prefix)) continue;
      this.looked++;
      yield found;
    }
  }
}

describe('the walk', () => {
  test.each([
    ['10.0.0.0/24', 26, 4],
    ['10.0.0.0/16', 20, 16],
    ['10.0.0.0/26', 32, 64],
    ['10.0.0.0/26', 26, 1],
    ['fd00::/120', 122, 4],
    ['fd00::/112', 116, 16],
    ['fd00::/122', 128, 64],
  ])('offers every block of %s cut to /%i once, then ends', (cidr, blockSizeBits, count) => {
    const walked = pool('p', cidr, { blockSizeBits });
    const offered = walkAll(new TestView(), { pool: walked, seed: 'node-1' });
    expect(new Set(offered).size).toBe(count);
    expect(offered).toHaveLength(count);
    expect(blockCount(walked)).toBe(BigInt(count));
  });

  test('starts where the seed decides, continues in order, and wraps around', () => {
    const walked = pool('p', '10.0.0.0/28', { blockSizeBits: 30 });
    const start = fnv1a32('node-1') % 4;
    const cidrs = [0, 4, 8, 12].map((last) => `10.0.0.${last}/30`);
    const expected = [...cidrs.slice(start), ...cidrs.slice(0, start)];
    expect(walkAll(new TestView(), { pool: walked, seed: 'node-1' })).toEqual(expected);
  });

  test('starts nodes of neighbouring names far apart', () => {
    const walked = pool('p', '10.0.0.0/16');
    const starts = Array.from({ length: 8 }, (_, i) => {
      const found = findUnclaimed(new TestView(), { pool: walked, seed: `node-${i}` });
      return Number((found?.value ?? 0n) >> 6n);
    }).sort((a, b) => a - b);
    const distances = starts.slice(1).map((start, i) => start - starts[i]!);
    expect(Math.min(...distances)).toBeGreaterThan(1);
  });

  test('returns every unclaimed block once, existing or not', () => {
    const walked = pool('p', '10.0.0.0/28', { blockSizeBits: 30 });
    const mine = block('10.0.0.4/30', 'n1');
    const view = new TestView([{ kind: 'block', value: mine }]);
    const met = [...walkBlocks(searchFrom(view, 'n1'), walked)];
    expect(met.map(cidrOf).sort()).toEqual(['10.0.0.0/30', '10.0.0.12/30', '10.0.0.4/30', '10.0.0.8/30']);
    expect(met).toContainEqual({ kind: 'existing', block: mine });
  });

  test('skips blocks that an affinity leads to, and blocks without a free address', () => {
    const walked = pool('p', '10.0.0.0/28', { blockSizeBits: 29 });
    const full = fullBlock('10.0.0.8/29', 'n1');
    const view = new TestView([...claimedBlock(block('10.0.0.0/29', 'n1')), { kind: 'block', value: full }]);
    expect([...walkBlocks(searchFrom(view, 'n1'), walked)]).toEqual([]);
    const cidrs = (blocks: Iterable<Block>) => [...blocks].map((found) => formatPrefix(found.prefix));
    expect(cidrs(blocksWithRoom(searchFrom(view, 'n1'), walked))).toEqual(['10.0.0.0/29']);
    expect(cidrs(idleBlocks(searchFrom(view, 'n1'), walked))).toEqual(['10.0.0.0/29']);
  });

  test('does not offer an unreadable block, nor one around or within it', () => {
    const setAside = (cidr: string) => {
      const view = new TestView();
      view.setAside({ kind: 'block', prefix: prefix(cidr) }, 'it is not JSON');
      return walkAll(view, { pool: pool('p', '10.0.0.0/24'), seed: 'n1' }).sort();
    };
    expect(setAside('10.0.0.64/26')).toEqual(['10.0.0.0/26', '10.0.0.128/26', '10.0.0.192/26']);
    expect(setAside('10.0.0.80/28')).toEqual(['10.0.0.0/26', '10.0.0.128/26', '10.0.0.192/26']);
    expect(setAside('10.0.0.0/25')).toEqual(['10.0.0.128/26', '10.0.0.192/26']);
    expect(setAside('10.0.0.0/16'), 'larger than any block').toHaveLength(4);
  });

  test('offers no block that is completely reserved, and one that is partly reserved', () => {
    const walked = pool('p', '10.0.0.0/28', { blockSizeBits: 30 });
    const reserved = new ReservedAddresses(['10.0.0.0/29', '10.0.0.12/31', '10.0.0.14/32'].map(prefix));
    const offered = walkAll(new TestView(), { pool: walked, seed: 'n1', reserved });
    expect(offered.sort()).toEqual(['10.0.0.12/30', '10.0.0.8/30']);
  });

  test('skips a reservation of half a /48 at once', () => {
    const walked = pool('p', 'fd00:1::/48');
    const halves = ['fd00:1::/49', 'fd00:1:0:8000::/49'].map(prefix);
    for (const [index, half] of halves.entries()) {
      const found = findUnclaimed(new TestView(), {
        pool: walked,
        seed: 'n1',
        reserved: new ReservedAddresses([half]),
      });
      expect(found && prefixContains(halves[1 - index]!, found)).toBe(true);
    }
    const all = new ReservedAddresses(halves);
    expect(findUnclaimed(new TestView(), { pool: walked, seed: 'n1', reserved: all })).toBeUndefined();
  });

  test('offers nothing that overlaps a block of another size, within or around', () => {
    const around = new TestView([{ kind: 'block', value: block('10.0.0.0/25', 'n2') }]);
    expect(walkAll(around, { pool: pool('p', '10.0.0.0/24'), seed: 'n1' }).sort()).toEqual([
      '10.0.0.128/26',
      '10.0.0.192/26',
    ]);
    const within = new TestView([{ kind: 'block', value: block('10.0.0.80/28', 'n2') }]);
    expect(walkAll(within, { pool: pool('p', '10.0.0.0/25'), seed: 'n1' })).toEqual(['10.0.0.0/26']);
    const larger = new TestView([{ kind: 'block', value: block('10.0.0.0/24', 'n2') }]);
    expect(walkAll(larger, { pool: pool('p', '10.0.0.0/26'), seed: 'n1' })).toEqual([]);
  });

  test('has nothing to offer in a disabled pool that is smaller than one block', () => {
    const small = { ...pool('p', '10.0.0.0/26'), prefix: prefix('10.0.0.0/27') };
    expect(findUnclaimed(new TestView(), { pool: small, seed: 'n1' })).toBeUndefined();
  });
});

describe('the cost', () => {
  test('of a claim in a /48 with 2^74 blocks walks the blocks after the start', () => {
    const walked = pool('p', 'fd00:1::/48');
    expect(blockCount(walked)).toBe(1n << 74n);
    const view = new CountingView([]);
    const found = findUnclaimed(view, { pool: walked, seed: 'node-1' });
    expect(found).toMatchObject({ length: 122 });
    expect(view.looked).toBe(0);
  });
});

test('property: offers what trying every candidate in turn offers, in the same order', () => {
  const places = fc.uniqueArray(fc.integer({ min: 0, max: 31 }), { maxLength: 32 });
  const scenario = fc.record({ taken: places, bound: places, reserved: places, seed: fc.string() });
  fc.assert(
    fc.property(scenario, ({ taken, bound, reserved, seed }) => {
      const walked = pool('p', '10.0.0.0/25', { blockSizeBits: 30 });
      const cidrs = Array.from({ length: 32 }, (_, i) => `10.0.0.${i * 4}/30`);
      const view = new TestView(taken.map((i) => ({ kind: 'block', value: block(cidrs[i]!, 'n2') })));
      for (const i of bound) view.put({ kind: 'affinity', value: affinity(cidrs[i]!, 'n2') });
      const start = fnv1a32(seed) % 32;
      const order = [...cidrs.slice(start), ...cidrs.slice(0, start)];
      const isTaken = (cidr: string) => taken.some((i) => cidrs[i] === cidr);
      const isBound = (cidr: string) => bound.some((i) => cidrs[i] === cidr);
      const expected = order.filter((cidr) =>
        isTaken(cidr) ? !isBound(cidr) : !reserved.some((i) => cidrs[i] === cidr),
      );
      const set = new ReservedAddresses(reserved.map((i) => prefix(cidrs[i]!)));
      const search = searchFrom(view, seed, set);
      const met = [...walkBlocks(search, walked)];
      expect(met.map(cidrOf)).toEqual(expected);
      expect(met.map(({ kind }) => kind === 'existing')).toEqual(expected.map(isTaken));
      for (const all of [blocksWithRoom, idleBlocks])
        expect([...all(search, walked)].map(({ prefix: of }) => formatPrefix(of))).toEqual(order.filter(isTaken));
    }),
    { numRuns: 500, verbose: fc.VerbosityLevel.Verbose },
  );
});

const cidrOf = (met: WalkResult): string => formatPrefix(met.kind === 'existing' ? met.block.prefix : met.prefix);

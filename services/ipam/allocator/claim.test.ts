import fc from 'fast-check';
import { formatPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { blockCount, findBlock } from './claim.js';
import { fnv1a32 } from './hash.js';
import { MapView } from './map-view.fixture.js';
import { block, pool, prefix } from './records.fixture.js';
import type { Block, Pool } from './records.js';

const never = () => false;

/** The blocks of a pool in the order in which the walk offers them, each taken as soon as it is offered. */
function walkAll(view: MapView, walked: Pool, seed: string): string[] {
  const offered: string[] = [];
  for (;;) {
    const found = findBlock(view, { pool: walked, seed, usable: never });
    if (found?.kind !== 'unclaimed') return offered;
    offered.push(formatPrefix(found.prefix));
    view.put({ kind: 'block', value: block(formatPrefix(found.prefix), 'somebody') });
  }
}

/** A view of many blocks that counts how many of them are looked at. */
class CountingView extends MapView {
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
    const offered = walkAll(new MapView(), walked, 'node-1');
    expect(new Set(offered).size).toBe(count);
    expect(offered).toHaveLength(count);
    expect(blockCount(walked)).toBe(BigInt(count));
  });

  test('begins where the seed says, goes on in order, and wraps around', () => {
    const walked = pool('p', '10.0.0.0/28', { blockSizeBits: 30 });
    const start = fnv1a32('node-1') % 4;
    const cidrs = [0, 4, 8, 12].map((last) => `10.0.0.${last}/30`);
    const expected = [...cidrs.slice(start), ...cidrs.slice(0, start)];
    expect(walkAll(new MapView(), walked, 'node-1')).toEqual(expected);
  });

  test('starts nodes of neighbouring names far apart', () => {
    const walked = pool('p', '10.0.0.0/16');
    const starts = Array.from({ length: 8 }, (_, i) => {
      const found = findBlock(new MapView(), { pool: walked, seed: `node-${i}`, usable: never });
      return found?.kind === 'unclaimed' ? Number(found.prefix.value >> 6n) : 0;
    }).sort((a, b) => a - b);
    const distances = starts.slice(1).map((start, i) => start - starts[i]!);
    expect(Math.min(...distances)).toBeGreaterThan(1);
  });

  test('ends at a block that is usable', () => {
    const walked = pool('p', '10.0.0.0/26');
    const mine = block('10.0.0.0/26', 'n1');
    const view = new MapView([{ kind: 'block', value: mine }]);
    const usable = (found: Block) => found.owner?.name === 'n1';
    expect(findBlock(view, { pool: walked, seed: 'n1', usable })).toEqual({ kind: 'existing', block: mine });
  });

  test('offers nothing that overlaps a block of another size, within or around', () => {
    const around = new MapView([{ kind: 'block', value: block('10.0.0.0/25', 'n2') }]);
    expect(walkAll(around, pool('p', '10.0.0.0/24'), 'n1').sort()).toEqual(['10.0.0.128/26', '10.0.0.192/26']);
    const within = new MapView([{ kind: 'block', value: block('10.0.0.80/28', 'n2') }]);
    expect(walkAll(within, pool('p', '10.0.0.0/25'), 'n1')).toEqual(['10.0.0.0/26']);
    const larger = new MapView([{ kind: 'block', value: block('10.0.0.0/24', 'n2') }]);
    expect(walkAll(larger, pool('p', '10.0.0.0/26'), 'n1')).toEqual([]);
  });

  test('has nothing to offer in a disabled pool that is smaller than one block', () => {
    const small = { ...pool('p', '10.0.0.0/26'), prefix: prefix('10.0.0.0/27') };
    expect(findBlock(new MapView(), { pool: small, seed: 'n1', usable: never })).toBeUndefined();
  });
});

describe('the cost', () => {
  test('of a claim in a /48 with 2^74 blocks is that of the blocks behind the start', () => {
    const walked = pool('p', 'fd00:1::/48');
    expect(blockCount(walked)).toBe(1n << 74n);
    const view = new CountingView([]);
    const found = findBlock(view, { pool: walked, seed: 'node-1', usable: never });
    expect(found).toMatchObject({ kind: 'unclaimed', prefix: { length: 122 } });
    expect(view.looked).toBe(0);
  });

  test('of a claim in a /16 where one of 4096 blocks is left is one look at each, at most a few more', () => {
    const walked = pool('p', '10.0.0.0/16', { blockSizeBits: 28 });
    const cidrs = Array.from({ length: 4096 }, (_, i) => `10.0.${i >> 4}.${(i % 16) * 16}/28`);
    const left = cidrs[1234]!;
    const view = new CountingView(cidrs.filter((cidr) => cidr !== left).map((cidr) => block(cidr, 'n2')));
    const found = findBlock(view, { pool: walked, seed: 'node-1', usable: never });
    expect(found).toEqual({ kind: 'unclaimed', prefix: prefix(left) });
    expect(view.looked).toBeLessThan(4096 + 32);
  });
});

test('property: finds what trying every candidate in turn finds', () => {
  const scenario = fc.record({
    taken: fc.uniqueArray(fc.integer({ min: 0, max: 31 }), { maxLength: 32 }),
    own: fc.uniqueArray(fc.integer({ min: 0, max: 31 }), { maxLength: 3 }),
    seed: fc.string(),
  });
  fc.assert(
    fc.property(scenario, ({ taken, own, seed }) => {
      const walked = pool('p', '10.0.0.0/25', { blockSizeBits: 30 });
      const cidrs = Array.from({ length: 32 }, (_, i) => `10.0.0.${i * 4}/30`);
      const view = new MapView(
        taken.map((i) => ({ kind: 'block', value: block(cidrs[i]!, own.includes(i) ? 'n1' : 'n2') })),
      );
      const start = fnv1a32(seed) % 32;
      const order = [...cidrs.slice(start), ...cidrs.slice(0, start)];
      const expected = order.find((cidr) => {
        const existing = view.block(prefix(cidr));
        return !existing || existing.owner?.name === 'n1';
      });
      const found = findBlock(view, { pool: walked, seed, usable: ({ owner }) => owner?.name === 'n1' });
      const actual = found && (found.kind === 'existing' ? found.block.prefix : found.prefix);
      expect(actual && formatPrefix(actual)).toBe(expected);
    }),
    { numRuns: 500 },
  );
});

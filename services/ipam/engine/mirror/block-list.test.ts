import { formatAddress } from '@podwire/shared/net/address';
import { comparePrefixes, formatPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { allocate } from '../../addresses/allocate/allocate.js';
import { addStats, blockStats, EMPTY_STATS } from '../../records/block-stats.js';
import type { Block } from '../../records/block.js';
import type { RecordValue } from '../../records/view.js';
import {
  block,
  claimedBlock,
  config,
  failureOf,
  fullBlock,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../../testing/records.js';
import { keys } from '../testing/stores.js';
import { BlockList } from './block-list.js';
import { Snapshot } from './snapshot.js';

const BLOCKS = 4096;
const OLD = { claimTimeMs: NOW_MS - 3_600_000 };

/** Counts lookups, and the blocks that it shows. */
class CountingView extends Snapshot {
  asked = 0;

  override block(of: Prefix): Block | undefined {
    this.asked++;
    return super.block(of);
  }

  override consecutiveBlocks(first: Prefix): number {
    this.asked++;
    return super.consecutiveBlocks(first);
  }

  override blocksIn(range: Prefix): Iterable<Block> {
    return this.#counted(super.blocksIn(range));
  }

  override blocksWithRoomIn(range: Prefix): Iterable<Block> {
    return this.#counted(super.blocksWithRoomIn(range));
  }

  override idleBlocksIn(range: Prefix): Iterable<Block> {
    return this.#counted(super.idleBlocksIn(range));
  }

  override blocksWithoutAffinityIn(range: Prefix): Iterable<Block> {
    return this.#counted(super.blocksWithoutAffinityIn(range));
  }

  *#counted(blocks: Iterable<Block>): Generator<Block, void, void> {
    for (const found of blocks) {
      this.asked++;
      yield found;
    }
  }
}

function cidrAt(place: number): string {
  return `10.0.${place >> 4}.${(place % 16) * 16}/28`;
}

function blocksBut(left: number, make: (cidr: string, nodeName: string) => Block): RecordValue[] {
  const places = Array.from({ length: BLOCKS }, (_, place) => place).filter((place) => place !== left);
  return places.flatMap((place) => claimedBlock(make(cidrAt(place), `node-${place % 500}`)));
}

function viewOf(records: readonly RecordValue[]): CountingView {
  const view = new CountingView(keys, () => true);
  for (const record of [poolRecord('p', '10.0.0.0/16', { blockSizeBits: 28 }), ...records])
    view.set(keys.of(record), record);
  view.asked = 0;
  return view;
}

function allocation(view: CountingView) {
  const { outcome } = allocate(view, { request: request('c1', { nodeName: 'asking' }), nowMs: NOW_MS });
  const { endpoint, ...gained } = outcome;
  return { blocks: endpoint.addresses.map((address) => formatPrefix(address.block)), gained, asked: view.asked };
}

const LEFT = 1234;

describe('of 4096 blocks, an address', () => {
  test('of the only block without an owner takes a few lookups, whether the remaining blocks are full or empty', () => {
    for (const make of [fullBlock, (cidr: string, name: string) => block(cidr, name, OLD)]) {
      const found = allocation(viewOf(blocksBut(LEFT, make)));
      expect(found.blocks).toEqual([cidrAt(LEFT)]);
      expect(found.gained.claimed).toHaveLength(1);
      expect(found.asked).toBeLessThan(100);
    }
  });

  test('of the only empty one takes a few lookups', () => {
    const records = claimedBlock(block(cidrAt(LEFT), 'another', OLD));
    const found = allocation(viewOf([...blocksBut(LEFT, fullBlock), ...records]));
    expect(found.blocks).toEqual([cidrAt(LEFT)]);
    expect(found.gained.reclaimed).toHaveLength(1);
    expect(found.asked).toBeLessThan(100);
  });

  test('of the only one with room takes a few lookups', () => {
    const taken = { ...fullBlock(cidrAt(LEFT), 'another'), unallocated: [7] };
    const roomy = { ...taken, allocations: taken.allocations.with(7, null) };
    const found = allocation(viewOf([...blocksBut(LEFT, fullBlock), ...claimedBlock(roomy)]));
    expect(found.blocks).toEqual([cidrAt(LEFT)]);
    expect(found.gained.borrowed).toHaveLength(1);
    expect(found.asked).toBeLessThan(100);
  });

  test('is found by every search until it is used', () => {
    const view = viewOf([...blocksBut(LEFT, fullBlock)]);
    const given = new Set<string>();
    for (let index = 0; index < 16; index++) {
      const wish = request(`c${index}`, { nodeName: `asking-${index % 3}` });
      const { changes, outcome } = allocate(view, { request: wish, nowMs: NOW_MS });
      for (const change of changes) {
        if (change.type === 'put') view.set(keys.of(change.record), change.record);
        if (change.type === 'delete') view.delete(keys.of(change.record));
      }
      for (const { address } of outcome.endpoint.addresses) given.add(formatAddress(address));
    }
    expect(given.size).toBe(16);
    const last = () => allocate(view, { request: request('last'), nowMs: NOW_MS });
    expect(last).toThrow(/all 4096 blocks are full/);
    expect([...view.blocksWithRoomIn(prefix('10.0.0.0/16'))]).toEqual([]);
  });
});

const PLACES = 2048;
const smallCidrAt = (place: number): string =>
  `${formatAddress({ family: 4, value: BigInt(0x0a000000 + place * 4) })}/30`;

test('property: the sums of any range equal the sums of its blocks, after any additions, changes and removals', () => {
  const change = fc.record({ place: fc.nat(PLACES - 1), become: fc.constantFrom('full', 'empty', 'gone') });
  fc.assert(
    fc.property(
      fc.array(change, { maxLength: 60 }),
      fc.nat(PLACES - 1),
      fc.integer({ min: 16, max: 32 }),
      (changes, at, length) => {
        const blocks = new Map<number, Block>();
        let list = new BlockList();
        const put = (place: number, value: Block): void => {
          list = list.with(value, undefined);
          blocks.set(place, value);
        };
        for (let place = 0; place < PLACES; place += 2) put(place, FULL[place] ?? block(smallCidrAt(place), 'n1'));
        for (const { place, become } of changes) {
          if (become !== 'gone')
            put(place, become === 'full' ? fullBlock(smallCidrAt(place), 'n2') : block(smallCidrAt(place), 'n3'));
          else {
            const known = blocks.get(place);
            if (known) list = list.without(known);
            blocks.delete(place);
          }
        }
        const range = prefix(
          `${formatAddress({ family: 4, value: (BigInt(0x0a000000 + at * 4) >> BigInt(32 - length)) << BigInt(32 - length) })}/${length}`,
        );
        const isIn = ({ prefix: { value } }: Block): boolean =>
          length <= 30 && value >= range.value && value < range.value + (1n << BigInt(32 - length));
        expect(list.statsWithin(range)).toEqual(
          [...blocks.values()].filter(isIn).map(blockStats).reduce(addStats, EMPTY_STATS),
        );
      },
    ),
    { seed: 20261121, numRuns: 30 },
  );
});

const FULL = Array.from({ length: PLACES }, (_, place) => fullBlock(smallCidrAt(place), 'n1'));

function roomyBlock(cidr: string, nodeName: string): Block {
  const full = fullBlock(cidr, nodeName);
  return { ...full, allocations: full.allocations.with(0, null), unallocated: [0] };
}

describe('a refusal in a pool of 4,096 blocks', () => {
  test.each<[string, (cidr: string, node: string) => Block, RegExp]>([
    ['that are full', fullBlock, /all 4096 blocks are full \(16384 of 16384 addresses in use\)/],
    ['of other owners, with strict affinity', roomyBlock, /and 4092 more blocks of other owners/],
  ])('%s reads a few of them', (_, make, expected) => {
    const view = new CountingView(keys, () => true);
    const blocks = Array.from({ length: 4096 }, (_, place) =>
      claimedBlock(make(smallCidrAt(place), `node-${place % 500}`)),
    );
    const rules = config({ strictAffinity: true });
    const records: RecordValue[] = [rules, poolRecord('p', '10.0.0.0/18', { blockSizeBits: 30 }), ...blocks.flat()];
    for (const record of records) view.set(keys.of(record), record);
    view.asked = 0;
    const asked = { request: request('c1', { nodeName: 'asking' }), nowMs: NOW_MS };
    expect(failureOf(() => allocate(view, asked)).message).toMatch(expected);
    expect(view.asked).toBeLessThan(20);
  });
});

const START = prefix('10.0.0.0/28').value;

function blockAt(place: number): Prefix {
  return { family: 4, value: START + BigInt(place) * 16n, length: 28 };
}

const EMPTY = block('10.0.0.0/28', 'n1');
const emptyAt = (place: number): Block => ({ ...EMPTY, prefix: blockAt(place) });

test('property: lists and counts neighbours, as reading each would', () => {
  // Enough for several runs: whole ranges are added and removed, in any order.
  const step = fc.record({ adds: fc.boolean(), from: fc.nat(3000), count: fc.nat(1500), isBackwards: fc.boolean() });
  const scenario = fc.record({
    steps: fc.array(step, { maxLength: 5 }),
    probes: fc.array(fc.nat(4600), { minLength: 3 }),
  });
  fc.assert(
    fc.property(scenario, ({ steps, probes }) => {
      let list = new BlockList();
      const known = new Map<number, Prefix>();
      for (const { adds, from, count, isBackwards } of steps) {
        for (let index = 0; index < count; index++) {
          const place = from + (isBackwards ? count - index : index);
          if (adds) known.set(place, blockAt(place));
          else known.delete(place);
          if (adds) list = list.with(emptyAt(place), undefined);
          else list = list.without(emptyAt(place));
        }
      }
      const all = [...known.values()].sort(comparePrefixes);
      for (const place of probes) {
        let count = 0;
        while (known.has(place + count)) count++;
        expect(list.consecutiveFrom(blockAt(place))).toBe(count);
        for (const length of [18, 23, 28]) {
          const hostBits = BigInt(32 - length);
          const range: Prefix = { family: 4, value: (blockAt(place).value >> hostBits) << hostBits, length };
          expect([...list.within(range)].map((each) => each.prefix)).toEqual(
            all.filter((each) => prefixContains(range, each)),
          );
        }
      }
    }),
    { numRuns: 60, verbose: fc.VerbosityLevel.Verbose },
  );
});

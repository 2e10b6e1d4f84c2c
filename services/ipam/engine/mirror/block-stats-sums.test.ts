import { formatAddress } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { allocate } from '../../addresses/allocate.js';
import { addStats, EMPTY_STATS, blockStats } from '../../records/block-stats.js';
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
import { BlockStatsSums } from './block-index.js';
import { IndexedRecords } from './snapshot.js';

const PLACES = 2048;
const cidrAt = (place: number): string => `${formatAddress({ family: 4, value: BigInt(0x0a000000 + place * 4) })}/30`;

test('property: the sums of any range are those of its blocks, after any additions, changes and removals', () => {
  const change = fc.record({ place: fc.nat(PLACES - 1), become: fc.constantFrom('full', 'empty', 'gone') });
  fc.assert(
    fc.property(
      fc.array(change, { maxLength: 60 }),
      fc.nat(PLACES - 1),
      fc.integer({ min: 16, max: 32 }),
      (changes, at, length) => {
        const [tallies, blocks] = [new BlockStatsSums(), new Map<number, Block>()];
        const put = (place: number, value: Block): void => {
          tallies.put(value);
          blocks.set(place, value);
        };
        for (let place = 0; place < PLACES; place += 2) put(place, FULL[place] ?? block(cidrAt(place), 'n1'));
        for (const { place, become } of changes) {
          if (become !== 'gone')
            put(place, become === 'full' ? fullBlock(cidrAt(place), 'n2') : block(cidrAt(place), 'n3'));
          else if (blocks.delete(place)) tallies.delete(prefix(cidrAt(place)));
        }
        const range = prefix(
          `${formatAddress({ family: 4, value: (BigInt(0x0a000000 + at * 4) >> BigInt(32 - length)) << BigInt(32 - length) })}/${length}`,
        );
        const isIn = ({ prefix: { value } }: Block): boolean =>
          length <= 30 && value >= range.value && value < range.value + (1n << BigInt(32 - length));
        expect(tallies.within(range)).toEqual(
          [...blocks.values()].filter(isIn).map(blockStats).reduce(addStats, EMPTY_STATS),
        );
      },
    ),
    { seed: 20261121, numRuns: 30 },
  );
});

const FULL = Array.from({ length: PLACES }, (_, place) => fullBlock(cidrAt(place), 'n1'));

function roomyBlock(cidr: string, nodeName: string): Block {
  const full = fullBlock(cidr, nodeName);
  return { ...full, allocations: full.allocations.with(0, null), unallocated: [0] };
}

/** Counts the blocks that it shows. */
class CountingImage extends IndexedRecords {
  shown = 0;

  override block(of: Prefix): Block | undefined {
    this.shown++;
    return super.block(of);
  }

  override *blocksIn(range: Prefix): Generator<Block, void, void> {
    for (const found of super.blocksIn(range)) {
      this.shown++;
      yield found;
    }
  }
}

describe('a refusal in a pool of 4,096 blocks', () => {
  test.each<[string, (cidr: string, node: string) => Block, RegExp]>([
    ['that are full', fullBlock, /all 4096 blocks are full \(16384 of 16384 addresses in use\)/],
    ['of others, with strict affinity', roomyBlock, /and 4092 more blocks of other owners/],
  ])('%s reads a few of them', (_, make, expected) => {
    const image = new CountingImage(keys, () => true);
    const blocks = Array.from({ length: 4096 }, (_, place) => claimedBlock(make(cidrAt(place), `node-${place % 500}`)));
    const rules = config({ strictAffinity: true });
    const records: RecordValue[] = [rules, poolRecord('p', '10.0.0.0/18', { blockSizeBits: 30 }), ...blocks.flat()];
    for (const record of records) image.set(keys.of(record), record);
    image.shown = 0;
    const asked = { request: request('c1', { nodeName: 'asking' }), nowMs: NOW_MS };
    expect(failureOf(() => allocate(image, asked)).message).toMatch(expected);
    expect(image.shown).toBeLessThan(20);
  });
});

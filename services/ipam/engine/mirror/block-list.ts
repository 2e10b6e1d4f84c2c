import { comparePrefixes, prefixContains, prefixSize, type Prefix } from '@podwire/shared/net/prefix';
import { lastIndex } from '@podwire/shared/words/order';

import {
  addStats,
  blockStats,
  EMPTY_STATS,
  hasFreeOrCooling,
  isIdle,
  isWithoutAffinity,
  subtractStats,
  type BlockStats,
} from '../../records/block-stats.js';
import type { Affinity, Block } from '../../records/block.js';
import { SortedList, type ListOrder, type Run } from '../sorted-list.js';

/** Kinds of blocks to search for: blocks with room, idle ones, or ones without an affinity (see `records/block-stats.ts`). */
export type BlockQuality = 'withRoom' | 'idle' | 'withoutAffinity';

interface Entry {
  readonly block: Block;
  readonly withoutAffinity: boolean;
  /** Kept with the block: counting them reads every allocation. */
  readonly stats: BlockStats;
}

interface Sum extends Readonly<Record<BlockQuality, number>> {
  readonly stats: BlockStats;
  /** Sum of the blocks' prefix lengths. */
  readonly lengths: number;
  /** Sum of the squares of the prefix lengths. */
  readonly squares: number;
}

const EMPTY: Sum = { stats: EMPTY_STATS, withRoom: 0, idle: 0, withoutAffinity: 0, lengths: 0, squares: 0 };

const ORDER: ListOrder<Entry, Prefix, Sum> = {
  keyOf: ({ block }) => block.prefix,
  compare: comparePrefixes,
  empty: EMPTY,
  add: (sum, entry) => combine(sum, entry, 1),
  subtract: (sum, entry) => combine(sum, entry, -1),
};

function combine(sum: Sum, entry: Entry, sign: 1 | -1): Sum {
  const { length } = entry.block.prefix;
  const count = (quality: BlockQuality): number => sum[quality] + (hasQuality(entry, quality) ? sign : 0);
  return {
    stats: (sign > 0 ? addStats : subtractStats)(sum.stats, entry.stats),
    withRoom: count('withRoom'),
    idle: count('idle'),
    withoutAffinity: count('withoutAffinity'),
    lengths: sum.lengths + sign * length,
    squares: sum.squares + sign * length * length,
  };
}

function hasQuality({ block, withoutAffinity }: Entry, quality: BlockQuality): boolean {
  if (quality === 'withoutAffinity') return withoutAffinity;
  return quality === 'idle' ? isIdle(block) : hasFreeOrCooling(block);
}

/**
 * All blocks in the order of their addresses. Immutable. Runs of blocks that lack what a search asks for are skipped in
 * one step, and so are the sums of ranges made.
 */
export class BlockList {
  readonly #entries: SortedList<Entry, Prefix, Sum>;

  constructor(entries = new SortedList<Entry, Prefix, Sum>(ORDER)) {
    this.#entries = entries;
  }

  /**
   * Adds a block, or replaces its state.
   * @param affinity - the owner's affinity for it
   */
  with(block: Block, affinity: Affinity | undefined): BlockList {
    const withoutAffinity = isWithoutAffinity(block, affinity);
    return new BlockList(this.#entries.with({ block, withoutAffinity, stats: blockStats(block) }));
  }

  without({ prefix }: Block): BlockList {
    return new BlockList(this.#entries.without(prefix));
  }

  /** The blocks within a range, in order. @param quality - only these. Default: all */
  *within(range: Prefix, quality?: BlockQuality): Generator<Block, void, void> {
    for (const { run, start } of this.#entries.runsFrom(range)) {
      if (!isWithin(range, run.items[start])) return;
      if (quality && run.sum[quality] === 0) continue;
      for (let index = start; index < run.items.length; index++) {
        const entry = run.items[index];
        if (!entry || !isWithin(range, entry)) return;
        if (!quality || hasQuality(entry, quality)) yield entry.block;
      }
    }
  }

  statsWithin(range: Prefix): BlockStats {
    let stats = EMPTY_STATS;
    for (const { run, start } of this.#entries.runsFrom(range)) {
      if (!isWithin(range, run.items[start])) break;
      if (start === 0 && isWithin(range, run.items.at(-1))) stats = addStats(stats, run.sum.stats);
      else for (const entry of run.items.slice(start)) if (isWithin(range, entry)) stats = addStats(stats, entry.stats);
    }
    return stats;
  }

  /** The number of blocks of this size that follow each other without a gap, from this one on. */
  consecutiveFrom(first: Prefix): number {
    let count = 0;
    for (const { run, start } of this.#entries.runsFrom(first)) {
      const next = { ...first, value: first.value + BigInt(count) * prefixSize(first) };
      const length = consecutive(run, start, next);
      count += length;
      if (start + length < run.items.length) break;
    }
    return count;
  }
}

function isWithin(range: Prefix, entry: Entry | undefined): boolean {
  return entry !== undefined && prefixContains(range, entry.block.prefix);
}

/** The number of consecutive blocks in a run, the first of which is expected at `start`. */
function consecutive({ items, sum }: Run<Entry, Sum>, start: number, first: Prefix): number {
  const size = prefixSize(first);
  const isExpected = (index: number): boolean => {
    const prefix = items[index]?.block.prefix;
    if (prefix?.family !== first.family || prefix.length !== first.length) return false;
    return prefix.value === first.value + BigInt(index - start) * size;
  };
  const isOneSize = items.length * sum.squares === sum.lengths ** 2;
  if (!isOneSize) {
    const end = items.findIndex((_, index) => index >= start && !isExpected(index));
    return (end < 0 ? items.length : end) - start;
  }
  if (isExpected(items.length - 1)) return items.length - start;
  // Blocks of one size that begin where expected have no gap before them.
  return lastIndex(items.slice(start), (_, offset) => isExpected(start + offset)) + 1;
}

import type { Block } from '../allocator/records.js';
import { mayGive } from '../allocator/spent.js';
import { attributesAt, usedCount } from './block.js';

/** What may be had of a block as far as its own record tells: whatever the time is, who asks, and what is reserved. */
export type Standing =
  /** Every address is in use. */
  | 'full'
  /** None is free, and some were released: they cool down, or become free with the block's next use. */
  | 'cooling'
  /** It has free addresses, and is a node's. */
  | 'host'
  /** It has free addresses, and is a virtual owner's. */
  | 'virtual'
  /** It has free addresses, and no owner. */
  | 'unowned';

/** Sums over blocks. */
export interface BlockTally {
  /** How many blocks stand so. */
  readonly standings: Readonly<Record<Standing, number>>;
  /** Addresses. */
  readonly size: number;
  /** Addresses that are not free. */
  readonly used: number;
  /** Those of them that were released. */
  readonly cooling: number;
}

export const NO_BLOCKS: BlockTally = {
  standings: { full: 0, cooling: 0, host: 0, virtual: 0, unowned: 0 },
  size: 0,
  used: 0,
  cooling: 0,
};

export function standingOf(block: Block): Standing {
  if (block.unallocated.length > 0) return block.owner?.kind ?? 'unowned';
  return mayGive(block) ? 'cooling' : 'full';
}

export function tallyOf(block: Block): BlockTally {
  return {
    standings: { ...NO_BLOCKS.standings, [standingOf(block)]: 1 },
    size: block.allocations.length,
    used: usedCount(block),
    cooling: coolingCount(block),
  };
}

export function addTallies(a: BlockTally, b: BlockTally): BlockTally {
  return combine(a, b, 1);
}

export function subtractTallies(a: BlockTally, b: BlockTally): BlockTally {
  return combine(a, b, -1);
}

export function countBlocks({ standings }: BlockTally): number {
  return standings.full + standings.cooling + standings.host + standings.virtual + standings.unowned;
}

/** Addresses of a block that were released and are not free yet. */
export function coolingCount(block: Block): number {
  if (block.attributes.every(({ releasedAtMs }) => releasedAtMs === undefined)) return 0;
  return block.allocations.filter((_, ordinal) => attributesAt(block, ordinal)?.releasedAtMs !== undefined).length;
}

function combine(a: BlockTally, b: BlockTally, sign: 1 | -1): BlockTally {
  return {
    standings: {
      full: a.standings.full + sign * b.standings.full,
      cooling: a.standings.cooling + sign * b.standings.cooling,
      host: a.standings.host + sign * b.standings.host,
      virtual: a.standings.virtual + sign * b.standings.virtual,
      unowned: a.standings.unowned + sign * b.standings.unowned,
    },
    size: a.size + sign * b.size,
    used: a.used + sign * b.used,
    cooling: a.cooling + sign * b.cooling,
  };
}

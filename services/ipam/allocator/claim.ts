import { familyBits } from '@podwire/shared/net/address';
import { prefixSize, type Prefix } from '@podwire/shared/net/prefix';

import { fnv1a32 } from './hash.js';
import { takenAcross } from './pools.js';
import type { Block, Pool } from './records.js';
import type { ReservedAddresses } from './reserved.js';
import type { View } from './view.js';

/**
 * The walk over a pool's possible blocks, from a start that the seed decides, once around. Its cost is that of the run of blocks
 * behind the start that exist already: nothing is listed, and the size of the pool does not matter.
 */

export interface Walk {
  readonly pool: Pool;
  /** Where to start: the same text, the same place. Different nodes start far apart, so that they seldom collide. */
  readonly seed: string;
  /** Blocks that are reserved as a whole are not met unless they exist. */
  readonly reserved: ReservedAddresses;
}

/** What a walk meets: a possible block that nobody has, or one that exists. */
export type Met =
  { readonly kind: 'unclaimed'; readonly prefix: Prefix } | { readonly kind: 'existing'; readonly block: Block };

/**
 * Every block of a pool that is possible or exists, once, in the order of the walk. Lazy: what is not asked for costs nothing, and
 * the blocks of a large pool cannot be counted.
 */
export function* walkBlocks(view: View, { pool, seed, reserved }: Walk): Generator<Met, void, void> {
  for (const part of partsFrom(pool, seed)) yield* walkPart(view, { pool, part, reserved });
}

/** The blocks that exist in a pool, once each, in the order of the walk. */
export function* existingBlocks(view: View, { pool, seed }: Omit<Walk, 'reserved'>): Generator<Block, void, void> {
  for (const part of partsFrom(pool, seed)) yield* view.blocksIn(part);
}

function* partsFrom(pool: Pool, seed: string): Generator<Prefix, void, void> {
  const count = blockCount(pool);
  if (count === 0n) return;
  const start = BigInt(fnv1a32(seed)) % count;
  yield* alignedParts(pool, { first: start, end: count });
  yield* alignedParts(pool, { first: 0n, end: start });
}

/** Number of blocks that fit into a pool; 0 for a pool that is smaller than one. */
export function blockCount({ prefix, blockSizeBits }: Pool): bigint {
  return blockSizeBits < prefix.length ? 0n : 1n << BigInt(blockSizeBits - prefix.length);
}

/** Blocks of a pool by their number, counted from 0. */
interface BlockRange {
  readonly first: bigint;
  /** Behind the last. */
  readonly end: bigint;
}

/** The range cut into prefixes, as few as can be, in order: at most two per bit of the range. */
function* alignedParts({ prefix, blockSizeBits }: Pool, { first, end }: BlockRange): Iterable<Prefix> {
  const hostBits = BigInt(familyBits(prefix.family) - blockSizeBits);
  for (let index = first; index < end;) {
    let bits = 0n;
    while ((index >> bits) % 2n === 0n && index + (1n << (bits + 1n)) <= end) bits++;
    yield { ...prefix, value: prefix.value + (index << hostBits), length: blockSizeBits - Number(bits) };
    index += 1n << bits;
  }
}

interface Part {
  readonly pool: Pool;
  readonly part: Prefix;
  readonly reserved: ReservedAddresses;
}

function* walkPart(view: View, { pool, part, reserved }: Part): Generator<Met, void, void> {
  const bits = familyBits(part.family);
  const step = 1n << BigInt(bits - pool.blockSizeBits);
  const end = part.value + (1n << BigInt(bits - part.length));
  const gap = { pool, step, reserved };
  let next = part.value;
  for (const block of view.blocksIn(part)) {
    yield* unclaimed(view, { ...gap, from: next, before: block.prefix.value });
    yield { kind: 'existing', block };
    const blockEnd = block.prefix.value + BigInt(block.allocations.length);
    const behind = part.value + ((blockEnd - part.value + step - 1n) / step) * step;
    if (behind > next) next = behind;
  }
  yield* unclaimed(view, { ...gap, from: next, before: end });
}

interface Gap {
  readonly pool: Pool;
  readonly reserved: ReservedAddresses;
  readonly step: bigint;
  readonly from: bigint;
  readonly before: bigint;
}

/**
 * The possible blocks of a gap between existing ones. A block around one (of another size) rules it out, and so do a block there that
 * cannot be read and a reservation of all of it; what either covers is stepped over at once.
 */
function* unclaimed(view: View, { pool, reserved, step, from, before }: Gap): Generator<Met, void, void> {
  for (let value = from; value < before;) {
    const prefix: Prefix = { family: pool.prefix.family, value, length: pool.blockSizeBits };
    const behind = value + step;
    if (reserved.coversAll(prefix)) {
      const free = reserved.nextFree(prefix);
      value += ((free - value) / step) * step;
      continue;
    }
    const across = takenAcross(view, prefix);
    if (!across) yield { kind: 'unclaimed', prefix };
    const acrossEnd = across ? across.value + prefixSize(across) : behind;
    value = acrossEnd > behind ? acrossEnd : behind;
  }
}

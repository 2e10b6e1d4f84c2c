import { familyBits } from '@podwire/shared/net/address';
import { prefixSize, type Prefix } from '@podwire/shared/net/prefix';

import type { Block } from '../records/block.js';
import type { Pool } from '../records/pool.js';
import { fnv1a32 } from '../records/versions.js';
import type { View } from '../records/view.js';
import type { ReservedAddresses } from '../reservations/reservations.js';
import { overlappingRange } from './lookup.js';

/**
 * Walks once around a pool's possible blocks, from a start that the seed decides. Existing blocks that cannot serve
 * cost no time, and neither does the size of the pool.
 */

interface WalkInput {
  readonly pool: Pool;
  /** Decides the start. Different nodes start far apart, so they seldom collide. */
  readonly seed: string;
  /** Blocks that are reserved as a whole are skipped unless they exist. */
  readonly reserved: ReservedAddresses;
}

/** A result of a walk: a possible block that is unclaimed, or an existing block without an affinity. */
export type WalkResult =
  { readonly kind: 'unclaimed'; readonly prefix: Prefix } | { readonly kind: 'existing'; readonly block: Block };

/**
 * Every unclaimed block of a pool, once, in the order of the walk: possible blocks, and existing blocks without an
 * affinity. Lazy, because the blocks of a large pool are too many to list.
 */
export function* walkBlocks(view: View, { pool, seed, reserved }: WalkInput): Generator<WalkResult, void, void> {
  const run = { from: 0n, end: 0n };
  for (const part of partsFrom(pool, seed)) yield* walkPart(view, { pool, part, reserved, run });
}

/** The blocks of a pool that have free or cooling addresses, once each, in the order of the walk. */
export function* blocksWithRoom(view: View, { pool, seed }: Omit<WalkInput, 'reserved'>): Generator<Block, void, void> {
  for (const part of partsFrom(pool, seed)) yield* view.blocksWithRoomIn(part);
}

/** The blocks of a pool that hosts own without an allocated address, once each, in the order of the walk. */
export function* idleBlocks(view: View, { pool, seed }: Omit<WalkInput, 'reserved'>): Generator<Block, void, void> {
  for (const part of partsFrom(pool, seed)) yield* view.idleBlocksIn(part);
}

function* partsFrom(pool: Pool, seed: string): Generator<Prefix, void, void> {
  const count = blockCount(pool);
  if (count === 0n) return;
  const start = BigInt(fnv1a32(seed)) % count;
  yield* alignedParts(pool, { first: start, end: count });
  yield* alignedParts(pool, { first: 0n, end: start });
}

/** Number of blocks that fit into a pool; 0 if the pool is smaller than a block. */
export function blockCount({ prefix, blockSizeBits }: Pool): bigint {
  return blockSizeBits < prefix.length ? 0n : 1n << BigInt(blockSizeBits - prefix.length);
}

/** Blocks of a pool by their number, counted from 0. */
interface BlockRange {
  readonly first: bigint;
  /** After the last one. */
  readonly end: bigint;
}

/** The range as the fewest possible prefixes, in order: at most two per bit of the range. */
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
  /** The last run of existing blocks: it may extend over the next parts. */
  readonly run: { from: bigint; end: bigint };
}

/** Both kinds in the order of their addresses. */
function* walkPart(view: View, within: Part): Generator<WalkResult, void, void> {
  const withoutAffinity = view.blocksWithoutAffinityIn(within.part)[Symbol.iterator]();
  let next = withoutAffinity.next();
  for (const prefix of unclaimed(view, within)) {
    for (; !next.done && next.value.prefix.value < prefix.value; next = withoutAffinity.next())
      yield { kind: 'existing', block: next.value };
    yield { kind: 'unclaimed', prefix };
  }
  for (; !next.done; next = withoutAffinity.next()) yield { kind: 'existing', block: next.value };
}

/**
 * The possible blocks of a part that are unclaimed. Existing blocks are skipped in runs. A surrounding block of another
 * size, an unreadable block, and a reservation of the whole block rule a block out; the range they cover is skipped in
 * one step.
 */
function* unclaimed(view: View, { pool, part, reserved, run }: Part): Generator<Prefix, void, void> {
  const step = 1n << BigInt(familyBits(part.family) - pool.blockSizeBits);
  const end = part.value + prefixSize(part);
  for (let value = run.end > part.value && run.from <= part.value ? run.end : part.value; value < end;) {
    const prefix: Prefix = { family: pool.prefix.family, value, length: pool.blockSizeBits };
    const next = value + step;
    const existing = view.consecutiveBlocks(prefix);
    if (existing > 0) {
      run.from = value;
      run.end = value + BigInt(existing) * step;
      value = run.end;
      continue;
    }
    if (reserved.coversAll(prefix)) {
      const free = reserved.nextFree(prefix);
      value += ((free - value) / step) * step;
      continue;
    }
    const across = overlappingRange(view, prefix);
    if (!across) yield prefix;
    const acrossEnd = across ? across.value + prefixSize(across) : next;
    value = acrossEnd > next ? acrossEnd : next;
  }
}

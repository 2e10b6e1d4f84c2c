import { familyBits } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import { fnv1a32 } from './hash.js';
import { overlappingBlock } from './pools.js';
import type { Block, Pool } from './records.js';
import type { View } from './view.js';

/**
 * The walk over a pool's possible blocks, from a start that the seed decides, once around. Its cost is that of the run of blocks
 * behind the start that exist already: nothing is listed, and the size of the pool does not matter.
 */

export interface Walk {
  readonly pool: Pool;
  /** Where to start: the same text, the same place. Different nodes start far apart, so that they seldom collide. */
  readonly seed: string;
  /** Whether a block that exists is one to use; the walk ends there as well. */
  readonly usable: (block: Block) => boolean;
}

/** Where a walk ended. */
export type Found =
  { readonly kind: 'unclaimed'; readonly prefix: Prefix } | { readonly kind: 'existing'; readonly block: Block };

/** The first possible block of the walk that nobody has, or that is usable. @returns undefined when there is none */
export function findBlock(view: View, { pool, seed, usable }: Walk): Found | undefined {
  const count = blockCount(pool);
  if (count === 0n) return undefined;
  const start = BigInt(fnv1a32(seed)) % count;
  const ranges = [
    { first: start, end: count },
    { first: 0n, end: start },
  ];
  for (const range of ranges) {
    for (const part of alignedParts(pool, range)) {
      const found = findWithin(view, { pool, part, usable });
      if (found) return found;
    }
  }
  return undefined;
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
  readonly usable: (block: Block) => boolean;
}

function findWithin(view: View, { pool, part, usable }: Part): Found | undefined {
  const bits = familyBits(part.family);
  const step = 1n << BigInt(bits - pool.blockSizeBits);
  const end = part.value + (1n << BigInt(bits - part.length));
  const candidate = (value: bigint): Prefix => ({ family: part.family, value, length: pool.blockSizeBits });
  let next = part.value;
  for (const block of view.blocksIn(part)) {
    const gap = firstUnclaimed(view, { from: next, before: block.prefix.value, step, candidate });
    if (gap) return { kind: 'unclaimed', prefix: gap };
    if (usable(block)) return { kind: 'existing', block };
    const blockEnd = block.prefix.value + BigInt(block.allocations.length);
    const behind = part.value + ((blockEnd - part.value + step - 1n) / step) * step;
    if (behind > next) next = behind;
  }
  const gap = firstUnclaimed(view, { from: next, before: end, step, candidate });
  return gap && { kind: 'unclaimed', prefix: gap };
}

interface Gap {
  readonly from: bigint;
  readonly before: bigint;
  readonly step: bigint;
  readonly candidate: (value: bigint) => Prefix;
}

/** The first candidate of a gap between existing blocks. A block around the candidate (of another size) rules it out. */
function firstUnclaimed(view: View, { from, before, step, candidate }: Gap): Prefix | undefined {
  for (let value = from; value < before;) {
    const prefix = candidate(value);
    const around = overlappingBlock(view, prefix);
    if (!around) return prefix;
    const aroundEnd = around.prefix.value + BigInt(around.allocations.length);
    value += step;
    if (aroundEnd > value) value = aroundEnd;
  }
  return undefined;
}

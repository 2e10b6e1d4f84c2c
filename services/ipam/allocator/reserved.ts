import { familyBits, type Address, type Family } from '@podwire/shared/net/address';
import { addressAt, ordinalOf, prefixSize, type Prefix } from '@podwire/shared/net/prefix';

import type { View } from '../records/view.js';
import type { Block, Ordinal, Reservation } from './records.js';

/**
 * The addresses that are never given unless asked for by themselves, as sorted ranges: reservations may nest and repeat, and one
 * of a /48 costs what one of a /32 does.
 */

/** Addresses that follow one another. */
interface Range {
  readonly first: bigint;
  /** Behind the last. */
  readonly end: bigint;
}

export class ReservedAddresses {
  /** In order, with at least one address between any two. */
  readonly #ranges: Readonly<Record<Family, readonly Range[]>>;

  constructor(prefixes: readonly Prefix[]) {
    this.#ranges = { 4: rangesOf(prefixes, 4), 6: rangesOf(prefixes, 6) };
  }

  /** Whether every address of the prefix is reserved. */
  coversAll(prefix: Prefix): boolean {
    if (this.#ranges[prefix.family].length === 0) return false;
    const { first, end } = rangeOf(prefix);
    const range = this.#from(prefix.family, first);
    return range !== undefined && range.first <= first && end <= range.end;
  }

  /** Whether any address of the prefix is reserved. */
  touches(prefix: Prefix): boolean {
    if (this.#ranges[prefix.family].length === 0) return false;
    const { first, end } = rangeOf(prefix);
    const range = this.#from(prefix.family, first);
    return range !== undefined && range.first < end;
  }

  has({ family, value }: Address): boolean {
    const range = this.#from(family, value);
    return range !== undefined && range.first <= value;
  }

  /** The first address at or behind the given one that is not reserved; as a number, as it may lie behind the family's last. */
  nextFree({ family, value }: Address): bigint {
    const range = this.#from(family, value);
    return range && range.first <= value ? range.end : value;
  }

  /** How many addresses of the prefix are reserved. */
  countIn(prefix: Prefix): bigint {
    const { first, end } = rangeOf(prefix);
    const ranges = this.#ranges[prefix.family];
    let count = 0n;
    for (let index = indexFrom(ranges, first); index < ranges.length; index++) {
      const range = ranges[index];
      if (!range || range.first >= end) break;
      count += (range.end < end ? range.end : end) - (range.first > first ? range.first : first);
    }
    return count;
  }

  /** What of a prefix is reserved, in as few prefixes as can be. */
  *partsIn(prefix: Prefix): Generator<Prefix, void, void> {
    const { first, end } = rangeOf(prefix);
    const ranges = this.#ranges[prefix.family];
    for (let index = indexFrom(ranges, first); index < ranges.length; index++) {
      const range = ranges[index];
      if (!range || range.first >= end) return;
      const [from, until] = [range.first > first ? range.first : first, range.end < end ? range.end : end];
      yield* alignedPrefixes(prefix.family, { first: from, end: until });
    }
  }

  /** The first range that ends behind the value. */
  #from(family: Family, value: bigint): Range | undefined {
    return this.#ranges[family][indexFrom(this.#ranges[family], value)];
  }
}

/** Answers of a function without other inputs, by the very list that they are of: a view shows the same one until it changes. */
const known = new WeakMap<readonly Reservation[], ReservedAddresses>();

export function reservedIn(view: View): ReservedAddresses {
  const reservations = view.reservations();
  const remembered = known.get(reservations);
  if (remembered) return remembered;
  const reserved = new ReservedAddresses(reservations.flatMap(({ prefixes }) => prefixes));
  known.set(reservations, reserved);
  return reserved;
}

/** The free ordinals of a block that are not reserved, in the order in which they are given. */
export function* givable(block: Block, reserved: ReservedAddresses): Generator<Ordinal, void, void> {
  if (reserved.coversAll(block.prefix)) return;
  const untouched = !reserved.touches(block.prefix);
  for (const ordinal of block.unallocated)
    if (untouched || !reserved.has(addressAt(block.prefix, ordinal))) yield ordinal;
}

/** The first of them. */
export function firstGivable(block: Block, reserved: ReservedAddresses): Ordinal | undefined {
  if (!reserved.touches(block.prefix)) return block.unallocated[0];
  return givable(block, reserved).next().value ?? undefined;
}

/** How many free addresses of a block are reserved. */
export function reservedFreeCount({ prefix, allocations }: Block, reserved: ReservedAddresses): number {
  let count = 0;
  for (const part of reserved.partsIn(prefix)) {
    const first = ordinalOf(prefix, part);
    const end = first + Number(prefixSize(part));
    for (let ordinal = first; ordinal < end; ordinal++) if ((allocations[ordinal] ?? null) === null) count++;
  }
  return count;
}

/** Whether a block has an address to give. */
export function hasRoom(block: Block, reserved: ReservedAddresses): boolean {
  return firstGivable(block, reserved) !== undefined;
}

function rangeOf(prefix: Prefix): Range {
  return { first: prefix.value, end: prefix.value + prefixSize(prefix) };
}

/** A range, cut into prefixes, each as large as its place and what is left allow. */
function* alignedPrefixes(family: Family, { first, end }: Range): Generator<Prefix, void, void> {
  const bits = familyBits(family);
  for (let value = first; value < end;) {
    let length = bits;
    for (let size = 2n; length > 0 && value % size === 0n && value + size <= end; size *= 2n) length--;
    yield { family, value, length };
    value += 1n << BigInt(bits - length);
  }
}

function rangesOf(prefixes: readonly Prefix[], family: Family): Range[] {
  const sorted = prefixes
    .filter((prefix) => prefix.family === family)
    .map(rangeOf)
    .sort((a, b) => (a.first < b.first ? -1 : a.first > b.first ? 1 : 0));
  const merged: Range[] = [];
  for (const range of sorted) {
    const last = merged.at(-1);
    if (!last || last.end < range.first) merged.push(range);
    else if (last.end < range.end) merged[merged.length - 1] = { first: last.first, end: range.end };
  }
  return merged;
}

/** Index of the first range that ends behind the value. */
function indexFrom(ranges: readonly Range[], value: bigint): number {
  let low = 0;
  for (let high = ranges.length; low < high;) {
    const middle = (low + high) >>> 1;
    const range = ranges[middle];
    if (range && range.end <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

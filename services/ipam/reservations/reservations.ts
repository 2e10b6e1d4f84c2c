import { familyBits, type Address, type Family } from '@podwire/shared/net/address';
import { addressAt, ordinalOf, prefixSize, type Prefix } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';
import { lastIndex } from '@podwire/shared/words/order';

import { NamedObjects } from '../named-objects/named-objects.js';
import { requireReadable } from '../records/absence.js';
import type { Block, Ordinal } from '../records/block.js';
import type { Reservation } from '../records/config.js';
import type { View } from '../records/view.js';

/** Reservations: addresses that are allocated only on explicit request. */

export const RESERVATIONS = new NamedObjects<Reservation, ReservationSpec>({
  noun: 'reservation',
  plural: 'reservations',
  key: 'reservation',
  exists: 'RESERVATION_EXISTS',
  notFound: 'RESERVATION_NOT_FOUND',
  all: (view) => view.reservations(),
  requireReadable: (view, name) => requireReadable(view, { kind: 'reservation', name }),
  make: (spec, identity) => ({ ...spec, ...identity }),
  put: (_, value) => [{ type: 'put', record: { kind: 'reservation', value } }],
  remove: (_, value) => [{ type: 'delete', record: { kind: 'reservation', value } }],
  describe: ({ prefixes }) => `of ${formatCount(prefixes.length, 'address or range', 'addresses or ranges')}`,
});

export type ReservationSpec = Pick<Reservation, 'name' | 'prefixes'>;

/**
 * The reserved addresses, as sorted ranges. Reservations may nest and repeat, and their size does not affect the cost.
 */

/** Consecutive addresses. */
interface Range {
  readonly first: bigint;
  /** Address after the last one. */
  readonly end: bigint;
}

export class ReservedAddresses {
  /** Ranges in order, with at least one address between any two. */
  readonly #ranges: Readonly<Record<Family, readonly Range[]>>;

  constructor(prefixes: readonly Prefix[]) {
    this.#ranges = { 4: rangesOf(prefixes, 4), 6: rangesOf(prefixes, 6) };
  }

  /** Whether every address of the prefix is reserved. */
  coversAll(prefix: Prefix): boolean {
    if (this.#ranges[prefix.family].length === 0) return false;
    const { first, end } = rangeOf(prefix);
    const range = this.#firstRangeAfter(prefix.family, first);
    return range !== undefined && range.first <= first && end <= range.end;
  }

  /** Whether any address of the prefix is reserved. */
  overlaps(prefix: Prefix): boolean {
    if (this.#ranges[prefix.family].length === 0) return false;
    const { first, end } = rangeOf(prefix);
    const range = this.#firstRangeAfter(prefix.family, first);
    return range !== undefined && range.first < end;
  }

  contains({ family, value }: Address): boolean {
    const range = this.#firstRangeAfter(family, value);
    return range !== undefined && range.first <= value;
  }

  /**
   * The first unreserved address at or after the given one. A number, because it may exceed the family's last address.
   */
  nextFree({ family, value }: Address): bigint {
    const range = this.#firstRangeAfter(family, value);
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

  /** The reserved parts of a prefix, as the fewest possible prefixes. */
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

  /** The first range that ends after the value. */
  #firstRangeAfter(family: Family, value: bigint): Range | undefined {
    return this.#ranges[family][indexFrom(this.#ranges[family], value)];
  }
}

/** Cache by list identity: a view returns the same list until it changes. */
const reservedAddressesByList = new WeakMap<readonly Reservation[], ReservedAddresses>();

export function reservedIn(view: View): ReservedAddresses {
  const reservations = view.reservations();
  const cached = reservedAddressesByList.get(reservations);
  if (cached) return cached;
  const reserved = new ReservedAddresses(reservations.flatMap(({ prefixes }) => prefixes));
  reservedAddressesByList.set(reservations, reserved);
  return reserved;
}

/** Reasons that keep free addresses from being allocated. */
export interface Exclusions {
  readonly reserved: ReservedAddresses;
  /** Its nodes' sessions list addresses that the nodes may give to pods, even if another writer released them. */
  readonly view: Pick<View, 'lessee'>;
}

/** The free ordinals of a block that are neither reserved nor in the list of a node, in allocation order. */
export function* freeOrdinals(block: Block, { reserved, view }: Exclusions): Generator<Ordinal, void, void> {
  if (reserved.coversAll(block.prefix)) return;
  const isUnreserved = !reserved.overlaps(block.prefix);
  for (const ordinal of block.unallocated) {
    const address = addressAt(block.prefix, ordinal);
    if ((isUnreserved || !reserved.contains(address)) && view.lessee(address) === undefined) yield ordinal;
  }
}

/** The first of the {@link freeOrdinals}. */
export function firstFreeOrdinal(block: Block, exclusions: Exclusions): Ordinal | undefined {
  return freeOrdinals(block, exclusions).next().value ?? undefined;
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

/** Whether a block has an address that can be allocated. */
export function hasRoom(block: Block, exclusions: Exclusions): boolean {
  return firstFreeOrdinal(block, exclusions) !== undefined;
}

function rangeOf(prefix: Prefix): Range {
  return { first: prefix.value, end: prefix.value + prefixSize(prefix) };
}

/** A range cut into prefixes, each as large as its alignment and the rest of the range allow. */
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

/** Index of the first range that ends after the value. */
function indexFrom(ranges: readonly Range[], value: bigint): number {
  return lastIndex(ranges, ({ end }) => end <= value) + 1;
}

import { compareAddresses, familyBits, type Address } from '../net/address.js';
import type { Prefix } from '../net/prefix.js';

/** Consecutive addresses of one family, both ends included. */
export interface AddressRange {
  readonly first: Address;
  readonly last: Address;
}

export function rangeOf({ family, value, length }: Prefix): AddressRange {
  const hostBits = BigInt(familyBits(family) - length);
  return { first: { family, value }, last: { family, value: value + (1n << hostBits) - 1n } };
}

/** The addresses of a prefix without the addresses of other prefixes, as disjoint sorted ranges. */
export function cut(prefix: Prefix, excepted: readonly Prefix[]): AddressRange[] {
  let left = [rangeOf(prefix)];
  for (const each of excepted) left = left.flatMap((range) => without(range, rangeOf(each)));
  return left;
}

function without({ first, last }: AddressRange, hole: AddressRange): AddressRange[] {
  const { family } = first;
  const isApart = hole.first.family !== family || hole.last.value < first.value || hole.first.value > last.value;
  if (isApart) return [{ first, last }];
  return [
    { first, last: { family, value: hole.first.value - 1n } },
    { first: { family, value: hole.last.value + 1n }, last },
  ].filter((part) => part.first.value <= part.last.value);
}

/** The same addresses as disjoint sorted ranges that do not touch, as interval sets of nftables require. */
export function merge(ranges: readonly AddressRange[]): AddressRange[] {
  const merged: AddressRange[] = [];
  for (const range of ranges.toSorted((a, b) => compareAddresses(a.first, b.first))) {
    const before = merged.at(-1);
    if (before?.last.family === range.first.family && range.first.value <= before.last.value + 1n) {
      if (range.last.value > before.last.value) merged[merged.length - 1] = { first: before.first, last: range.last };
    } else merged.push(range);
  }
  return merged;
}

export function includes({ first, last }: AddressRange, { family, value }: Address): boolean {
  return family === first.family && value >= first.value && value <= last.value;
}

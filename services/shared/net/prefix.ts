import { compareAddresses, familyBits, formatAddress, parseAddress, type Address, type Family } from './address.js';

/** A range of addresses: all that share their first `length` bits. The other bits of `value` are zero. */
export interface Prefix extends Address {
  /** Prefix length in bits: 0 to 32 for IPv4, 0 to 128 for IPv6. */
  readonly length: number;
}

/** Why a text is not a prefix. */
export type PrefixFault = 'not a CIDR' | 'has host bits set';

export type ParsedPrefix =
  { readonly ok: true; readonly prefix: Prefix } | { readonly ok: false; readonly fault: PrefixFault };

/** Parses `ADDRESS/LENGTH`. The length is required, without leading zeros. No host bit may be set. */
export function parsePrefix(text: string): ParsedPrefix {
  const parts = splitCidr(text);
  if (!parts) return { ok: false, fault: 'not a CIDR' };
  const prefix = prefixOf(parts.address, parts.length);
  return prefix.value === parts.address.value ? { ok: true, prefix } : { ok: false, fault: 'has host bits set' };
}

/** A prefix of the program itself. @throws Error when it is none */
export function constantPrefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text}: ${parsed.fault}`);
  return parsed.prefix;
}

/** Parses `ADDRESS/LENGTH` and keeps the host bits, as for an interface's address with its network's length. */
export function splitCidr(text: string): { readonly address: Address; readonly length: number } | undefined {
  const match = /^([^/]+)\/(0|[1-9]\d{0,2})$/.exec(text);
  const address = match?.[1] === undefined ? undefined : parseAddress(match[1]);
  const length = Number(match?.[2]);
  return address && length <= familyBits(address.family) ? { address, length } : undefined;
}

/** The prefix of a length, in bits, that contains an address. */
export function prefixOf(address: Address, length: number): Prefix {
  const hostBits = BigInt(familyBits(address.family) - length);
  return { family: address.family, value: (address.value >> hostBits) << hostBits, length };
}

/** The prefix that contains only this address. */
export function hostPrefix(address: Address): Prefix {
  return { family: address.family, value: address.value, length: familyBits(address.family) };
}

export function formatPrefix(prefix: Prefix): string {
  return `${formatAddress(prefix)}/${prefix.length}`;
}

/** Number of addresses in the prefix. */
export function prefixSize(prefix: Prefix): bigint {
  return 1n << BigInt(familyBits(prefix.family) - prefix.length);
}

/** Whether `outer` contains all of `inner`, an address or a prefix. A prefix contains itself. */
export function prefixContains(outer: Prefix, inner: Address | Prefix): boolean {
  const innerLength = 'length' in inner ? inner.length : familyBits(inner.family);
  return (
    outer.family === inner.family && outer.length <= innerLength && prefixOf(inner, outer.length).value === outer.value
  );
}

export function prefixesOverlap(a: Prefix, b: Prefix): boolean {
  return prefixContains(a, b) || prefixContains(b, a);
}

/** Orders by family, then first address, then length, shorter prefixes first. */
export function comparePrefixes(a: Prefix, b: Prefix): number {
  return compareAddresses(a, b) || a.length - b.length;
}

/** The address at an offset from the prefix's first. The caller ensures 0 <= ordinal < prefixSize. */
export function addressAt(prefix: Prefix, ordinal: number): Address {
  return { family: prefix.family, value: prefix.value + BigInt(ordinal) };
}

/** The offset of an address from the prefix's first; the inverse of {@link addressAt}. */
export function ordinalOf(prefix: Prefix, address: Address): number {
  return Number(address.value - prefix.value);
}

/** The default route's destination of a family. */
export function defaultRoute(family: Family): Prefix {
  return { family, value: 0n, length: 0 };
}

/** As text: an address for a prefix of full length. */
export function formatAddressOrPrefix(prefix: Prefix): string {
  return prefix.length === familyBits(prefix.family) ? formatAddress(prefix) : formatPrefix(prefix);
}

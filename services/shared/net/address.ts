import ipaddr from 'ipaddr.js';

/** An address family, named by its IP version. */
export type Family = 4 | 6;

export const FAMILIES: readonly Family[] = [4, 6];

/** An IP address as a number. Immutable; equal addresses have equal fields. */
export interface Address {
  readonly family: Family;
  /** The address in network byte order read as one integer: below 2^32 for IPv4, below 2^128 for IPv6. */
  readonly value: bigint;
}

/** First 96 bits of an IPv4-mapped address, ::ffff:0:0/96 (RFC 4291, section 2.5.5.2). */
const MAPPED = 0xffffn;

/** Dotted decimal of four parts without leading zeros. The parser checks that each fits a byte. */
const FOUR_PART_DECIMAL = /^(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})$/;

/** Number of bits in an address of the family: 32 or 128. */
export function familyBits(family: Family): number {
  return family === 4 ? 32 : 128;
}

/**
 * Parses an address in its usual text form: dotted decimal with four parts, or RFC 4291 section 2.2.
 * Zones (`fe80::1%eth0`), IPv4-mapped IPv6 addresses, the deprecated IPv4-compatible form (`::192.0.2.1`) and leading zeros in
 * decimal parts are not accepted, because each is ambiguous.
 * @returns undefined when the text is not such an address
 */
export function parseAddress(text: string): Address | undefined {
  return text.includes(':') ? parseIpv6(text) : parseIpv4(text);
}

/** The address of 4 or 16 bytes in network order. */
export function fromBytes(bytes: Uint8Array): Address {
  return { family: bytes.length === 4 ? 4 : 6, value: toInteger([...bytes]) };
}

/** Writes an address in its usual text form; IPv6 as RFC 5952 asks. */
export function formatAddress({ family, value }: Address): string {
  if (family === 4) {
    const bits = Number(value);
    return `${bits >>> 24}.${(bits >>> 16) & 0xff}.${(bits >>> 8) & 0xff}.${bits & 0xff}`;
  }
  const bytes: number[] = [];
  for (let shift = familyBits(family) - 8; shift >= 0; shift -= 8) bytes.push(Number((value >> BigInt(shift)) & 0xffn));
  return new ipaddr.IPv6(bytes).toRFC5952String();
}

/** Orders IPv4 before IPv6, and addresses of one family by value. */
export function compareAddresses(a: Address, b: Address): number {
  if (a.family !== b.family) return a.family - b.family;
  return a.value < b.value ? -1 : a.value > b.value ? 1 : 0;
}

/** Own parser, because every request and every stored record has addresses, and ipaddr.js parses each twice. */
function parseIpv4(text: string): Address | undefined {
  const parts = FOUR_PART_DECIMAL.exec(text);
  if (!parts) return undefined;
  let value = 0;
  for (let at = 1; at <= 4; at++) {
    const part = Number(parts[at]);
    if (part > 0xff) return undefined;
    value = value * 0x100 + part;
  }
  return { family: 4, value: BigInt(value) };
}

function parseIpv6(text: string): Address | undefined {
  if (text.includes('%') || !ipaddr.IPv6.isValid(text)) return undefined;
  const value = toInteger(ipaddr.IPv6.parse(text).toByteArray());
  const tail = text.slice(text.lastIndexOf(':') + 1);
  const ambiguousTail = tail.includes('.') && (parseIpv4(tail) === undefined || value >> 32n === 0n);
  return value >> 32n === MAPPED || ambiguousTail ? undefined : { family: 6, value };
}

function toInteger(bytes: readonly number[]): bigint {
  return bytes.reduce((value, byte) => (value << 8n) | BigInt(byte), 0n);
}

/** The families of the addresses, IPv4 first. */
export function familiesOf(addresses: readonly Address[]): Family[] {
  return ([4, 6] as const).filter((family) => addresses.some((address) => address.family === family));
}

/** The family of an address or a CIDR in its text form. */
export function familyOf(text: string): Family {
  return text.includes(':') ? 6 : 4;
}

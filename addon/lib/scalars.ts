/** Checks of single values. Each takes a caller's value of any type, and returns the addon's form. */
import { isIP } from 'node:net';

import { ArgumentError } from './errors.js';
import type { NativeSelector } from './native.js';
import type { AddressGeneration, RouteType, Scope } from './objects.js';

const MAC = /^[0-9a-f]{2}(:[0-9a-f]{2}){5}$/i;
const LINK_NAME_BYTES_MAX = 15;
const INDEX_MAX = 2 ** 31 - 1;

/** RT_SCOPE_* of linux/rtnetlink.h. */
const SCOPES: ReadonlyMap<unknown, number> = new Map<Scope, number>([
  ['global', 0],
  ['site', 200],
  ['link', 253],
  ['host', 254],
  ['nowhere', 255],
]);

/** RTN_* of linux/rtnetlink.h. */
const ROUTE_TYPES: ReadonlyMap<unknown, number> = new Map<RouteType, number>([
  ['unicast', 1],
  ['local', 2],
  ['broadcast', 3],
  ['multicast', 5],
  ['blackhole', 6],
  ['unreachable', 7],
  ['prohibit', 8],
]);

/** IN6_ADDR_GEN_MODE_* of linux/if_link.h. */
const ADDRESS_GENERATIONS: ReadonlyMap<unknown, number> = new Map<AddressGeneration, number>([
  ['eui64', 0],
  ['none', 1],
  ['stable-privacy', 2],
  ['random', 3],
]);

/** Protocols by name, as nft and conntrack accept them; other protocols have their number. */
export const PROTOCOLS: ReadonlyMap<string, number> = new Map([
  ['icmp', 1],
  ['tcp', 6],
  ['udp', 17],
  ['icmpv6', 58],
  ['sctp', 132],
]);

export interface Prefix {
  readonly address: string;
  readonly prefixLengthBits: number;
}

/** Applies a check to a present value, and turns an absent one into null. */
export function optional<Value>(value: unknown, check: (value: unknown) => Value): Value | null {
  return value === undefined ? null : check(value);
}

export function checkRecord(path: string, value: unknown): void {
  if (typeof value !== 'object' || value === null) throw new ArgumentError(path, 'must be an object');
}

export function checkArray(path: string, value: unknown): void {
  if (!Array.isArray(value)) throw new ArgumentError(path, 'must be an array');
}

export function checkText(path: string, value: unknown): string {
  if (typeof value !== 'string') throw new ArgumentError(path, 'must be a string');
  if (value.includes('\0')) throw new ArgumentError(path, 'must not hold a zero byte');
  return value;
}

export function checkFlag(path: string, value: unknown): boolean {
  if (value === undefined) return false;
  if (typeof value !== 'boolean') throw new ArgumentError(path, 'must be true or false');
  return value;
}

export interface Range {
  readonly min: number;
  readonly max: number;
}

export const UINT8: Range = { min: 0, max: 255 };
export const UINT32: Range = { min: 0, max: 2 ** 32 - 1 };
export const UINT32_POSITIVE: Range = { min: 1, max: 2 ** 32 - 1 };
/** Number of a routing table; 0 is none. */
export const TABLE = UINT32_POSITIVE;
/** Major number of a qdisc. */
export const HANDLE: Range = { min: 1, max: 2 ** 16 - 1 };
export const RATE: Range = { min: 1, max: Number.MAX_SAFE_INTEGER };
export const INDEX: Range = { min: 1, max: INDEX_MAX };
/** The kernel itself reports its narrower limits per kind of link. */
export const MTU: Range = { min: 1, max: INDEX_MAX };
export const VNI: Range = { min: 0, max: 2 ** 24 - 1 };
export const PORT: Range = { min: 1, max: 2 ** 16 - 1 };
/** rtnetlink's own limit. */
export const QUEUE_COUNT: Range = { min: 1, max: 4096 };

export function checkInteger(path: string, value: unknown, { min, max }: Range): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > max) {
    throw new ArgumentError(path, `must be a whole number from ${min} to ${max}`);
  }
  return value;
}

export function checkMac(path: string, value: unknown): string {
  if (typeof value !== 'string' || !MAC.test(value)) {
    throw new ArgumentError(path, 'must be a MAC address like ee:ee:ee:ee:ee:ee');
  }
  return value;
}

export function checkLinkName(path: string, value: unknown): string {
  const name = checkText(path, value);
  const bytes = Buffer.byteLength(name);
  if (bytes < 1 || bytes > LINK_NAME_BYTES_MAX) {
    throw new ArgumentError(path, `must have 1 to ${LINK_NAME_BYTES_MAX} bytes`);
  }
  if (name === '.' || name === '..' || /[/:\s]/.test(name)) {
    throw new ArgumentError(path, 'must not be "." or ".." nor hold a slash, a colon or a space');
  }
  return name;
}

export function checkAddress(path: string, value: unknown): string {
  if (typeof value !== 'string' || isIP(value) === 0 || value.includes('%')) {
    throw new ArgumentError(path, 'must be an IPv4 or IPv6 address');
  }
  return value;
}

export function checkIpv4Address(path: string, value: unknown): string {
  if (typeof value !== 'string' || isIP(value) !== 4) throw new ArgumentError(path, 'must be an IPv4 address');
  return value;
}

/** An address of the same family as another field's. */
export function checkAddressLike(path: string, value: unknown, other: string): string {
  const address = checkAddress(path, value);
  if (isIP(address) !== isIP(other)) throw new ArgumentError(path, `must be of the same family as ${other}`);
  return address;
}

export function checkPrefix(path: string, value: unknown): Prefix {
  const [address = '', length = '', ...rest] = typeof value === 'string' ? value.split('/') : [];
  const family = address.includes('%') ? 0 : isIP(address);
  const max = family === 4 ? 32 : 128;
  if (family === 0 || !/^\d{1,3}$/.test(length) || Number(length) > max || rest.length > 0) {
    throw new ArgumentError(path, 'must be an address with a prefix length like 10.65.0.2/32 or fd00::2/128');
  }
  return { address, prefixLengthBits: Number(length) };
}

export function checkScope(path: string, value: unknown): number {
  return SCOPES.get(value) ?? checkInteger(path, value, UINT8);
}

export function checkRouteType(path: string, value: unknown): number {
  return ROUTE_TYPES.get(value) ?? checkInteger(path, value, UINT8);
}

export function checkAddressGeneration(path: string, value: unknown): number {
  return ADDRESS_GENERATIONS.get(value) ?? checkInteger(path, value, UINT8);
}

export function checkSelector(path: string, value: unknown): NativeSelector {
  if (typeof value === 'object' && value !== null) {
    if ('name' in value && !('index' in value)) {
      return { index: 0, name: checkLinkName(`${path}.name`, value.name) };
    }
    if ('index' in value && !('name' in value)) {
      return { index: checkInteger(`${path}.index`, value.index, INDEX), name: null };
    }
  }
  throw new ArgumentError(path, 'must be an object with either a name or an index');
}

/** A path below /proc/sys; segments must not lead out of it. */
export function checkSysctlKey(path: string, value: unknown): string {
  if (!Array.isArray(value) || value.length === 0) {
    throw new ArgumentError(path, "must be an array of path segments like ['net', 'ipv4', 'ip_forward']");
  }
  const segments = value.map((segment: unknown, position) => {
    const text = checkText(`${path}[${position}]`, segment);
    if (text === '' || text === '.' || text === '..' || text.includes('/')) {
      throw new ArgumentError(`${path}[${position}]`, 'must not be empty, "." or "..", nor hold a slash');
    }
    return text;
  });
  return segments.join('/');
}

import { familyBits, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { parseMac, type Mac } from '@podwire/shared/net/mac';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

/** Request policies as values, and what pods ask for. All are immutable. Podwire's own: Calico has nothing like it. */

/** What pods of some namespaces may ask for. */
export interface RequestPolicy {
  readonly name: string;
  readonly uid: string;
  readonly createTimeMs: number;
  /** Names of namespaces that it is about. */
  readonly namespaces: readonly string[];
  /** Further ones by their labels; empty for none. Without this and names it is about all. */
  readonly namespaceSelector: string;
  readonly rules: RequestRules;
}

/** What a policy allows. Of a kind that is undefined it says nothing; an empty rule allows nothing. At least one is defined. */
export interface RequestRules {
  readonly pools: PoolRule | undefined;
  readonly addresses: readonly Prefix[] | undefined;
  readonly addressesWithoutIpam: readonly Prefix[] | undefined;
  readonly sourcePrefixes: readonly Prefix[] | undefined;
  readonly floatingIps: readonly Prefix[] | undefined;
  readonly macAddresses: readonly MacRange[] | undefined;
  readonly families: readonly Family[] | undefined;
}

export type RuleKind = keyof RequestRules;

/** The order in which requests are judged and reported. */
export const RULE_KINDS: readonly RuleKind[] = [
  'pools',
  'addresses',
  'addressesWithoutIpam',
  'sourcePrefixes',
  'floatingIps',
  'macAddresses',
  'families',
];

/** Allows pools that any of its fields names. */
export interface PoolRule {
  readonly names: readonly string[];
  /** Pools that lie in one of them. */
  readonly prefixes: readonly Prefix[];
  /** Pools whose labels match; empty for none. */
  readonly selector: string;
}

/** All policies, in the order of their names. They are one record: what is decided by them rests on one comparison. */
export type RequestPolicies = readonly RequestPolicy[];

/** Requests of a pod's author for items that IPAM does not allocate. */
export interface PodRequests {
  /** Those that the pod and not the network's configuration chose. */
  readonly families: readonly Family[];
  readonly addressesWithoutIpam: readonly Address[];
  readonly mac: Mac | undefined;
  readonly sourcePrefixes: readonly Prefix[];
  readonly floatingIps: readonly Address[];
}

export const NO_REQUESTS: PodRequests = {
  families: [],
  addressesWithoutIpam: [],
  mac: undefined,
  sourcePrefixes: [],
  floatingIps: [],
};

/** The source of a requested pool. */
export interface PoolChoice {
  /** As in the request's pools. */
  readonly pool: string;
  /** The requested family; undefined for either. */
  readonly family: Family | undefined;
  /** Whether the network's configuration names it, and no author of a pod. */
  readonly isConfigured: boolean;
}

/** What a rule allows, one text for each of its entries, as its writer would know it. */
export function allowedTexts(rules: RequestRules, kind: RuleKind): string[] {
  switch (kind) {
    case 'pools': {
      const { names = [], prefixes = [], selector = '' } = rules.pools ?? {};
      const named = names.map((name) => `"${name}"`);
      const inRanges = prefixes.map((prefix) => `in ${formatPrefix(prefix)}`);
      return [...named, ...inRanges, ...(selector === '' ? [] : [`with ${selector}`])];
    }
    case 'addresses':
    case 'addressesWithoutIpam':
    case 'sourcePrefixes':
    case 'floatingIps':
      return (rules[kind] ?? []).map(formatRange);
    case 'macAddresses':
      return (rules.macAddresses ?? []).map(formatMacRange);
    case 'families':
      return (rules.families ?? []).map((family) => `IPv${family}`);
  }
}

/** A range, or an address where it is one alone. */
export function formatRange(prefix: Prefix): string {
  return prefix.length === familyBits(prefix.family) ? formatAddress(prefix) : formatPrefix(prefix);
}

/** MAC addresses that share their first bits. The bits behind are zero in `value`. */
export interface MacRange {
  /** The 48 bits as a number. */
  readonly value: bigint;
  /** How many bits count: 0 to 48. */
  readonly length: number;
}

const MAC_BITS = 48;

const MAC_RANGE = /^([0-9a-f]{2}(?::[0-9a-f]{2}){5})(?:\/(0|[1-9]\d?))?$/i;

/** Reads `02:42:00:00:00:00/16`, or an address alone. @returns undefined when it is neither, or bits behind the length are set */
export function parseMacRange(text: string): MacRange | undefined {
  const [, mac, bits] = MAC_RANGE.exec(text) ?? [];
  const length = bits === undefined ? MAC_BITS : Number(bits);
  if (mac === undefined || length > MAC_BITS) return undefined;
  const value = valueOf(mac);
  // Alone, it has to be one that an interface can have.
  if (length === MAC_BITS) return parseMac(mac) === undefined ? undefined : { value, length };
  return maskBits(value, length) === value ? { value, length } : undefined;
}

export function formatMacRange({ value, length }: MacRange): string {
  const digits = value.toString(16).padStart(MAC_BITS / 4, '0');
  const mac = (digits.match(/../g) ?? []).join(':');
  return length === MAC_BITS ? mac : `${mac}/${length}`;
}

/** Whether an address, in its usual form, lies in the range. */
export function macInRange(mac: string, { value, length }: MacRange): boolean {
  return maskBits(valueOf(mac), length) === value;
}

function valueOf(mac: string): bigint {
  return BigInt(`0x${mac.replaceAll(':', '')}`);
}

function maskBits(value: bigint, length: number): bigint {
  const restBits = BigInt(MAC_BITS - length);
  return (value >> restBits) << restBits;
}

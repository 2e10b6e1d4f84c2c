import type { Address, Family } from '@podwire/shared/net/address';
import { parseMac, type Mac } from '@podwire/shared/net/mac';
import { formatAddressOrPrefix, formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

/** Request policies and the requests of pods, as immutable values. Specific to Podwire: Calico has no equivalent. */

/** Rules for the requests of pods of some namespaces. */
export interface RequestPolicy {
  readonly name: string;
  readonly uid: string;
  readonly createTimeMs: number;
  /** Names of the namespaces that it applies to. */
  readonly namespaces: readonly string[];
  /** Selects further namespaces by their labels; empty for none. Without selector and names, it applies to all. */
  readonly namespaceSelector: string;
  readonly rules: RequestRules;
}

/**
 * The rules of a policy. A missing rule does not restrict its kind; an empty rule allows nothing. At least one is
 * defined, unless the stored policy has only a retired rule.
 */
export interface RequestRules {
  readonly pools: PoolRule | undefined;
  readonly addresses: readonly Prefix[] | undefined;
  readonly addressesWithoutIpam: readonly Prefix[] | undefined;
  readonly sourcePrefixes: readonly Prefix[] | undefined;
  readonly macAddresses: readonly MacRange[] | undefined;
  readonly families: readonly Family[] | undefined;
}

export type RuleKind = keyof RequestRules;

/** The order in which requests are evaluated and reported. */
export const RULE_KINDS: readonly RuleKind[] = [
  'pools',
  'addresses',
  'addressesWithoutIpam',
  'sourcePrefixes',
  'macAddresses',
  'families',
];

/** Allows pools that match any of its fields. */
export interface PoolRule {
  readonly names: readonly string[];
  /** Pools that lie in one of them. */
  readonly prefixes: readonly Prefix[];
  /** Pools whose labels match; empty for none. */
  readonly selector: string;
}

/** All policies, in the order of their names. They are one record, so a decision needs one comparison. */
export type RequestPolicies = readonly RequestPolicy[];

/** Requests of a pod's author for items that IPAM does not allocate. */
export interface PodRequests {
  /** Families chosen by the pod, not by the network's configuration. */
  readonly families: readonly Family[];
  readonly addressesWithoutIpam: readonly Address[];
  readonly mac: Mac | undefined;
  readonly sourcePrefixes: readonly Prefix[];
}

export const NO_REQUESTS: PodRequests = {
  families: [],
  addressesWithoutIpam: [],
  mac: undefined,
  sourcePrefixes: [],
};

/** The source of a requested pool. */
export interface PoolChoice {
  /** Pool as in the request. */
  readonly pool: string;
  /** The requested family; undefined for either. */
  readonly family: Family | undefined;
  /** Whether the network's configuration names it, not the pod. */
  readonly isConfigured: boolean;
}

/** The allowed values of a rule, one text per entry, as its author wrote them. */
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
      return (rules[kind] ?? []).map(formatAddressOrPrefix);
    case 'macAddresses':
      return (rules.macAddresses ?? []).map(formatMacRange);
    case 'families':
      return (rules.families ?? []).map((family) => `IPv${family}`);
  }
}

/** MAC addresses with common first bits. The other bits of `value` are zero. */
export interface MacRange {
  /** The 48 bits as a number. */
  readonly value: bigint;
  /** Number of common bits: 0 to 48. */
  readonly length: number;
}

const MAC_BITS = 48;

const MAC_RANGE = /^([0-9a-f]{2}(?::[0-9a-f]{2}){5})(?:\/(0|[1-9]\d?))?$/i;

/**
 * Parses `02:42:00:00:00:00/16`, or a single address. @returns undefined for other texts, and when bits after the
 * length are set
 */
export function parseMacRange(text: string): MacRange | undefined {
  const [, mac, bits] = MAC_RANGE.exec(text) ?? [];
  const length = bits === undefined ? MAC_BITS : Number(bits);
  if (mac === undefined || length > MAC_BITS) return undefined;
  const value = valueOf(mac);
  // A single address must be valid for an interface.
  if (length === MAC_BITS) return parseMac(mac) === undefined ? undefined : { value, length };
  return maskBits(value, length) === value ? { value, length } : undefined;
}

export function formatMacRange({ value, length }: MacRange): string {
  const digits = value.toString(16).padStart(MAC_BITS / 4, '0');
  const mac = (digits.match(/../g) ?? []).join(':');
  return length === MAC_BITS ? mac : `${mac}/${length}`;
}

/** Whether an address in normalized form lies in the range. */
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

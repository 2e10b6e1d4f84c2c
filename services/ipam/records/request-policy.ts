import type { Address, Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { MacRange } from '../allocator/request-policy/mac-range.js';

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

/** In the order in which requests are judged and told. */
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

/** What the author of a pod asked for, and IPAM does not give. */
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

/** How a pool of a request came to be asked for. */
export interface PoolChoice {
  /** As in the request's pools. */
  readonly pool: string;
  /** The family that it was asked for as; undefined for either. */
  readonly family: Family | undefined;
  /** Whether the network's configuration names it, and no author of a pod. */
  readonly isConfigured: boolean;
}

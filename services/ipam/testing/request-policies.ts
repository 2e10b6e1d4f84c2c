import { parseAddress, type Address } from '@podwire/shared/net/address';

import type { PolicyInput } from '../request-policies/evaluation.js';
import {
  NO_REQUESTS,
  parseMacRange,
  type MacRange,
  type PodRequests,
  type RequestPolicy,
  type RequestRules,
} from '../records/request-policy.js';
import { TestView } from './test-view.js';
import { NOW_MS, pool, prefix } from './records.js';

/** Policies for tests: for all namespaces by default, with the given rules. */

interface RuleTexts {
  readonly pools?:
    | {
        readonly names?: readonly string[] | undefined;
        readonly cidrs?: readonly string[] | undefined;
        readonly selector?: string;
      }
    | undefined;
  readonly addresses?: readonly string[] | undefined;
  readonly addressesWithoutIpam?: readonly string[] | undefined;
  readonly sourcePrefixes?: readonly string[] | undefined;
  readonly macAddresses?: readonly string[] | undefined;
  readonly families?: readonly (4 | 6)[] | undefined;
}

export interface PolicyTexts extends RuleTexts {
  readonly namespaces?: readonly string[];
  readonly namespaceSelector?: string;
}

export function rules({ pools, macAddresses, families, ...ranges }: RuleTexts): RequestRules {
  return {
    pools: pools && {
      names: pools.names ?? [],
      prefixes: (pools.cidrs ?? []).map(prefix),
      selector: pools.selector ?? '',
    },
    addresses: ranges.addresses?.map(prefix),
    addressesWithoutIpam: ranges.addressesWithoutIpam?.map(prefix),
    sourcePrefixes: ranges.sourcePrefixes?.map(prefix),
    macAddresses: macAddresses?.map(macRange),
    families,
  };
}

export function policy(
  name: string,
  { namespaces = [], namespaceSelector = '', ...texts }: PolicyTexts,
): RequestPolicy {
  return { name, uid: `uid-${name}`, createTimeMs: NOW_MS, namespaces, namespaceSelector, rules: rules(texts) };
}

function macRange(text: string): MacRange {
  const range = parseMacRange(text);
  if (!range) throw new Error(`${text} is not a range of MAC addresses`);
  return range;
}

export function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} is not an address`);
  return parsed;
}

/** Pools `a` 10.0.0.0/30 with the label `team` of `blue`, `b` 10.0.0.4/30 and `six` fd00::/64, and policies. */
export function viewWith(...policies: readonly RequestPolicy[]): TestView {
  return new TestView([
    { kind: 'pool', value: pool('a', '10.0.0.0/30', { blockSizeBits: 30, labels: { team: 'blue' } }) },
    { kind: 'pool', value: pool('b', '10.0.0.4/30', { blockSizeBits: 30 }) },
    { kind: 'pool', value: pool('six', 'fd00::/64') },
    ...(policies.length === 0 ? [] : [{ kind: 'requestPolicies', value: policies } as const]),
  ]);
}

/** The requests of a pod of namespace `red`. */
export function policyInput(
  rest: Partial<Omit<PolicyInput, 'requests'>> & { requests?: Partial<PodRequests> } = {},
): PolicyInput {
  const { requests, ...fields } = rest;
  return {
    namespace: { name: 'red', labels: {} },
    pools: [],
    poolChoices: [],
    addresses: [],
    ...fields,
    requests: { ...NO_REQUESTS, ...requests },
  };
}

import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import { findPool } from '../pools/selection.js';
import { requireReadable } from '../records/absence.js';
import { NAME_LABEL } from '../records/names.js';
import type { Pool } from '../records/pool.js';
import {
  allowedTexts,
  macInRange,
  type PodRequests,
  type PoolChoice,
  type PoolRule,
  type RequestPolicy,
  type RequestRules,
  type RuleKind,
} from '../records/request-policy.js';
import type { Change, View } from '../records/view.js';
import type { Labels, Selector } from '../selectors/parser.js';
import { evaluate, matches, readSelector } from '../selectors/selector.js';

/** The verdict of the request policies on one requested item. */
export interface RequestVerdict {
  readonly kind: RuleKind;
  readonly value: string;
  readonly isAllowed: boolean;
  /** The policies that restrict it; empty when it is unrestricted. */
  readonly policyNames: readonly string[];
  /** The first of these policies that allows it. */
  readonly allowedBy: string | undefined;
  /** Reason of the denial, and the allowed values; empty when it is allowed. */
  readonly reason: string;
}

/**
 * Evaluates every requested item separately. An item is unrestricted if no policy for the namespace has a rule for it.
 * Otherwise one of those policies has to allow it. A policy whose applicability is unknown restricts, but does not
 * allow.
 * @throws Failure STORE_CORRUPT when an item is requested and the policies cannot be read
 */
export function evaluateRequests(view: View, policyInput: PolicyInput): RequestVerdict[] {
  const items = requestedItems(view, policyInput);
  if (items.length === 0) return [];
  requireReadable(view, { kind: 'requestPolicies' });
  const applicable = applicablePolicies(view, policyInput.namespace);
  return items.map((item) => evaluateItem(item, applicable, policyInput.namespace));
}

/**
 * Refuses a request with a denied item.
 * @returns comparisons for a decision with changes: the policies are unchanged at the commit
 * @throws Failure REQUEST_DENIED with every denied item; STORE_CORRUPT like {@link evaluateRequests}
 */
export function authorizeRequests(view: View, policyInput: PolicyInput): Change[] {
  const verdicts = evaluateRequests(view, policyInput);
  const denied = verdicts.filter(({ isAllowed }) => !isAllowed);
  if (denied.length > 0) throw deniedFailure(denied, policyInput.namespace);
  return verdicts.length === 0 ? [] : [expectPolicies(view)];
}

interface ApplicablePolicy {
  readonly policy: RequestPolicy;
  readonly applicability: Exclude<Applicability, 'no'>;
}

function applicablePolicies(view: View, namespace: Namespace): ApplicablePolicy[] {
  return view.requestPolicies().flatMap((policy) => {
    const applicability = applicabilityOf(policy, namespace);
    return applicability === 'no' ? [] : [{ policy, applicability }];
  });
}

function evaluateItem(
  { kind, value, subject, tests }: RequestedItem,
  applicable: readonly ApplicablePolicy[],
  of: Namespace,
): RequestVerdict {
  for (const test of tests) {
    const restricting = applicable.filter(({ policy }) => policy.rules[test.kind] !== undefined);
    if (restricting.length === 0) continue;
    const policyNames = restricting.map(({ policy }) => policy.name);
    const allowing = restricting.find(
      ({ policy, applicability }) => applicability === 'yes' && test.allows(policy.rules),
    );
    if (allowing) return { kind, value, isAllowed: true, policyNames, allowedBy: allowing.policy.name, reason: '' };
    const because = test.because === undefined ? subject : `${subject}, which ${test.because}`;
    const requester = of.name === '' ? 'a request without a pod' : `namespace "${of.name}"`;
    const reason = `${requester} may not request ${because}: ${restrictionText(restricting, test.kind)}`;
    return { kind, value, isAllowed: false, policyNames, allowedBy: undefined, reason };
  }
  return { kind, value, isAllowed: true, policyNames: [], allowedBy: undefined, reason: '' };
}

/** Limits of a text, which has to fit a header of a few kilobytes. */
const NAMED_POLICIES = 4;
const NAMED_ALLOWED = 8;
const NAMED_DENIED = 4;

function restrictionText(restricting: readonly ApplicablePolicy[], kind: RuleKind): string {
  const certain = restricting.filter(({ applicability }) => applicability === 'yes').map(({ policy }) => policy);
  const unknown = restricting.filter(({ applicability }) => applicability === 'unknown').map(({ policy }) => policy);
  const allowed = [...new Set(certain.flatMap(({ rules }) => allowedTexts(rules, kind)))];
  const parts = [];
  if (certain.length > 0) {
    const what = allowed.length === 0 ? 'no' : 'only';
    const list = allowed.length === 0 ? '' : ` ${listSome(allowed, NAMED_ALLOWED)}`;
    parts.push(
      `${policiesText(certain)} ${certain.length === 1 ? 'allows' : 'allow'} it ${what} ${NOUNS[kind]}${list}`,
    );
  }
  if (unknown.length > 0) {
    parts.push(
      `whether ${policiesText(unknown)} ${unknown.length === 1 ? 'applies' : 'apply'} depends on the namespace or its labels, which the runtime did not pass`,
    );
  }
  const step =
    unknown.length > 0 ? 'name the namespace in a policy that allows it' : 'request less, or change a policy';
  return `${parts.join(', and ')}; ${step}`;
}

const NOUNS: Readonly<Record<RuleKind, string>> = {
  pools: 'pools',
  addresses: 'addresses',
  addressesWithoutIpam: 'addresses without IPAM',
  sourcePrefixes: 'source prefixes',
  macAddresses: 'MAC addresses',
  families: 'families',
};

function policiesText(policies: readonly RequestPolicy[]): string {
  const names = listSome(
    policies.map(({ name }) => `"${name}"`),
    NAMED_POLICIES,
  );
  return `request ${policies.length === 1 ? 'policy' : 'policies'} ${names}`;
}

function listSome(texts: readonly string[], count: number): string {
  const more = texts.length > count ? [`and ${texts.length - count} more`] : [];
  return [...texts.slice(0, count), ...more].join(', ');
}

function deniedFailure(denied: readonly RequestVerdict[], { name }: Namespace): Failure {
  const more =
    denied.length > NAMED_DENIED
      ? [`and ${formatCount(denied.length - NAMED_DENIED, 'more request is', 'more requests are')} denied`]
      : [];
  const text = [...denied.slice(0, NAMED_DENIED).map(({ reason }) => reason), ...more].join('. ');
  const policies = [...new Set(denied.flatMap(({ policyNames }) => policyNames))];
  const details = { namespace: name, policies: listSome(policies, NAMED_POLICIES), requests: valuesText(denied) };
  return new Failure('REQUEST_DENIED', text, { details });
}

function valuesText(denied: readonly RequestVerdict[]): string {
  return listSome(
    denied.map(({ value }) => value),
    NAMED_ALLOWED,
  );
}

/** Compares that all policies are unchanged since the view. */
function expectPolicies(view: View): Change {
  return { type: 'expect', record: { kind: 'requestPolicies', value: view.requestPolicies() } };
}

/** A pod's namespace, as far as known. */
interface Namespace {
  /** Empty when unknown: a request without a pod. */
  readonly name: string;
  /** Empty when unknown: a namespace has at least the label with its name. */
  readonly labels: Labels;
}

/** The labels of a namespace, including its name's, which is always known. */
export function labelsWithName({ name, labels }: Namespace): Labels {
  return { ...labels, [NAME_LABEL]: name };
}

/** Whether a policy applies to a namespace; `unknown` when that depends on unknown labels. */
type Applicability = 'yes' | 'no' | 'unknown';

export function applicabilityOf({ namespaces, namespaceSelector }: RequestPolicy, namespace: Namespace): Applicability {
  if (namespaces.includes(namespace.name)) return 'yes';
  const isUnknown = namespace.name === '';
  if (namespaceSelector === '') return namespaces.length === 0 ? 'yes' : isUnknown ? 'unknown' : 'no';
  const selector = readSelector(namespaceSelector);
  // Stored selectors are valid, or their record cannot be read. An invalid one would restrict, which is the safe side.
  if (!selector) return 'unknown';
  const bySelector = areLabelsUnknown(namespace)
    ? evaluateByName(selector, namespace.name)
    : evaluate(selector, labelsWithName(namespace))
      ? 'yes'
      : 'no';
  return isUnknown && bySelector === 'no' && namespaces.length > 0 ? 'unknown' : bySelector;
}

function areLabelsUnknown({ labels }: Namespace): boolean {
  return Object.keys(labels).every((key) => key === NAME_LABEL);
}

/** Evaluates a selector for a namespace of which at most the name is known (Kleene's three-valued logic). */
export function evaluateByName(selector: Selector, name: string): Applicability {
  switch (selector.type) {
    case 'all':
    case 'global':
      return 'yes';
    case 'not':
      return OPPOSITE[evaluateByName(selector.operand, name)];
    case 'and':
      return weakest(selector.operands.map((operand) => evaluateByName(operand, name)));
    case 'or':
      return OPPOSITE[weakest(selector.operands.map((operand) => OPPOSITE[evaluateByName(operand, name)]))];
    case 'has':
    case 'equals':
    case 'notEquals':
    case 'contains':
    case 'startsWith':
    case 'endsWith':
    case 'in':
    case 'notIn':
      if (selector.key !== NAME_LABEL || name === '') return 'unknown';
      return evaluate(selector, { [NAME_LABEL]: name }) ? 'yes' : 'no';
  }
}

const OPPOSITE: Readonly<Record<Applicability, Applicability>> = { yes: 'no', no: 'yes', unknown: 'unknown' };

function weakest(concerns: readonly Applicability[]): Applicability {
  if (concerns.includes('no')) return 'no';
  return concerns.includes('unknown') ? 'unknown' : 'yes';
}

/** The requested items of a pod that policies may deny. */
export interface PolicyInput {
  readonly namespace: Namespace;
  /** Names or CIDRs. */
  readonly pools: readonly string[];
  readonly poolChoices: readonly PoolChoice[];
  /** Requested addresses. */
  readonly addresses: readonly Address[];
  readonly requests: PodRequests;
}

/** One requested item. */
interface RequestedItem {
  readonly kind: RuleKind;
  /** Its text (`second`, `10.65.0.7`). */
  readonly value: string;
  /** The text with its kind (`pool "second" 10.66.0.0/24`). */
  readonly subject: string;
  /** The tests in order of precedence: the first kind that a policy has a rule for decides. */
  readonly tests: readonly RuleTest[];
}

/** Whether rules of one kind allow the item. Rules without this kind allow nothing. */
interface RuleTest {
  readonly kind: RuleKind;
  readonly allows: (rules: RequestRules) => boolean;
  /** Why this kind applies to the item, if not obvious (`is of pool "second"`). */
  readonly because?: string;
}

/** The requested items. Pools that do not exist are left out, because nothing can be allocated from them. */
function requestedItems(view: View, { pools, poolChoices, addresses, requests }: PolicyInput): RequestedItem[] {
  const { families, addressesWithoutIpam, mac, sourcePrefixes } = requests;
  return [
    ...requestedPools(view, pools, poolChoices).map(poolItem),
    ...addresses.map((address) => addressItem(view, 'addresses', address)),
    ...addressesWithoutIpam.map((address) => addressItem(view, 'addressesWithoutIpam', address)),
    ...sourcePrefixes.map(sourcePrefixItem),
    ...(mac === undefined ? [] : [macItem(mac)]),
    ...families.map(familyItem),
  ];
}

/** The pools that the pod's author chose, each once. */
function requestedPools(view: View, pools: readonly string[], choices: readonly PoolChoice[]): Pool[] {
  const chosen = pools.filter((text) => {
    const known = choices.filter(({ pool }) => pool === text);
    return known.length === 0 || known.some(({ isConfigured }) => !isConfigured);
  });
  return [...new Set(chosen.flatMap((text) => findPool(view, text) ?? []))];
}

function poolItem(pool: Pool): RequestedItem {
  return { kind: 'pools', value: pool.name, subject: `pool ${poolText(pool)}`, tests: [poolTest([pool])] };
}

function poolTest(pools: readonly Pool[], because?: string): RuleTest {
  return {
    kind: 'pools',
    allows: ({ pools: rule }) =>
      rule !== undefined && pools.length > 0 && pools.every((pool) => allowsPool(rule, pool)),
    ...(because === undefined ? {} : { because }),
  };
}

function allowsPool({ names, prefixes, selector }: PoolRule, { name, prefix, labels }: Pool): boolean {
  return (
    names.includes(name) ||
    prefixes.some((range) => prefixContains(range, prefix)) ||
    (selector !== '' && matches(selector, labels).matches)
  );
}

/** A requested address must not bypass rules for pools, nor an address without IPAM the rules for addresses. */
function addressItem(view: View, kind: 'addresses' | 'addressesWithoutIpam', address: Address): RequestedItem {
  const value = formatAddress(address);
  const pools = view.pools().filter(({ prefix }) => prefixContains(prefix, address));
  const because = pools.length === 0 ? 'is of no pool' : `is of pool ${pools.map(poolText).join(' and ')}`;
  const own = kind === 'addresses' ? [] : [rangeTest('addressesWithoutIpam', address)];
  return {
    kind,
    value,
    subject: kind === 'addresses' ? `address ${value}` : `address ${value} without IPAM`,
    tests: [...own, rangeTest('addresses', address), poolTest(pools, because)],
  };
}

type RangeKind = 'addresses' | 'addressesWithoutIpam' | 'sourcePrefixes';

function sourcePrefixItem(prefix: Prefix): RequestedItem {
  const kind = 'sourcePrefixes';
  const value = formatPrefix(prefix);
  return { kind, value, subject: `source prefix ${value}`, tests: [rangeTest(kind, prefix)] };
}

function rangeTest(kind: RangeKind, requested: Address | Prefix): RuleTest {
  return { kind, allows: (rules) => rules[kind]?.some((range) => prefixContains(range, requested)) ?? false };
}

function macItem(mac: string): RequestedItem {
  const allows = ({ macAddresses }: RequestRules) => macAddresses?.some((range) => macInRange(mac, range)) ?? false;
  return { kind: 'macAddresses', value: mac, subject: `MAC address ${mac}`, tests: [{ kind: 'macAddresses', allows }] };
}

function familyItem(family: Family): RequestedItem {
  const allows = ({ families }: RequestRules) => families?.includes(family) ?? false;
  const value = `IPv${family}`;
  return { kind: 'families', value, subject: `family ${value}`, tests: [{ kind: 'families', allows }] };
}

function poolText({ name, prefix }: Pool): string {
  return `"${name}" ${formatPrefix(prefix)}`;
}

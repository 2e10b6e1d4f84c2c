import { Failure } from '@podwire/shared/failure/failure';
import { counted } from '@podwire/shared/words/counted';

import { allowedTexts } from '../allocator/request-policy/allowed-texts.js';
import { concernOf, type Concern, type Namespace } from '../allocator/request-policy/namespace.js';
import { pleasOf, type Petition, type Plea } from '../allocator/request-policy/petition.js';
import { requireReadable } from '../records/absence.js';
import type { RequestPolicy, RuleKind } from '../records/request-policy.js';
import type { Change, View } from '../records/view.js';

/** What request policies say of one thing that is asked for. */
export interface Judgement {
  readonly kind: RuleKind;
  readonly value: string;
  readonly isAllowed: boolean;
  /** Those that have a rule for it; empty where it is free. */
  readonly policyNames: readonly string[];
  /** The first of them that allows it. */
  readonly allowedBy: string | undefined;
  /** Why it may not be had, and what would be allowed; empty when it may. */
  readonly reason: string;
}

/**
 * Judges all that is asked for, each for itself. What no policy about the namespace has a rule for is free. What some have a rule for is
 * bound, and one of them has to allow it; a policy of which it is not known whether it is about the namespace binds and does not allow.
 * @throws Failure STORE_CORRUPT when something is asked for, and the policies cannot be read
 */
export function judge(view: View, petition: Petition): Judgement[] {
  const pleas = pleasOf(view, petition);
  if (pleas.length === 0) return [];
  requireReadable(view, { kind: 'requestPolicies' });
  const concerned = concernedPolicies(view, petition.namespace);
  return pleas.map((plea) => judgePlea(plea, concerned, petition.namespace));
}

/**
 * Lets through what is allowed.
 * @returns what the permission rests on, for a decision that changes something: the policies are as they were seen
 * @throws Failure REQUEST_DENIED that tells all that is not; STORE_CORRUPT as {@link judge}
 */
export function permit(view: View, petition: Petition): Change[] {
  const judgements = judge(view, petition);
  const denied = judgements.filter(({ isAllowed }) => !isAllowed);
  if (denied.length > 0) throw denial(denied, petition.namespace);
  return judgements.length === 0 ? [] : [expectPolicies(view)];
}

interface Concerned {
  readonly policy: RequestPolicy;
  readonly concern: Exclude<Concern, 'no'>;
}

function concernedPolicies(view: View, namespace: Namespace): Concerned[] {
  return view.requestPolicies().flatMap((policy) => {
    const concern = concernOf(policy, namespace);
    return concern === 'no' ? [] : [{ policy, concern }];
  });
}

function judgePlea({ kind, value, subject, tests }: Plea, concerned: readonly Concerned[], of: Namespace): Judgement {
  for (const test of tests) {
    const binding = concerned.filter(({ policy }) => policy.rules[test.kind] !== undefined);
    if (binding.length === 0) continue;
    const policyNames = binding.map(({ policy }) => policy.name);
    const allowing = binding.find(({ policy, concern }) => concern === 'yes' && test.allows(policy.rules));
    if (allowing) return { kind, value, isAllowed: true, policyNames, allowedBy: allowing.policy.name, reason: '' };
    const because = test.because === undefined ? subject : `${subject}, which ${test.because}`;
    const reason = `namespace "${of.name}" may not ask for ${because}: ${boundText(binding, test.kind)}`;
    return { kind, value, isAllowed: false, policyNames, allowedBy: undefined, reason };
  }
  return { kind, value, isAllowed: true, policyNames: [], allowedBy: undefined, reason: '' };
}

/** At most so many are named in a text, which has to fit a header of a few kilobytes. */
const NAMED_POLICIES = 4;
const NAMED_ALLOWED = 8;
const NAMED_DENIED = 4;

function boundText(binding: readonly Concerned[], kind: RuleKind): string {
  const certain = binding.filter(({ concern }) => concern === 'yes').map(({ policy }) => policy);
  const unknown = binding.filter(({ concern }) => concern === 'unknown').map(({ policy }) => policy);
  const allowed = [...new Set(certain.flatMap(({ rules }) => allowedTexts(rules, kind)))];
  const parts = [];
  if (certain.length > 0) {
    const what = allowed.length === 0 ? 'no' : 'only';
    const list = allowed.length === 0 ? '' : ` ${some(allowed, NAMED_ALLOWED)}`;
    parts.push(
      `${policiesText(certain)} ${certain.length === 1 ? 'allows' : 'allow'} it ${what} ${NOUNS[kind]}${list}`,
    );
  }
  if (unknown.length > 0) {
    parts.push(
      `whether ${policiesText(unknown)} ${unknown.length === 1 ? 'is' : 'are'} about it depends on labels of the namespace, which the runtime did not pass on`,
    );
  }
  const step =
    unknown.length > 0 ? 'name the namespace in a policy that allows it' : 'ask for less, or change a policy';
  return `${parts.join(', and ')}; ${step}`;
}

const NOUNS: Readonly<Record<RuleKind, string>> = {
  pools: 'pools',
  addresses: 'addresses',
  addressesWithoutIpam: 'addresses without IPAM',
  sourcePrefixes: 'source prefixes',
  floatingIps: 'floating IPs',
  macAddresses: 'MAC addresses',
  families: 'families',
};

function policiesText(policies: readonly RequestPolicy[]): string {
  const names = some(
    policies.map(({ name }) => `"${name}"`),
    NAMED_POLICIES,
  );
  return `request ${policies.length === 1 ? 'policy' : 'policies'} ${names}`;
}

function some(texts: readonly string[], count: number): string {
  const more = texts.length > count ? [`and ${texts.length - count} more`] : [];
  return [...texts.slice(0, count), ...more].join(', ');
}

function denial(denied: readonly Judgement[], { name }: Namespace): Failure {
  const more =
    denied.length > NAMED_DENIED
      ? [`and ${counted(denied.length - NAMED_DENIED, 'more request is', 'more requests are')} denied`]
      : [];
  const text = [...denied.slice(0, NAMED_DENIED).map(({ reason }) => reason), ...more].join('. ');
  const policies = [...new Set(denied.flatMap(({ policyNames }) => policyNames))];
  const details = { namespace: name, policies: some(policies, NAMED_POLICIES), requests: valuesText(denied) };
  return new Failure('REQUEST_DENIED', text, { details });
}

function valuesText(denied: readonly Judgement[]): string {
  return some(
    denied.map(({ value }) => value),
    NAMED_ALLOWED,
  );
}

/** The policies, all of them or none, are still what the view shows. */
function expectPolicies(view: View): Change {
  return { type: 'expect', record: { kind: 'requestPolicies', value: view.requestPolicies() } };
}

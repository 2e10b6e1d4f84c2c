import { Failure } from '@podwire/shared/failure/failure';
import type { Address } from '@podwire/shared/net/address';
import { judge, type Connection, type Judgement, type SetLookup } from '@podwire/shared/network-policy/evaluate';
import type { Profile } from '@podwire/shared/network-policy/policy';

import type { Member } from './address-sets.js';
import type { IndexedPod } from './pod-index.js';
import type { PodName } from './pods.js';
import type { NodePod, SharedProfile } from './profiles.js';
import {
  faultyPoliciesOf,
  policyNode,
  type PolicyNode,
  type PolicyState,
  type PolicyStatus,
  type PolicySummary,
} from './status.js';

/** One end of a connection. */
export type PolicyEnd = { readonly pod: PodName } | { readonly address: Address };

export interface PolicyQuestion {
  readonly source: PolicyEnd;
  readonly destination: PolicyEnd;
  /** IANA's number of the protocol. */
  readonly protocol: number;
  /** A number, or a name of the destination pod; undefined for protocols without ports. */
  readonly port: number | string | undefined;
}

export interface ExplainedEnd {
  /** Undefined: the address is of no pod. */
  readonly pod: PodName | undefined;
  /** Undefined without a pod, and before it is scheduled. */
  readonly node: PolicyNode | undefined;
}

/** One pair of addresses, with a judgement for each end that policies restrict. */
export interface ExplainedConnection extends Connection {
  readonly judgements: readonly Judgement[];
}

export interface Explanation {
  readonly isAllowed: boolean;
  readonly source: ExplainedEnd;
  readonly destination: ExplainedEnd;
  readonly connections: readonly ExplainedConnection[];
  /** Policies of both pods with invalid parts. */
  readonly faultyPolicies: readonly PolicySummary[];
}

/** Questions of operators about network policies. The methods throw the failure with which a node may not follow. */
export interface PolicyInspection {
  explain(question: PolicyQuestion): Explanation;
  status(): PolicyStatus;
  /** @param namespace - undefined: every policy */
  list(namespace: string | undefined): readonly PolicySummary[];
}

/** An end with what the judgement needs. */
interface ResolvedEnd {
  readonly addresses: readonly Address[];
  readonly indexed: IndexedPod | undefined;
  readonly profiles: NodePod | undefined;
}

/**
 * Judges a new connection by the present policies, for each pair of addresses of one family.
 * @throws Failure ENDPOINT_NOT_FOUND without a pod or a pair; INVALID_REQUEST for an unknown name of a port; UNREACHABLE while
 * the namespace of a pod is not read
 */
export function explain(question: PolicyQuestion, state: PolicyState): Explanation {
  const source = resolve(question.source, state);
  const destination = resolve(question.destination, state);
  const destinationPort = portOf(question, destination.indexed);
  const pairs = source.addresses.flatMap((from) =>
    destination.addresses.flatMap((to) => (from.family === to.family ? [{ source: from, destination: to }] : [])),
  );
  if (pairs.length === 0)
    throw new Failure('ENDPOINT_NOT_FOUND', 'source and destination: have no addresses of one family; see their pods');
  // A pod's connections to itself are not filtered.
  const isSamePod = source.indexed !== undefined && source.indexed === destination.indexed;
  const egress = isSamePod ? undefined : source.profiles?.egress;
  const ingress = isSamePod ? undefined : destination.profiles?.ingress;
  const ends = { egress: egress?.profile, ingress: ingress?.profile };
  const sets = lookup([egress, ingress].flatMap((shared) => shared ?? []));
  const connections = pairs.map((pair): ExplainedConnection => {
    const connection = { ...pair, protocol: question.protocol, destinationPort };
    const judgements = judge(ends, connection, sets);
    return { ...connection, judgements: judgements.map((each) => withPolicyPosition(each, ends[each.direction])) };
  });
  return {
    isAllowed: connections.every(({ judgements }) => judgements.every(({ isAllowed }) => isAllowed)),
    source: explainedEnd(source, state),
    destination: explainedEnd(destination, state),
    connections,
    faultyPolicies: faultyPoliciesOf(
      [source, destination].flatMap(({ indexed }) => indexed ?? []),
      state.profiles,
    ),
  };
}

function resolve(end: PolicyEnd, { profiles }: PolicyState): ResolvedEnd {
  const indexed = 'pod' in end ? profiles.pods.find(end.pod) : podWith(end.address, profiles.pods.pods());
  if (!indexed) {
    if ('address' in end) return { addresses: [end.address], indexed: undefined, profiles: undefined };
    const hint = 'policies know no finished pods and no pods with hostNetwork';
    throw new Failure('ENDPOINT_NOT_FOUND', `pod ${keyOf(end.pod)}: is not known; check its name: ${hint}`);
  }
  const { pod, members } = indexed;
  const nodePod = profiles.podOf(pod.nodeName, keyOf(pod));
  if (!nodePod)
    throw new Failure('UNREACHABLE', `namespace ${pod.namespace}: is not read from the API server yet; try again`);
  const addresses = 'pod' in end ? members.map(({ value }) => value.address) : [end.address];
  if (addresses.length === 0)
    throw new Failure('ENDPOINT_NOT_FOUND', `pod ${keyOf(pod)}: has no address yet; try again when it runs`);
  return { addresses, indexed, profiles: nodePod };
}

function podWith(address: Address, pods: Iterable<IndexedPod>): IndexedPod | undefined {
  for (const indexed of pods) if (indexed.members.some((member) => hasAddress(member, address))) return indexed;
  return undefined;
}

function hasAddress({ value: { address } }: Member, { family, value }: Address): boolean {
  return address.value === value && address.family === family;
}

function portOf({ port, protocol }: PolicyQuestion, destination: IndexedPod | undefined): number | undefined {
  if (typeof port !== 'string') return port;
  const named = destination?.pod.ports.find((each) => each.name === port && each.protocol === protocol);
  if (named) return named.port;
  const subject = destination ? `pod ${keyOf(destination.pod)}` : 'destination';
  throw new Failure('INVALID_REQUEST', `port "${port}": ${subject} has none of this name and protocol; use its number`);
}

function explainedEnd({ indexed }: ResolvedEnd, state: PolicyState): ExplainedEnd {
  if (!indexed) return { pod: undefined, node: undefined };
  const { nodeName, namespace, name } = indexed.pod;
  return { pod: { namespace, name }, node: nodeName === '' ? undefined : policyNode(nodeName, state) };
}

/** The judgement with the position of its rule in the rule's own policy. */
function withPolicyPosition(judgement: Judgement, profile: Profile | undefined): Judgement {
  const { rule } = judgement;
  if (!rule || !profile) return judgement;
  const rules = { admin: profile.admin, policy: profile.rules, baseline: profile.baseline }[rule.tier];
  const position = rules.slice(0, rule.position).filter(({ policy }) => policy === rule.policy).length;
  return { ...judgement, rule: { ...rule, position } };
}

function lookup(profiles: readonly SharedProfile[]): SetLookup {
  const known = new Map(profiles.flatMap(({ sets }) => sets.map((set) => [set.id, set])));
  const membersWith = (id: string, address: Address): readonly Member[] =>
    [...(known.get(id)?.members ?? [])].filter((member) => hasAddress(member, address));
  return {
    hasAddress: (id, address) => membersWith(id, address).length > 0,
    hasPort: (id, address, protocol, port) =>
      membersWith(id, address).some(
        ({ value }) => 'port' in value && value.protocol === protocol && value.port === port,
      ),
  };
}

function keyOf({ namespace, name }: PodName): string {
  return `${namespace}/${name}`;
}

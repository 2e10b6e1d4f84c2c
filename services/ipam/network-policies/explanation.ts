import { Failure } from '@podwire/shared/failure/failure';
import type { Address } from '@podwire/shared/net/address';
import {
  judge,
  nearMisses,
  type Connection,
  type Judgement,
  type MatchedRule,
  type NearMiss,
  type SetLookup,
} from '@podwire/shared/network-policy/evaluate';
import type { Direction, Profile } from '@podwire/shared/network-policy/policy';

import type { Member } from './address-sets.js';
import type { IndexedPod } from './pod-index.js';
import { formatPodName, type PodName } from './pods.js';
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
  /** The node of the pod, or with the address; undefined before the pod is scheduled, and for an address of neither. */
  readonly node: PolicyNode | undefined;
}

/** One pair of addresses, with a judgement for each end that policies restrict. */
export interface ExplainedConnection extends Connection {
  readonly judgements: readonly ExplainedJudgement[];
}

/** Positions of rules are in the rule's own policy. */
export interface ExplainedJudgement extends Judgement {
  /** Why the policies in `isolatedBy` do not allow the connection. */
  readonly nearMisses: readonly ExplainedMiss[];
}

export interface ExplainedMiss extends NearMiss {
  /** Names of ports of the connection's protocol in the rule that the destination does not have. */
  readonly missingPortNames: readonly string[];
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

/** Names of the nodes that have an address. An address of an interface may be on several nodes. */
export type NodeLookup = (address: Address) => readonly string[];

/** An end with the values that the judgement needs. */
interface ResolvedEnd {
  readonly addresses: readonly Address[];
  /** Names of the node of the pod, or of the nodes with the address. */
  readonly nodeNames: readonly string[];
  readonly indexed: IndexedPod | undefined;
  readonly profiles: NodePod | undefined;
}

/**
 * Judges a new connection by the present policies, for each pair of addresses of one family.
 * @throws Failure ENDPOINT_NOT_FOUND without a pod or a pair; INVALID_REQUEST for an unknown name of a port; UNREACHABLE while
 * the namespace of a pod is not read
 */
export function explain(question: PolicyQuestion, state: PolicyState, nodesWith: NodeLookup): Explanation {
  const source = resolve(question.source, state, nodesWith);
  const destination = resolve(question.destination, state, nodesWith);
  const { protocol } = question;
  const destinationPort = portOf(question, destination.indexed);
  const pairs = source.addresses.flatMap((from) =>
    destination.addresses.flatMap((to) => (from.family === to.family ? [{ source: from, destination: to }] : [])),
  );
  if (pairs.length === 0)
    throw new Failure('ENDPOINT_NOT_FOUND', 'source and destination: have no addresses of one family; see their pods');
  const isFiltered = !isUnfiltered(source, destination);
  const egress = isFiltered ? source.profiles?.egress : undefined;
  const ingress = isFiltered ? destination.profiles?.ingress : undefined;
  const ends = { egress: egress?.profile, ingress: ingress?.profile };
  const sets = lookup([egress, ingress].flatMap((shared) => shared ?? []));
  const connections = pairs.map((pair): ExplainedConnection => {
    const connection = { ...pair, protocol, destinationPort };
    const judgements = judge(ends, connection, sets).flatMap((judgement): ExplainedJudgement[] => {
      const profile = ends[judgement.direction];
      if (!profile) return [];
      const { direction, rule, passedBy, isolatedBy } = judgement;
      const misses = isolatedBy.length > 0 ? nearMisses(profile, connection, sets) : [];
      return [
        {
          ...judgement,
          rule: rule && withPolicyPosition(rule, profile),
          passedBy: passedBy && withPolicyPosition(passedBy, profile),
          nearMisses: misses.flatMap((miss) => explainMiss(miss, { direction, protocol }, destination.indexed, state)),
        },
      ];
    });
    return { ...connection, judgements };
  });
  return {
    isAllowed: connections.every(({ judgements }) => judgements.every(({ isAllowed }) => isAllowed)),
    source: explainedEnd(source, destination, state),
    destination: explainedEnd(destination, source, state),
    connections,
    faultyPolicies: faultyPoliciesOf(
      [source, destination].flatMap(({ indexed }) => indexed ?? []),
      state.profiles,
    ),
  };
}

/** Nodes do not filter connections of a pod to itself, or between a pod and its own node. */
function isUnfiltered(source: ResolvedEnd, destination: ResolvedEnd): boolean {
  if (source.indexed && destination.indexed) return source.indexed === destination.indexed;
  return source.nodeNames.some((name) => destination.nodeNames.includes(name));
}

function resolve(end: PolicyEnd, { profiles }: PolicyState, nodesWith: NodeLookup): ResolvedEnd {
  const indexed = 'pod' in end ? profiles.pods.find(end.pod) : podWith(end.address, profiles.pods.pods());
  if (!indexed) {
    if ('address' in end) {
      const nodeNames = nodesWith(end.address);
      return { addresses: [end.address], nodeNames, indexed: undefined, profiles: undefined };
    }
    const hint = 'policies know no finished pods and no pods with hostNetwork';
    const serviceHint = 'a Service has no policies: name a pod behind it';
    throw new Failure(
      'ENDPOINT_NOT_FOUND',
      `pod ${formatPodName(end.pod)}: is not known; check its name: ${hint}; ${serviceHint}`,
    );
  }
  const { pod, members } = indexed;
  const nodePod = profiles.podOf(pod.nodeName, formatPodName(pod));
  if (!nodePod)
    throw new Failure('UNREACHABLE', `namespace ${pod.namespace}: is not read from the API server yet; try again`);
  const addresses = 'pod' in end ? members.map(({ value }) => value.address) : [end.address];
  if (addresses.length === 0)
    throw new Failure('ENDPOINT_NOT_FOUND', `pod ${formatPodName(pod)}: has no address yet; try again when it runs`);
  return { addresses, nodeNames: pod.nodeName === '' ? [] : [pod.nodeName], indexed, profiles: nodePod };
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
  const subject = destination ? `pod ${formatPodName(destination.pod)}` : 'destination';
  throw new Failure('INVALID_REQUEST', `port "${port}": ${subject} has none of this name and protocol; use its number`);
}

/** @param other - its node is preferred among several nodes with the address */
function explainedEnd({ indexed, nodeNames }: ResolvedEnd, other: ResolvedEnd, state: PolicyState): ExplainedEnd {
  const nodeName = nodeNames.find((name) => other.nodeNames.includes(name)) ?? nodeNames[0];
  return {
    pod: indexed && { namespace: indexed.pod.namespace, name: indexed.pod.name },
    node: nodeName === undefined ? undefined : policyNode(nodeName, state),
  };
}

/** The rule with its position in its own policy. */
function withPolicyPosition(rule: MatchedRule, profile: Profile): MatchedRule {
  const rules = { admin: profile.admin, policy: profile.rules, baseline: profile.baseline }[rule.tier];
  const position = rules.slice(0, rule.position).filter(({ policy }) => policy === rule.policy).length;
  return { ...rule, position };
}

/** @returns an empty list where a limit isolates the pod, which is no policy */
function explainMiss(
  miss: NearMiss,
  { direction, protocol }: { readonly direction: Direction; readonly protocol: number },
  destination: IndexedPod | undefined,
  { profiles }: PolicyState,
): readonly ExplainedMiss[] {
  const spec = profiles.specOf(miss.policy);
  if (!spec) return [];
  const { position } = miss;
  const names = position === undefined ? [] : (spec.rules[direction]?.[position]?.ports?.names ?? []);
  const known = (destination?.pod.ports ?? []).filter((port) => port.protocol === protocol).map(({ name }) => name);
  const missing = names.filter((port) => port.protocol === protocol && !known.includes(port.name));
  return [{ ...miss, missingPortNames: missing.map(({ name }) => name) }];
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

import { DIRECTIONS, type Direction } from '@podwire/shared/network-policy/policy';
import { compareTexts } from '@podwire/shared/words/order';

import type { IndexedPod, Selection } from './pod-index.js';
import type { PolicySpec } from './policy-spec.js';
import type { Profiles } from './profiles.js';

/** How far a node is. Durations are in milliseconds. */
export interface NodeProgress {
  readonly isFollowing: boolean;
  /** For how long it follows, or does not; undefined: it has not followed this process. */
  readonly forMs: number | undefined;
  readonly sentNumber: number;
  readonly acknowledgedNumber: number;
  /** For how long it has acknowledged nothing, though a message waits; undefined: none waits. */
  readonly behindForMs: number | undefined;
  /** Whether this is longer than a healthy node takes. */
  readonly isBehind: boolean;
}

/** A node as operators see it. */
export interface PolicyNode extends NodeProgress {
  readonly name: string;
  readonly podsCount: number;
  /** Pods that a policy restricts. */
  readonly restrictedPodsCount: number;
}

/** A policy as operators see it. */
export interface PolicySummary extends Pick<PolicySpec, 'name' | 'tier' | 'priority' | 'faults'> {
  readonly podsCount: number;
  /** Undefined: the policy does not concern the direction. */
  readonly ruleCounts: Readonly<Record<Direction, number | undefined>>;
}

export interface PolicyStatus {
  readonly nodes: readonly PolicyNode[];
  readonly networkPoliciesCount: number;
  /** Undefined: the API server has no definition of ClusterNetworkPolicy. */
  readonly clusterNetworkPoliciesCount: number | undefined;
  readonly faultyPolicies: readonly PolicySummary[];
}

/** The compiled policies, and the nodes that follow them. */
export interface PolicyState {
  readonly profiles: Profiles;
  /** Names of the nodes that follow. */
  readonly followers: Iterable<string>;
  progressOf(nodeName: string): NodeProgress;
}

export function policyStatus(state: PolicyState, definesClusterPolicies: boolean): PolicyStatus {
  const names = new Set([...state.followers, ...state.profiles.pods.nodeNames()]);
  const policies = listPolicies(state.profiles);
  const clusterNetworkPoliciesCount = policies.filter(({ tier }) => tier !== 'policy').length;
  return {
    nodes: [...names].sort(compareTexts).map((name) => policyNode(name, state)),
    networkPoliciesCount: policies.length - clusterNetworkPoliciesCount,
    clusterNetworkPoliciesCount: definesClusterPolicies ? clusterNetworkPoliciesCount : undefined,
    faultyPolicies: policies.filter(({ faults }) => faults.length > 0),
  };
}

export function policyNode(name: string, state: PolicyState): PolicyNode {
  const { profiles } = state;
  const keys = [...profiles.pods.podsOf(name).keys()];
  const restricted = keys.filter((key) => {
    const pod = profiles.podOf(name, key);
    return DIRECTIONS.some((direction) => pod?.[direction]);
  });
  return { name, ...state.progressOf(name), podsCount: keys.length, restrictedPodsCount: restricted.length };
}

/**
 * Sorted by name.
 * @param namespace - only NetworkPolicies of this namespace; undefined: all policies
 */
export function listPolicies(profiles: Profiles, namespace?: string): readonly PolicySummary[] {
  return summaries(
    [...profiles.policies].filter(({ spec }) => namespace === undefined || spec.namespace === namespace),
  );
}

/** The policies with faults that select one of the pods. */
export function faultyPoliciesOf(pods: readonly IndexedPod[], profiles: Profiles): readonly PolicySummary[] {
  return summaries(
    [...profiles.policies].filter(
      ({ spec, subject }) => spec.faults.length > 0 && pods.some((pod) => subject.pods.has(pod)),
    ),
  );
}

function summaries(policies: readonly { readonly spec: PolicySpec; readonly subject: Selection }[]): PolicySummary[] {
  return policies
    .map(({ spec, subject }) => {
      const { name, tier, priority, faults, rules } = spec;
      const ruleCounts = { ingress: rules.ingress?.length, egress: rules.egress?.length };
      return { name, tier, priority, faults, podsCount: subject.pods.size, ruleCounts };
    })
    .sort((a, b) => compareTexts(a.name, b.name));
}

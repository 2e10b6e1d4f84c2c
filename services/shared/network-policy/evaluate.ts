import type { Address } from '../net/address.js';
import type { Direction, PolicyRule, Profile } from './policy.js';
import { includes } from './ranges.js';

/** A connection, by its first packet. The destination is the one after any translation. */
export interface Connection {
  readonly source: Address;
  readonly destination: Address;
  /** IANA's number of the protocol. */
  readonly protocol: number;
  /** Port; undefined for protocols without ports. */
  readonly destinationPort: number | undefined;
}

/** Members of sets. A set that is not known has none. */
export interface SetLookup {
  hasAddress(set: string, address: Address): boolean;
  hasPort(set: string, address: Address, protocol: number, port: number): boolean;
}

/** Profiles of the pods at both ends; undefined: an end that no policy restricts in that direction. */
export interface Ends {
  readonly egress: Profile | undefined;
  readonly ingress: Profile | undefined;
}

/** Why a connection passes a profile, or does not. */
export interface Judgement {
  readonly direction: Direction;
  readonly isAllowed: boolean;
  /**
   * The deciding rule: its policy and its position among the rules of its tier, counted from 0; undefined: no rule matched.
   */
  readonly rule: { readonly policy: string; readonly tier: Tier; readonly position: number } | undefined;
  /** NetworkPolicies that isolate the pod, when that decided. */
  readonly isolatedBy: readonly string[];
}

export type Tier = 'admin' | 'policy' | 'baseline';

/**
 * Judges a new connection in both directions: the source's egress first, then the destination's ingress. Replies of an allowed
 * connection pass without a judgement, as do packets between a pod and itself or its own node.
 * @returns one judgement for each end with a profile; the connection is allowed if all of them are
 */
export function judge({ egress, ingress }: Ends, connection: Connection, sets: SetLookup): readonly Judgement[] {
  return [egress, ingress].flatMap((profile) => (profile ? [judgeEnd(profile, connection, sets)] : []));
}

export function isAllowed(ends: Ends, connection: Connection, sets: SetLookup): boolean {
  return judge(ends, connection, sets).every((judgement) => judgement.isAllowed);
}

function judgeEnd(profile: Profile, connection: Connection, sets: SetLookup): Judgement {
  const { direction, isolatedBy } = profile;
  const tiers: readonly (readonly [Tier, readonly PolicyRule[]])[] = [
    ['admin', profile.admin],
    ['policy', profile.rules],
    // A NetworkPolicy decides finally for the pods that it isolates.
    ['baseline', isolatedBy.length > 0 ? [] : profile.baseline],
  ];
  for (const [tier, rules] of tiers) {
    const position = rules.findIndex((rule) => matches(rule, direction, connection, sets));
    const rule = rules[position];
    if (rule && rule.action !== 'pass') {
      const isAccepted = rule.action === 'accept';
      return { direction, isAllowed: isAccepted, rule: { policy: rule.policy, tier, position }, isolatedBy: [] };
    }
  }
  return { direction, isAllowed: isolatedBy.length === 0, rule: undefined, isolatedBy };
}

function matches({ peers, ports }: PolicyRule, direction: Direction, connection: Connection, sets: SetLookup): boolean {
  const { source, destination, protocol, destinationPort: port } = connection;
  const peer = direction === 'ingress' ? source : destination;
  const hasPeer =
    peers === undefined ||
    peers.networks.some((range) => includes(range, peer)) ||
    peers.sets.some((set) => sets.hasAddress(set, peer));
  if (!hasPeer || ports === undefined) return hasPeer;
  if (port === undefined) return false;
  return (
    ports.ranges.some((range) => range.protocol === protocol && port >= range.first && port <= range.last) ||
    ports.sets.some((set) => sets.hasPort(set, destination, protocol, port))
  );
}

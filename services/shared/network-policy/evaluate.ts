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
  /** The deciding rule; undefined: no rule matched. */
  readonly rule: MatchedRule | undefined;
  /** The rule with the action `pass` by which the connection left tier Admin. */
  readonly passedBy: MatchedRule | undefined;
  /** NetworkPolicies that isolate the pod, when that decided. */
  readonly isolatedBy: readonly string[];
}

export interface MatchedRule {
  readonly policy: string;
  readonly tier: Tier;
  /** Position among the rules of the tier, counted from 0. */
  readonly position: number;
}

export type Tier = 'admin' | 'policy' | 'baseline';

/** The rule of a NetworkPolicy that comes closest to a connection that it does not allow. */
export interface NearMiss {
  readonly policy: string;
  /** Position among the rules of the policy, counted from 0; undefined: the policy has no rule. */
  readonly position: number | undefined;
  readonly matchesPeer: boolean;
  readonly matchesPort: boolean;
}

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
  let passedBy: MatchedRule | undefined;
  for (const [tier, rules] of tiers) {
    const position = rules.findIndex(
      (rule) => matchesPeer(rule, direction, connection, sets) && matchesPort(rule, connection, sets),
    );
    const rule = rules[position];
    if (!rule) continue;
    const matched = { policy: rule.policy, tier, position };
    if (rule.action !== 'pass')
      return { direction, isAllowed: rule.action === 'accept', rule: matched, passedBy, isolatedBy: [] };
    if (tier === 'admin') passedBy = matched;
  }
  return { direction, isAllowed: isolatedBy.length === 0, rule: undefined, passedBy, isolatedBy };
}

/** Explains the denial of a connection that no rule matches: one rule of each NetworkPolicy that isolates the pod. */
export function nearMisses(profile: Profile, connection: Connection, sets: SetLookup): readonly NearMiss[] {
  const { direction, isolatedBy, rules } = profile;
  return isolatedBy.map((policy) => {
    const misses = rules
      .filter((rule) => rule.policy === policy)
      .map((rule, position): NearMiss => {
        const hasPeer = matchesPeer(rule, direction, connection, sets);
        return { policy, position, matchesPeer: hasPeer, matchesPort: matchesPort(rule, connection, sets) };
      });
    const none = { policy, position: undefined, matchesPeer: false, matchesPort: false };
    return misses.find((each) => each.matchesPeer) ?? misses.find((each) => each.matchesPort) ?? misses[0] ?? none;
  });
}

function matchesPeer({ peers }: PolicyRule, direction: Direction, connection: Connection, sets: SetLookup): boolean {
  const peer = direction === 'ingress' ? connection.source : connection.destination;
  return (
    peers === undefined ||
    peers.networks.some((range) => includes(range, peer)) ||
    peers.sets.some((set) => sets.hasAddress(set, peer))
  );
}

function matchesPort({ ports }: PolicyRule, connection: Connection, sets: SetLookup): boolean {
  const { destination, protocol, destinationPort: port } = connection;
  if (ports === undefined) return true;
  if (port === undefined) return false;
  return (
    ports.ranges.some((range) => range.protocol === protocol && port >= range.first && port <= range.last) ||
    ports.sets.some((set) => sets.hasPort(set, destination, protocol, port))
  );
}

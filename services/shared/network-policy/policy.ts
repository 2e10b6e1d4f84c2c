import { hash } from 'node:crypto';

import { formatAddress, type Address } from '../net/address.js';
import type { AddressRange } from './ranges.js';

/** Direction of a connection, as the filtered pod sees it. */
export type Direction = 'ingress' | 'egress';

export const DIRECTIONS: readonly Direction[] = ['ingress', 'egress'];

/** Effect of a rule on a connection that it matches. `pass` leaves the rule's tier. */
export type RuleAction = 'accept' | 'deny' | 'pass';

/** Ports of one protocol, both ends included. 0 to 65535 is every port. */
export interface PortRange {
  /** IANA's number of the protocol: 6 TCP, 17 UDP, 132 SCTP. */
  readonly protocol: number;
  readonly first: number;
  readonly last: number;
}

/**
 * One rule. It matches a connection if one of its peers has the other end, and one of its ports the destination.
 * Sets are named by their IDs; their members change without a change of the rule.
 */
export interface PolicyRule {
  /** The policy, as an operator finds it: `NetworkPolicy default/web`. */
  readonly policy: string;
  readonly action: RuleAction;
  /** Undefined: every address, also outside the cluster. An empty list matches none. */
  readonly peers:
    | {
        /** IDs of address sets. */
        readonly sets: readonly string[];
        /** Disjoint and sorted. */
        readonly networks: readonly AddressRange[];
      }
    | undefined;
  /** Undefined: every protocol and port. An empty list matches none. */
  readonly ports:
    | {
        readonly ranges: readonly PortRange[];
        /** IDs of port sets, for ports that policies name. */
        readonly sets: readonly string[];
      }
    | undefined;
}

/**
 * The rules of a pod in one direction, compiled from the policies that select it. Pods with the same policies share a
 * profile. A connection passes the tiers in this order: `admin`, `rules`, `baseline`.
 */
export interface Profile {
  /** Hash of the content. */
  readonly id: string;
  readonly direction: Direction;
  /** Tier Admin of ClusterNetworkPolicy: the first matching rule decides. */
  readonly admin: readonly PolicyRule[];
  /** NetworkPolicies that isolate the pod in this direction; if there are any, connections without a matching rule are denied. */
  readonly isolatedBy: readonly string[];
  /** Rules of these NetworkPolicies, all with the action `accept`. Their order has no meaning. */
  readonly rules: readonly PolicyRule[];
  /** Tier Baseline of ClusterNetworkPolicy, for pods that no NetworkPolicy isolates: the first matching rule decides. */
  readonly baseline: readonly PolicyRule[];
}

/** An address with its allocation's number: a late removal never removes the next holder of the address. */
export interface SetMember {
  readonly address: Address;
  readonly sequenceNumber: bigint;
}

/** A member of a port set: a pod's port with a name. */
export interface PortMember extends SetMember {
  readonly protocol: number;
  readonly port: number;
}

/** Bytes of the SHA-256 that a member's hash has. */
const HASH_BYTES = 8;

/**
 * The hash of a set's member. The digest of a set is the sum of these hashes modulo 2^64: a node and podwire-ipam compute it of
 * their own copies, member by member, and equal sets are not sent again.
 */
export function memberHash(member: SetMember | PortMember): bigint {
  const { address, sequenceNumber } = member;
  const [protocol, port] = 'port' in member ? [member.protocol, member.port] : [0, 0];
  const text = `${formatAddress(address)} ${sequenceNumber} ${protocol} ${port}`;
  return BigInt(`0x${hash('sha256', text, 'hex').slice(0, 2 * HASH_BYTES)}`);
}

import { compareTexts } from '@podwire/shared/words/order';

import type { Condition } from '../routes/wanted.js';

/** Why something cannot be routed, with how to say so. `subject` is a node's name, a pool's or a family's, as `about` tells. */
const TELL = {
  NodeUnknown: (node: string, what: string) =>
    `node ${node} is not registered in IPAM, so ${what} has no route: register the node, or release what it holds`,
  NodeAddressMissing: (node: string, what: string) =>
    `node ${node} has no address of the family of ${what}: set the node's address`,
  NodeAddressConflict: (node: string, what: string) =>
    `node ${node} is registered with this node's own address, so ${what} has no route: delete the stale registration or ` +
    `correct its address`,
  NodeAddressInBlock: (node: string, what: string) =>
    `${what} holds the address of its own node ${node}, so a tunnel there would lead into itself: keep node addresses out of ` +
    `the pools`,
  TunnelAddressMissing: (node: string, what: string) =>
    `node ${node} has no tunnel address, so ${what} has no route: its dataplane asks IPAM for one when it registers; look at ` +
    `its log, and whether the pools have addresses left`,
  NotOnLink: (node: string, what: string) =>
    `${what} is without encapsulation, but its node ${node} is in another subnet and no router of this node leads there: use ` +
    `cross-subnet encapsulation for the pool, BIRD (PODWIRE_ROUTING=bird), or a route to a router that knows the block`,
  PoolMissing: (_: string, what: string) =>
    `the pool of ${what} does not exist, so it is routed as if without encapsulation: make the pool again, or release the block`,
  IpipIpv6: (pool: string, what: string) =>
    `pool ${pool} asks for IPIP, which carries IPv4 alone, so ${what} has no route: use VXLAN for the pool`,
} as const;

export type ComplaintReason = keyof typeof TELL;

/** One destination that has no route, or not the one it should have. */
export interface Complaint {
  readonly reason: ComplaintReason;
  /** Name of the node or the pool that it is about; complaints with the same are told as one. */
  readonly subject: string;
  /** CIDR. */
  readonly destination: string;
}

/** How many destinations a condition names before it counts the rest. */
const NAMED_COUNT = 3;

/** Joins complaints of one reason about one subject, as they come and go, so that a lost node is one condition and not hundreds. */
export class Complaints {
  readonly #groups = new Map<string, { readonly of: Complaint; readonly counts: Map<string, number> }>();

  add(complaint: Complaint): void {
    const key = groupKey(complaint);
    const group = this.#groups.get(key) ?? { of: complaint, counts: new Map<string, number>() };
    this.#groups.set(key, group);
    group.counts.set(complaint.destination, (group.counts.get(complaint.destination) ?? 0) + 1);
  }

  /** Takes back one {@link add}. */
  remove(complaint: Complaint): void {
    const key = groupKey(complaint);
    const group = this.#groups.get(key);
    const count = group?.counts.get(complaint.destination) ?? 0;
    if (count > 1) group?.counts.set(complaint.destination, count - 1);
    else group?.counts.delete(complaint.destination);
    if (group?.counts.size === 0) this.#groups.delete(key);
  }

  /** In the order of reasons and subjects. */
  conditions(): Condition[] {
    return [...this.#groups.entries()]
      .sort(([a], [b]) => compareTexts(a, b))
      .map(([, { of, counts }]) => ({
        reason: of.reason,
        message: TELL[of.reason](of.subject, listed([...counts.keys()])),
      }));
  }
}

/** Names the first of many things, and counts the others. */
export function listed(names: readonly string[]): string {
  const sorted = [...names].sort(compareTexts);
  const rest = sorted.length - NAMED_COUNT;
  return rest > 0 ? `${sorted.slice(0, NAMED_COUNT).join(', ')} and ${rest} more` : sorted.join(', ');
}

function groupKey({ reason, subject }: Complaint): string {
  return `${reason} ${subject}`;
}

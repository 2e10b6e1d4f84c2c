import type { Meter, ObservableResult } from '@opentelemetry/api';
import type { Family } from '@podwire/shared/net/address';
import { compareTexts } from '@podwire/shared/words/order';

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

/**
 * A gauge of the conditions that hold, by their reason, counted when it is collected: what GetNodeStatus tells, for alerts. A reason
 * that holds no more has no value.
 * @param conditions - must not throw
 * @returns ends it
 */
export function observeConditions(meter: Meter, conditions: () => readonly Condition[]): () => void {
  const gauge = meter.createObservableGauge('podwire.dataplane.conditions', {
    unit: '{condition}',
    description: 'What an operator should know of the node, by reason',
  });
  const observe = (result: ObservableResult): void => {
    for (const [reason, count] of countReasons(conditions())) result.observe(count, { reason });
  };
  gauge.addCallback(observe);
  return () => gauge.removeCallback(observe);
}

function countReasons(conditions: readonly Condition[]): ReadonlyMap<string, number> {
  const counts = new Map<string, number>();
  for (const { reason } of conditions) counts.set(reason, (counts.get(reason) ?? 0) + 1);
  return counts;
}

/**
 * Whether pods can be wired, as health checks are told: not once there is something against every family that pools have, and
 * while the pools are not known, against every family. What is against some pods alone is a condition.
 * @param poolFamilies - undefined while the pools are not known
 */
export function canWirePods(conditions: readonly Condition[], poolFamilies: readonly Family[] | undefined): boolean {
  const defeated = new Set(conditions.flatMap(({ defeats = [] }) => defeats));
  const families = poolFamilies && poolFamilies.length > 0 ? poolFamilies : ([4, 6] as const);
  return !families.every((family) => defeated.has(family));
}

/** Why something that the cluster asks for cannot be had on this node. Told by logs, metrics and the node's status. */
export interface Condition {
  /** `IpipUnsupported`, `NodeAddressMissing`, … */
  readonly reason: string;
  /** With the object and the next step. */
  readonly message: string;
  /** Families of which no pod that has addresses can be wired meanwhile; left out: none. */
  readonly defeats?: readonly Family[];
}

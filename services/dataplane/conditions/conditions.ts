import type { Meter, ObservableResult } from '@opentelemetry/api';
import type { Family } from '@podwire/shared/net/address';
import { compareTexts } from '@podwire/shared/words/order';

/**
 * Reasons why a destination cannot be routed, with their messages. `subject` is a node's, a pool's or a family's name, according
 * to `about`.
 */
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

/** A destination without its wanted route. */
export interface Complaint {
  readonly reason: ComplaintReason;
  /** Name of the node or the pool concerned; complaints with the same subject are merged. */
  readonly subject: string;
  /** CIDR. */
  readonly destination: string;
}

/** Number of destinations that a condition names; the rest is counted. */
const NAMED_COUNT = 3;

/** Merges complaints of one reason and subject as they come and go, so that a lost node is one condition instead of hundreds. */
export class Complaints {
  readonly #groups = new Map<string, { readonly of: Complaint; readonly counts: Map<string, number> }>();

  add(complaint: Complaint): void {
    const key = groupKey(complaint);
    const group = this.#groups.get(key) ?? { of: complaint, counts: new Map<string, number>() };
    this.#groups.set(key, group);
    group.counts.set(complaint.destination, (group.counts.get(complaint.destination) ?? 0) + 1);
  }

  /** Reverts one {@link add}. */
  remove(complaint: Complaint): void {
    const key = groupKey(complaint);
    const group = this.#groups.get(key);
    const count = group?.counts.get(complaint.destination) ?? 0;
    if (count > 1) group?.counts.set(complaint.destination, count - 1);
    else group?.counts.delete(complaint.destination);
    if (group?.counts.size === 0) this.#groups.delete(key);
  }

  /** Sorted by reason and subject. */
  conditions(): Condition[] {
    return [...this.#groups.entries()]
      .sort(([a], [b]) => compareTexts(a, b))
      .map(([, { of, counts }]) => ({
        reason: of.reason,
        message: TELL[of.reason](of.subject, listed([...counts.keys()])),
      }));
  }
}

/** Names the first of many items, and counts the rest. */
export function listed(names: readonly string[]): string {
  const sorted = [...names].sort(compareTexts);
  const rest = sorted.length - NAMED_COUNT;
  return rest > 0 ? `${sorted.slice(0, NAMED_COUNT).join(', ')} and ${rest} more` : sorted.join(', ');
}

function groupKey({ reason, subject }: Complaint): string {
  return `${reason} ${subject}`;
}

/**
 * A gauge of current conditions per reason, counted at collection: the content of GetNodeStatus, for alerts. A resolved reason
 * has no value.
 * @param conditions - must not throw
 * @returns a function that ends it
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
 * Whether pods can be wired, for health checks: false once conditions block every family of the pools, or, while the pools are
 * unknown, every family. Conditions that affect only some pods do not count.
 * @param poolFamilies - undefined while the pools are unknown
 */
export function canWirePods(conditions: readonly Condition[], poolFamilies: readonly Family[] | undefined): boolean {
  const defeated = new Set(conditions.flatMap(({ defeats = [] }) => defeats));
  const families = poolFamilies && poolFamilies.length > 0 ? poolFamilies : ([4, 6] as const);
  return !families.every((family) => defeated.has(family));
}

/** A requirement of the cluster that this node cannot meet. Reported in logs, metrics and the node's status. */
export interface Condition {
  /** `IpipUnsupported`, `NodeAddressMissing`, … */
  readonly reason: string;
  /** Names the object and the next step. */
  readonly message: string;
  /** Families whose pods cannot be wired meanwhile; absent: none. */
  readonly defeats?: readonly Family[];
}

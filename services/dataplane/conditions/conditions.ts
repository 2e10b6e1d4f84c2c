import type { Family } from '@podwire/shared/net/address';
import { observeMetrics } from '@podwire/shared/telemetry/instruments';
import { compareTexts } from '@podwire/shared/words/order';

/** Reasons why a destination cannot be routed, with their messages. The first argument is the fault's subject. */
const MESSAGES = {
  NodeUnknown: (node: string, destinations: string) =>
    `no route to ${destinations}: node ${node} is not registered in IPAM; register the node, or release its addresses`,
  NodeAddressMissing: (node: string, destinations: string) =>
    `no route to ${destinations}: node ${node} has no address of that family; set the node's address`,
  NodeAddressConflict: (node: string, destinations: string) =>
    `no route to ${destinations}: node ${node} is registered with this node's address; correct the address of one of ` +
    `them or, if ${node} is a former name of this node, run "podwirectl delete node ${node}": it is refused while that node runs`,
  NodeAddressInBlock: (node: string, destinations: string) =>
    `no route to ${destinations}: it contains the address of its node ${node}, so the tunnel would lead into itself; keep ` +
    `node addresses out of the pools`,
  TunnelAddressMissing: (node: string, destinations: string) =>
    `no route to ${destinations}: node ${node} has no tunnel address; check the log of its dataplane, and whether the ` +
    `pools have free addresses`,
  NotOnLink: (node: string, destinations: string) =>
    `no route to ${destinations}: its pool has no encapsulation, and node ${node} is in another subnet that no router of ` +
    `this node leads to; use cross-subnet encapsulation for the pool, BIRD (PODWIRE_ROUTING=bird), or a route to a router ` +
    `that knows the block`,
  PoolMissing: (_: string, destinations: string) =>
    `${destinations}: the pool does not exist, so it is routed without encapsulation; create the pool again, or release ` +
    `the block`,
  IpipIpv6: (pool: string, destinations: string) =>
    `no route to ${destinations}: pool ${pool} uses IPIP, which supports only IPv4; use VXLAN for the pool`,
} as const;

export type RouteFaultReason = keyof typeof MESSAGES;

/** A destination whose route is missing, or is not as its pool requires. */
export interface RouteFault {
  readonly reason: RouteFaultReason;
  /** Name of the node or the pool concerned; faults with the same subject are merged. */
  readonly subject: string;
  /** CIDR. */
  readonly destination: string;
}

/** Number of destinations that a condition names; the rest is counted. */
const NAMED_COUNT = 3;

/** Merges the current faults of one reason and subject, so that a lost node is one condition instead of hundreds. */
export class RouteFaults {
  readonly #groups = new Map<string, { readonly fault: RouteFault; readonly counts: Map<string, number> }>();

  add(fault: RouteFault): void {
    const key = groupKey(fault);
    const group = this.#groups.get(key) ?? { fault, counts: new Map<string, number>() };
    this.#groups.set(key, group);
    group.counts.set(fault.destination, (group.counts.get(fault.destination) ?? 0) + 1);
  }

  /** Reverts one {@link add}. */
  remove(fault: RouteFault): void {
    const key = groupKey(fault);
    const group = this.#groups.get(key);
    const count = group?.counts.get(fault.destination) ?? 0;
    if (count > 1) group?.counts.set(fault.destination, count - 1);
    else group?.counts.delete(fault.destination);
    if (group?.counts.size === 0) this.#groups.delete(key);
  }

  /** Sorted by reason and subject. */
  conditions(): Condition[] {
    return [...this.#groups.entries()]
      .sort(([a], [b]) => compareTexts(a, b))
      .map(([, { fault, counts }]) => ({
        reason: fault.reason,
        message: MESSAGES[fault.reason](fault.subject, formatList([...counts.keys()])),
      }));
  }
}

/** Names the first of many items, and counts the rest. */
export function formatList(names: readonly string[]): string {
  const sorted = [...names].sort(compareTexts);
  const rest = sorted.length - NAMED_COUNT;
  return rest > 0 ? `${sorted.slice(0, NAMED_COUNT).join(', ')} and ${rest} more` : sorted.join(', ');
}

function groupKey({ reason, subject }: RouteFault): string {
  return `${reason} ${subject}`;
}

/**
 * A gauge of current conditions per reason, counted at collection: the content of GetNodeStatus, for alerts. A resolved reason
 * has no value.
 * @param conditions - must not throw
 * @returns a function that ends it
 */
export function observeConditions(conditions: () => readonly Condition[]): () => void {
  return observeMetrics(['podwire.dataplane.conditions'], (observe) => {
    for (const [reason, count] of countReasons(conditions())) {
      observe('podwire.dataplane.conditions', count, { reason });
    }
  });
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
  const blocked = new Set(conditions.flatMap(({ blockedFamilies = [] }) => blockedFamilies));
  const families = poolFamilies && poolFamilies.length > 0 ? poolFamilies : ([4, 6] as const);
  return !families.every((family) => blocked.has(family));
}

/** Conditions without repetitions: two parts of the node can find the same one. */
export function distinctConditions(conditions: readonly Condition[]): readonly Condition[] {
  return [...new Map(conditions.map((each) => [`${each.reason} ${each.message}`, each])).values()];
}

/** A requirement of the cluster that this node cannot meet. Reported in logs, metrics and the node's status. */
export interface Condition {
  /** `IpipUnsupported`, `NodeAddressMissing`, … */
  readonly reason: string;
  /** Names the object and the next step. */
  readonly message: string;
  /** Families whose pods cannot be wired meanwhile; absent: none. */
  readonly blockedFamilies?: readonly Family[];
}

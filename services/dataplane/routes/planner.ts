import { compareTexts } from '@podwire/shared/words/order';

import type {
  Cluster,
  ClusterBlock,
  ClusterChange,
  ClusterNode,
  ClusterPool,
  ClusterView,
  NodeAddress,
  VxlanEnd,
} from '../cluster/cluster.js';
import { RouteFaults } from '../conditions/conditions.js';
import { nodesOf, Paths, planBlock, RANKS, type BlockPlan, type BlockContext, type Claim } from './block-routes.js';
import { equalRoutes } from './observed.js';
import { planTunnels, type TunnelPlan } from './tunnels.js';
import { equalFacts, type NodeFacts, type NodeRoute, type WantedNode } from './wanted.js';

/** Change of an update where at most the node's facts differ. */
export const NO_CHANGE: ClusterChange = { blocks: new Set(), hasOtherChanges: false };

/** The wanted state of a node's kernel, and its difference from the previous update. */
export interface PlannedNode {
  /** Its routes are the planner's own map, which the next update changes. */
  readonly wanted: WantedNode;
  /** Destinations whose route was added, removed or changed. */
  readonly changedRoutes: ReadonlySet<string>;
}

interface PlannedBlock {
  readonly block: ClusterBlock;
  readonly plan: BlockPlan;
}

/**
 * Plans the wanted state of the node's kernel from its view of the cluster, incrementally.
 *
 * Difficulty: 5,000 nodes have 10,000 blocks and constant changes, and each change must reach the kernel within
 * milliseconds. So blocks are planned one by one ({@link planBlock}, pure). The planner keeps the claims of each block, and which
 * blocks depend on which node and pool. A change replans only its dependents; the result equals a full plan.
 *
 * When this node's registration vanishes, the planner keeps using the last one: pods keep their network until the node is
 * registered again.
 */
export class RoutePlanner {
  readonly #routes = new Map<string, NodeRoute>();
  readonly #claims = new Claims();
  readonly #faults = new RouteFaults();
  readonly #planned = new Map<string, PlannedBlock>();
  readonly #blocksOfNode = new BlockIndex();
  readonly #blocksOfPool = new BlockIndex();
  #previous: { readonly view: ClusterView; readonly facts: NodeFacts } | undefined;
  #self: ClusterNode | undefined;
  #paths: Paths | undefined;
  #tunnels: TunnelPlan | undefined;

  /**
   * @param change - in which ways the view may differ from the previous update's; the first update plans everything
   * @param facts - compared with the previous ones, so they may be unchanged
   */
  update(view: ClusterView, change: ClusterChange, facts: NodeFacts): PlannedNode {
    const before = this.#previous;
    this.#previous = { view, facts };
    const { cluster } = view;
    const known = view.self === before?.view.self ? this.#self : undefined;
    const self = cluster.nodes.get(view.self) ?? known;
    const hasSelfChanged =
      before?.view.self !== view.self || !equalFacts(before.facts, facts) || !equalNodes(self, known);
    this.#self = self;
    if (hasSelfChanged || !this.#paths) this.#paths = new Paths(self, facts);
    const hasTunnelInputChanged = hasSelfChanged || change.hasOtherChanges;
    const touched = hasSelfChanged
      ? new Set([...this.#planned.keys(), ...cluster.blocks.keys()])
      : this.#touchedBlocks(cluster, change, before.view.cluster);
    if (hasTunnelInputChanged || !this.#tunnels) {
      this.#tunnels = planTunnels({ selfName: view.self, self, nodes: cluster.nodes, pools: cluster.pools, facts });
    }
    const context = { self: view.self, nodes: cluster.nodes, pools: cluster.pools, facts, paths: this.#paths };
    const destinations = new Set<string>();
    for (const cidr of touched) this.#replan(cidr, { block: cluster.blocks.get(cidr), context, destinations });
    const { conditions, ...rest } = this.#tunnels;
    const wanted = { ...rest, routes: this.#routes, conditions: [...conditions, ...this.#faults.conditions()] };
    return { wanted, changedRoutes: this.#updateRoutes(destinations) };
  }

  #touchedBlocks(cluster: Cluster, change: ClusterChange, before: Cluster): ReadonlySet<string> {
    const touched = new Set<string>();
    if (change.blocks !== 'all') for (const cidr of change.blocks) touched.add(cidr);
    else {
      for (const [cidr, block] of cluster.blocks) if (this.#planned.get(cidr)?.block !== block) touched.add(cidr);
      for (const cidr of this.#planned.keys()) if (!cluster.blocks.has(cidr)) touched.add(cidr);
    }
    if (!change.hasOtherChanges) return touched;
    for (const name of changedKeys(before.nodes, cluster.nodes, equalNodes)) this.#blocksOfNode.collect(name, touched);
    for (const name of changedKeys(before.pools, cluster.pools, equalPools)) this.#blocksOfPool.collect(name, touched);
    return touched;
  }

  #replan(cidr: string, { block, context, destinations }: ReplanContext): void {
    const old = this.#planned.get(cidr);
    if (old) this.#forget(cidr, old, destinations);
    if (!block) return;
    const plan = planBlock(block, cidr, context);
    this.#planned.set(cidr, { block, plan });
    for (const name of nodesOf(block)) this.#blocksOfNode.add(name, cidr);
    if (block.poolName !== undefined) this.#blocksOfPool.add(block.poolName, cidr);
    for (const fault of plan.faults) this.#faults.add(fault);
    for (const claim of plan.claims) {
      this.#claims.add(cidr, claim);
      destinations.add(claim.destination);
    }
  }

  #forget(cidr: string, { block, plan }: PlannedBlock, destinations: Set<string>): void {
    this.#planned.delete(cidr);
    for (const name of nodesOf(block)) this.#blocksOfNode.remove(name, cidr);
    if (block.poolName !== undefined) this.#blocksOfPool.remove(block.poolName, cidr);
    for (const fault of plan.faults) this.#faults.remove(fault);
    for (const claim of plan.claims) {
      this.#claims.remove(cidr, claim);
      destinations.add(claim.destination);
    }
  }

  /** Updates the routes of some destinations from their best claims. */
  #updateRoutes(destinations: ReadonlySet<string>): ReadonlySet<string> {
    const changed = new Set<string>();
    for (const destination of destinations) {
      const route = this.#claims.best(destination)?.route;
      if (equalRoutes(route, this.#routes.get(destination))) continue;
      changed.add(destination);
      if (route) this.#routes.set(destination, route);
      else this.#routes.delete(destination);
    }
    return changed;
  }
}

interface ReplanContext {
  readonly block: ClusterBlock | undefined;
  readonly context: BlockContext;
  /** Collects the destinations of the block's earlier and new claims. */
  readonly destinations: Set<string>;
}

/** The blocks that depend on a named object. */
class BlockIndex {
  readonly #blocks = new Map<string, Set<string>>();

  add(name: string, cidr: string): void {
    const blocks = this.#blocks.get(name) ?? new Set();
    this.#blocks.set(name, blocks.add(cidr));
  }

  remove(name: string, cidr: string): void {
    const blocks = this.#blocks.get(name);
    blocks?.delete(cidr);
    if (blocks?.size === 0) this.#blocks.delete(name);
  }

  collect(name: string, into: Set<string>): void {
    for (const cidr of this.#blocks.get(name) ?? []) into.add(cidr);
  }
}

interface BlockClaim {
  /** CIDR of the claiming block. */
  readonly block: string;
  readonly claim: Claim;
}

/** Every block's claims, by destination. A destination has several only where blocks overlap. */
class Claims {
  readonly #byDestination = new Map<string, readonly BlockClaim[]>();

  add(block: string, claim: Claim): void {
    const earlier = this.#byDestination.get(claim.destination) ?? [];
    this.#byDestination.set(claim.destination, [...earlier, { block, claim }]);
  }

  /** Reverts one {@link add} of the same claim. */
  remove(block: string, claim: Claim): void {
    const left = (this.#byDestination.get(claim.destination) ?? []).filter(
      (entry) => entry.block !== block || entry.claim !== claim,
    );
    if (left.length === 0) this.#byDestination.delete(claim.destination);
    else this.#byDestination.set(claim.destination, left);
  }

  /** The winning claim: the best rank; among equals the block whose CIDR sorts first as text. */
  best(destination: string): Claim | undefined {
    const [first, ...rest] = this.#byDestination.get(destination) ?? [];
    return rest.reduce((best, entry) => (isBetter(entry, best) ? entry : best), first)?.claim;
  }
}

function isBetter(a: BlockClaim, b: BlockClaim | undefined): boolean {
  if (!b) return true;
  const ranks = RANKS.indexOf(a.claim.rank) - RANKS.indexOf(b.claim.rank);
  return ranks < 0 || (ranks === 0 && compareTexts(a.block, b.block) < 0);
}

/** Keys whose value was added, removed or changed. Identical objects are not compared further. */
export function* changedKeys<V>(
  before: ReadonlyMap<string, V>,
  after: ReadonlyMap<string, V>,
  equal: (a: V | undefined, b: V | undefined) => boolean,
): Generator<string> {
  for (const [key, value] of after) if (!equal(before.get(key), value)) yield key;
  for (const key of before.keys()) if (!after.has(key)) yield key;
}

function equalNodes(a: ClusterNode | undefined, b: ClusterNode | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return (
    a.name === b.name &&
    equalNodeAddresses(a.ipv4, b.ipv4) &&
    equalNodeAddresses(a.ipv6, b.ipv6) &&
    equalEnds(a.vxlanIpv4, b.vxlanIpv4) &&
    equalEnds(a.vxlanIpv6, b.vxlanIpv6) &&
    a.ipip?.value === b.ipip?.value &&
    a.asNumber === b.asNumber
  );
}

function equalPools(a: ClusterPool | undefined, b: ClusterPool | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return (
    a.name === b.name &&
    a.cidr.family === b.cidr.family &&
    a.cidr.value === b.cidr.value &&
    a.cidr.length === b.cidr.length &&
    a.encapsulation === b.encapsulation &&
    a.natOutgoing === b.natOutgoing &&
    a.loadBalancerOnly === b.loadBalancerOnly
  );
}

function equalNodeAddresses(a: NodeAddress | undefined, b: NodeAddress | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return (
    a.address.value === b.address.value && a.subnet.value === b.subnet.value && a.subnet.length === b.subnet.length
  );
}

function equalEnds(a: VxlanEnd | undefined, b: VxlanEnd | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return a.address?.value === b.address?.value && a.mac === b.mac;
}

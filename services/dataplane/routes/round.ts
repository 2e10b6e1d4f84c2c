import type { Failure } from '@podwire/shared/failure/failure';

import { joinChanges, type ClusterChange, type ClusterNode, type ClusterView } from '../cluster/cluster.js';
import { isRouteAsWanted, type DiffScope } from './convergence.js';
import { factsOf } from './diff.js';
import type { EventEffects } from './kernel-events.js';
import type { NodeWatch } from './kernel.js';
import type { NodeStateCache } from './node-state-cache.js';
import type { NodeAbilities } from './observed.js';
import { NO_CHANGE, type PlannedNode, type RoutePlanner } from './planner.js';
import { destinationOfKey, objectOf, type NodeStep } from './step.js';
import { equalFacts, type NodeFacts, type RoutingMode, type WantedNode } from './wanted.js';

/** Decisions of a round of the reconciler, without I/O. */

/** Known state of the kernel. */
export type KernelState =
  /** No notifications arrive. `hasMissed`: an earlier watch failed. */
  | { readonly phase: 'unwatched'; readonly hasMissed: boolean }
  /** The watch failed; the next round reports it. */
  | { readonly phase: 'lost'; readonly failure: Failure }
  /** The kernel has to be read in full. */
  | { readonly phase: 'unread'; readonly watch: NodeWatch }
  /** `reconciling`: there are differences from the wanted state. */
  | { readonly phase: 'reconciling' | 'as-wanted'; readonly watch: NodeWatch; readonly known: NodeStateCache };

/** The known state may be wrong after a failure, so the next round reads the kernel in full. */
export function afterFailure(state: KernelState): KernelState {
  if (state.phase === 'lost') return { phase: 'unwatched', hasMissed: true };
  return state.phase === 'unwatched' ? state : { phase: 'unread', watch: state.watch };
}

interface PlanChange extends PlannedNode {
  /** Whether anything but routes changed. */
  readonly hasOtherChanges: boolean;
}

/** The wanted state of this node: from the cluster's last view, and from the known kernel state. */
export class NodePlan {
  readonly #planner: Pick<RoutePlanner, 'update'>;
  readonly #routing: RoutingMode;
  #view: ClusterView | undefined;
  /** This node as last received from IPAM. */
  #self: ClusterNode | undefined;
  #pending: ClusterChange | undefined;
  #facts: NodeFacts | undefined;
  #wanted: WantedNode | undefined;

  constructor({ planner, routing }: { planner: Pick<RoutePlanner, 'update'>; routing: RoutingMode }) {
    this.#planner = planner;
    this.#routing = routing;
  }

  get hasView(): boolean {
    return this.#view !== undefined;
  }

  /** Wanted state; undefined before the first plan. */
  get wanted(): WantedNode | undefined {
    return this.#wanted;
  }

  get parents(): NodeFacts['parents'] {
    return this.#facts?.parents ?? { 4: undefined, 6: undefined };
  }

  follow(view: ClusterView, change: ClusterChange): void {
    this.#view = this.#routing === 'none' ? withoutBlocks(view) : view;
    this.#self = view.cluster.nodes.get(view.self) ?? this.#self;
    this.#pending = this.#pending ? joinChanges(this.#pending, change) : change;
  }

  update(known: NodeStateCache, abilities: NodeAbilities): PlanChange {
    if (!this.#view) throw new Error('a plan needs a view');
    const facts = factsOf({ known, self: this.#self, abilities, routing: this.#routing });
    const before = this.#wanted;
    const isSame = this.#facts !== undefined && equalFacts(this.#facts, facts);
    if (before && !this.#pending && isSame) return { wanted: before, changedRoutes: new Set(), hasOtherChanges: false };
    const change = this.#pending ?? NO_CHANGE;
    // The planner's state is unknown after a failed plan.
    this.#pending = { blocks: 'all', hasOtherChanges: true };
    const planned = this.#planner.update(this.#view, change, facts);
    this.#pending = undefined;
    this.#facts = facts;
    this.#wanted = planned.wanted;
    const { tunnels, peers, sysctls } = planned.wanted;
    const hasOtherChanges = before?.tunnels !== tunnels || before.peers !== peers || before.sysctls !== sysctls;
    return { ...planned, hasOtherChanges };
  }
}

/** The kernel's state at the beginning of a round, and its source: notifications, or a full check. */
export type Reading =
  | { readonly known: NodeStateCache; readonly effects: EventEffects }
  | { readonly known: NodeStateCache; readonly effects: undefined; readonly checkMs: number };

export interface Round {
  /** State known before; undefined: nothing. */
  readonly before: NodeStateCache | undefined;
  readonly reading: Reading;
  readonly plan: PlanChange;
  /** Keys of the steps to retry. */
  readonly retried: readonly string[];
}

/** Parts that may differ from the wanted state. */
export function scopeOf({ reading: { effects }, plan, retried }: Round): DiffScope {
  if (!effects) return { routes: 'all', hasDevices: true };
  const destinations = retried.flatMap((key) => destinationOfKey(key) ?? []);
  return {
    routes: new Set([...destinations, ...plan.changedRoutes, ...effects.routes]),
    hasDevices: plan.hasOtherChanges || effects.hasDeviceObjects || destinations.length < retried.length,
  };
}

/** Whether another program caused a difference: neither a new plan nor an earlier difference explains it. */
export function isDrift(step: NodeStep, { before, reading: { effects }, plan }: Round): boolean {
  if (!before) return false;
  if (objectOf(step) !== 'route') return !plan.hasOtherChanges && (!effects || effects.hasDeviceObjects);
  const destination = step.type === 'route-delete' || 'route' in step ? step.route.destination : '';
  if (plan.changedRoutes.has(destination)) return false;
  return effects ? effects.drifted.has(destination) : isRouteAsWanted(destination, plan.wanted, before);
}

/** A view that wants no routes and no tunnels. */
function withoutBlocks(view: ClusterView): ClusterView {
  const { nodes } = view.cluster;
  return { ...view, cluster: { nodes, pools: new Map(), blocks: new Map() } };
}

import { Failure } from '@podwire/shared/failure/failure';
import { backoffMs } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import {
  joinChanges,
  type ClusterChange,
  type ClusterNode,
  type ClusterView,
  type Follower,
} from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import { ConditionTeller } from '../conditions/reporter.js';
import { Attempts, Convergence, isRouteReached, observeNode, type Converged } from './convergence.js';
import { factsOf } from './diff.js';
import type { ReconcileEvents } from './events.js';
import { Hearing, podInterfacesOf, type Heard } from './kernel-events.js';
import type { NodeKernel, NodeWatch } from './kernel.js';
import { Inbox, type KnownNode, type Taken } from './known-node.js';
import type { NodeAbilities } from './observed.js';
import { NO_CHANGE, type RoutePlanner } from './planner.js';
import { countPresent, countWanted, kernelConditions, unavailableDevices, type NodeStatus } from './status.js';
import { destinationOfKey, formatNodeStep, objectOf, type NodeStep } from './step.js';
import { equalFacts, type NodeFacts, type RoutingMode, type WantedNode } from './wanted.js';

export interface ReconcilerOptions {
  /** The caller closes it, after {@link RouteReconciler.stop}. */
  readonly kernel: NodeKernel;
  readonly planner: Pick<RoutePlanner, 'update'>;
  readonly routing: RoutingMode;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly events: ReconcileEvents;
  /** Mean time between full checks, in milliseconds, ±10 %. Default 90,000, as Calico. */
  readonly checkIntervalMs?: number;
  /**
   * Called when a pod's host interface of this name, or its routes, changed; without a name when changes were lost, so that any
   * may have changed. Meddled with: it was no wiring. Must not throw.
   */
  readonly onPodInterface?: (name: string | undefined, isMeddledWith: boolean) => void;
}

const NOTHING_WANTED: WantedNode = { tunnels: [], routes: new Map(), peers: [], sysctls: [], conditions: [] };

const CHECK_INTERVAL_MS = 90_000;
const CHECK_JITTER = 0.1;

/** How long the kernel's announcements are collected before they are processed, in milliseconds. */
const SETTLE_MS = 5;

/**
 * A full check triggered by changes waits this many times the duration of the last one, so checks take at most a tenth of the
 * time.
 */
const CHECK_PAUSE_FACTOR = 9;

/** Least setback of the clock that is detected. */
const SET_BACK_MS = 1000;
/** Why a wait ends early. */
const WOKEN = 'woken';

/** While the kernel cannot be read, or the watch fails. */
const SILENT_BACKOFF = { baseMs: 250, maxMs: 15_000 };

/**
 * Reconciles the node's kernel with the cluster's state: tunnels, routes between nodes, and settings.
 *
 * What makes it hard:
 * - A change of one block must cost one message. So the kernel's state is not read but tracked: from a full reading, from the
 *   outcome of each step, and from the kernel's announcements.
 * - Other programs and the kernel itself change the state too. Announcements come late, doubly (the echo of Podwire's changes),
 *   not at all (IPv4 routes of an interface that goes down), or are lost (overrun). An announcement that does not fit the known
 *   state triggers a full reading; one is also made periodically.
 * - The cluster's watch must not block: views are only stored, the last one wins, and a single loop does all work.
 */
export class RouteReconciler implements Follower {
  readonly #options: ReconcilerOptions;
  readonly #attempts: Attempts;
  readonly #teller: ConditionTeller;
  readonly #inbox = new Inbox();
  readonly #stopping = new AbortController();
  #sleep = new AbortController();
  #watch: NodeWatch | undefined;
  #hasWatched = false;
  #abilities: NodeAbilities | undefined;
  /** When missing kernel features are probed again: a module may have been loaded. */
  #abilitiesAtMs = 0;
  /** Why the last turn failed; undefined after a success. */
  #fault: Condition | undefined;
  #view: ClusterView | undefined;
  /** This node as last received from IPAM. */
  #self: ClusterNode | undefined;
  #pending: ClusterChange | undefined;
  #facts: NodeFacts | undefined;
  #wanted: WantedNode | undefined;
  #known: KnownNode | undefined;
  #isComplete = false;
  /** When announcements are processed; undefined while there are none. */
  #hearAtMs: number | undefined;
  #checkAtMs = 0;
  #checkedAtMs: number | undefined;
  #checkTookMs = 0;
  #silentTurns = 0;
  #resumeAtMs = 0;
  /** The time as last read. */
  #seenMs = 0;
  #driftCount = 0;
  readonly #loop: Promise<void>;

  constructor(options: ReconcilerOptions) {
    this.#options = options;
    this.#attempts = new Attempts(options);
    this.#teller = new ConditionTeller(options);
    this.#loop = this.#run();
  }

  follow(view: ClusterView, change: ClusterChange): void {
    this.#view = view;
    this.#self = view.cluster.nodes.get(view.self) ?? this.#self;
    this.#pending = this.#pending ? joinChanges(this.#pending, change) : change;
    this.#wake();
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    this.#wake();
    await this.#loop;
  }

  /** Requests a full check as soon as possible. */
  check(): void {
    this.#checkAtMs = this.#options.clock.nowMs();
    this.#wake();
  }

  /** Parts of the cluster's state that this node cannot realize, with reasons. */
  conditions(): readonly Condition[] {
    return [...(this.#fault ? [this.#fault] : []), ...this.#teller.conditions];
  }

  /** Name of the interface with the node's address of a family; undefined while unknown. */
  get parents(): NodeFacts['parents'] {
    return this.#facts?.parents ?? { 4: undefined, 6: undefined };
  }

  get tunnels(): WantedNode['tunnels'] {
    return this.#wanted?.tunnels ?? [];
  }

  status(): NodeStatus {
    const wanted = this.#wanted;
    const known = this.#known;
    const isSilent = this.#fault !== undefined || (wanted && !known);
    const state = isSilent ? 'silent' : !wanted ? 'waiting' : this.#isComplete ? 'as-wanted' : 'reconciling';
    return {
      state,
      tunnels: wanted?.tunnels ?? [],
      wanted: wanted && countWanted(wanted),
      present: wanted && known && countPresent(wanted, known),
      conditions: this.conditions(),
      checkedAtMs: this.#checkedAtMs,
      driftCount: this.#driftCount,
    };
  }

  async #run(): Promise<void> {
    while (!this.#isStopping()) {
      await this.#rest();
      if (this.#isStopping()) break;
      try {
        await this.#turn();
        if (this.#silentTurns > 0) this.#options.events.kernelSpeaks();
        this.#silentTurns = 0;
        this.#fault = undefined;
      } catch (error) {
        this.#turnFailed(error);
      }
    }
    this.#watch?.close();
  }

  #isStopping(): boolean {
    return this.#stopping.signal.aborted;
  }

  /** The known state may be wrong afterwards; a full reading is scheduled. */
  #turnFailed(error: unknown): void {
    const { events, clock, random } = this.#options;
    this.#known = undefined;
    this.#resumeAtMs = clock.nowMs() + 1 + backoffMs(this.#silentTurns, SILENT_BACKOFF, random());
    if (!(error instanceof Failure)) events.turnFailed(error);
    else if (this.#silentTurns === 0) events.kernelSilent(error);
    this.#silentTurns++;
    this.#fault = turnFault(error);
  }

  /** Sleeps until there is work. */
  async #rest(): Promise<void> {
    const { clock } = this.#options;
    for (;;) {
      this.#sleep = new AbortController();
      const nowMs = clock.nowMs();
      if (nowMs < this.#seenMs - SET_BACK_MS) this.#clockSetBack(nowMs);
      this.#seenMs = nowMs;
      const waitMs = this.#dueMs() - nowMs;
      if (waitMs <= 0 || this.#isStopping()) return;
      await clock.sleep(waitMs, this.#sleep.signal);
    }
  }

  /** Waits would last for hours: all of them end now. */
  #clockSetBack(nowMs: number): void {
    this.#attempts.clockSetBack(nowMs);
    this.#checkAtMs = nowMs;
    this.#resumeAtMs = nowMs;
    this.#abilitiesAtMs = nowMs;
    if (this.#hearAtMs !== undefined) this.#hearAtMs = nowMs;
  }

  #wake(): void {
    // A plain reason avoids creating an error with its stack.
    this.#sleep.abort(WOKEN);
  }

  #dueMs(): number {
    const hearAtMs = this.#hearAtMs ?? Number.POSITIVE_INFINITY;
    const dueMs = !this.#view
      ? this.#watch
        ? hearAtMs
        : 0
      : this.#pending || !this.#known
        ? 0
        : Math.min(this.#checkAtMs, hearAtMs, this.#attempts.nextDueMs() ?? Number.POSITIVE_INFINITY);
    return Math.max(dueMs, this.#resumeAtMs);
  }

  async #turn(): Promise<void> {
    const { kernel, clock } = this.#options;
    this.#watch ??= await this.#openWatch();
    // The wanted state is still unknown, but pods exist.
    if (!this.#view) {
      this.#passOn();
      return;
    }
    const abilities = await this.#readAbilities();
    const before = this.#known;
    const isCheck = !before || clock.nowMs() >= this.#checkAtMs;
    const known = isCheck ? await this.#readAll() : before;
    // The reading includes all earlier announcements.
    const heard = isCheck ? undefined : this.#hear(known);
    const due = this.#attempts.takeDue();
    const planned = this.#plan(known, abilities);
    const { wanted } = planned;
    const destinations = due.flatMap((key) => destinationOfKey(key) ?? []);
    const isAll = isCheck || planned.isFirst;
    const converged = await new Convergence({
      kernel,
      attempts: this.#attempts,
      wanted,
      known,
      doubt: {
        routes: isAll ? 'all' : new Set([...destinations, ...planned.routes, ...(heard?.routes ?? [])]),
        rest: isAll || planned.hasOtherRest || heard?.rest === true || destinations.length < due.length,
      },
      isDrift: (step) => {
        if (!before || planned.isFirst) return false;
        return isDrift(step, { before, heard, planned });
      },
    }).run();
    this.#tell(converged, { isCheck });
  }

  async #openWatch(): Promise<NodeWatch> {
    // Open the watch before reading: the reading covers earlier changes.
    this.#known = undefined;
    const ended = new AbortController();
    const watch = await this.#options.kernel.watch({
      changed: (change) => {
        this.#inbox.put(change);
        if (this.#hearAtMs !== undefined) return;
        this.#hearAtMs = this.#options.clock.nowMs() + SETTLE_MS;
        this.#wake();
      },
      failed: (failure) => {
        ended.abort(failure);
        this.#watch = undefined;
        this.#turnFailed(failure);
        this.#wake();
      },
    });
    ended.signal.throwIfAborted();
    // Announcements before the watch existed are lost.
    if (this.#hasWatched) this.#inbox.put({ object: 'overrun' });
    this.#hasWatched = true;
    return watch;
  }

  async #readAll(): Promise<KnownNode> {
    const { clock, events, kernel, random, checkIntervalMs = CHECK_INTERVAL_MS } = this.#options;
    this.#passOn();
    const startMs = clock.nowMs();
    try {
      this.#known = await observeNode(kernel, this.#wanted);
    } catch (error) {
      events.checked('failed', clock.nowMs() - startMs);
      throw error;
    }
    this.#checkedAtMs = clock.nowMs();
    this.#checkTookMs = this.#checkedAtMs - startMs;
    this.#checkAtMs = this.#checkedAtMs + checkIntervalMs * (1 + CHECK_JITTER * (2 * random() - 1));
    return this.#known;
  }

  #hear(known: KnownNode): Heard {
    this.#hearAtMs = undefined;
    const taken = this.#inbox.take();
    const wanted = this.#wanted ?? NOTHING_WANTED;
    const parents = this.#parents();
    const awaited = unavailableDevices(wanted, { known, parents });
    const hearing = new Hearing({
      known,
      wanted,
      isParent: (device) => parents.includes(device) || awaited.has(device),
    });
    for (const change of taken.changes) hearing.hear(change);
    const { heard } = hearing;
    this.#tellPods(taken);
    if (taken.hasOverrun || heard.needsCheck) this.#checkSoon();
    return heard;
  }

  #parents(): string[] {
    return Object.values(this.#facts?.parents ?? {}).filter((name) => name !== undefined);
  }

  /** Of the announcements before a full reading, only those about pods are not covered by it. */
  #passOn(): void {
    this.#hearAtMs = undefined;
    this.#tellPods(this.#inbox.take());
  }

  #tellPods({ changes, hasOverrun }: Taken): void {
    const { events, onPodInterface } = this.#options;
    if (hasOverrun) events.overrun();
    if (hasOverrun) onPodInterface?.(undefined, false);
    for (const [name, isMeddledWith] of podInterfacesOf(changes)) onPodInterface?.(name, isMeddledWith);
  }

  /** At once, unless the last one has just ended: a storm of changes must not cause constant readings. */
  #checkSoon(): void {
    const earliestMs = (this.#checkedAtMs ?? 0) + CHECK_PAUSE_FACTOR * this.#checkTookMs;
    this.#checkAtMs = Math.min(this.#checkAtMs, Math.max(earliestMs, this.#options.clock.nowMs()));
    // A refused step may succeed after a change.
    this.#attempts.release();
  }

  async #readAbilities(): Promise<NodeAbilities> {
    const { clock, kernel, checkIntervalMs = CHECK_INTERVAL_MS } = this.#options;
    const known = this.#abilities;
    if (known && ((known.hasVxlan && known.hasIpip) || clock.nowMs() < this.#abilitiesAtMs)) return known;
    this.#abilitiesAtMs = clock.nowMs() + checkIntervalMs;
    return (this.#abilities = await kernel.abilities());
  }

  #plan(known: KnownNode, abilities: NodeAbilities): Planned {
    const { planner, routing } = this.#options;
    const view = this.#view;
    if (!view) throw new Error('a turn begins with a view');
    const facts = factsOf({ known, self: this.#self, abilities, routing });
    const before = this.#wanted;
    const isSame = this.#facts !== undefined && equalFacts(this.#facts, facts);
    if (before && !this.#pending && isSame)
      return { wanted: before, routes: new Set(), hasOtherRest: false, isFirst: false };
    const change = this.#pending ?? NO_CHANGE;
    // After a failed plan the planner's state is unknown.
    this.#pending = { blocks: 'all', others: true };
    const { wanted, changedRoutes } = planner.update(view, change, facts);
    this.#pending = undefined;
    this.#facts = facts;
    this.#wanted = wanted;
    const hasOtherRest =
      before?.tunnels !== wanted.tunnels || before.peers !== wanted.peers || before.sysctls !== wanted.sysctls;
    return { wanted, routes: changedRoutes, hasOtherRest, isFirst: before === undefined };
  }

  #tell({ known, done, refused, drift }: Converged, { isCheck }: { readonly isCheck: boolean }): void {
    const { events } = this.#options;
    if (done + refused > 0) events.applied({ done, refused });
    if (drift) {
      for (const count of drift.counts.values()) this.#driftCount += count;
      events.drifted(drift.counts, formatNodeStep(drift.example));
    }
    if (isCheck) events.checked(drift ? 'drift' : 'clean', this.#checkTookMs);
    // The watch may have failed meanwhile: then the kernel is read in full.
    this.#known = this.#watch && known;
    const wanted = this.#wanted;
    if (!wanted) return;
    const context = { known, attempts: this.#attempts, parents: this.#parents() };
    const conditions = kernelConditions(wanted, context);
    this.#isComplete = conditions.length === 0 && this.#attempts.nextDueMs() === undefined;
    this.#teller.tell([...wanted.conditions, ...conditions]);
  }
}

/** The operator's message for an interrupted turn. */
function turnFault(error: unknown): Condition {
  const reason = error instanceof Failure ? error.message : 'internal error: see the log of podwire-dataplane';
  const message = `routes between nodes are not looked after (${reason}): what is there stays; it is tried again`;
  return { reason: 'KernelSilent', message };
}

interface Planned {
  readonly wanted: WantedNode;
  /** Destinations whose route changed. */
  readonly routes: ReadonlySet<string>;
  readonly hasOtherRest: boolean;
  readonly isFirst: boolean;
}

interface DriftContext {
  readonly before: KnownNode;
  /** Undefined: a full reading. */
  readonly heard: Heard | undefined;
  readonly planned: Planned;
}

/** Whether another program caused a difference: Podwire did not plan it, and it did not exist before. */
function isDrift(step: NodeStep, { before, heard, planned }: DriftContext): boolean {
  if (objectOf(step) !== 'route') return !planned.hasOtherRest && (heard === undefined || heard.rest);
  const destination = step.type === 'route-delete' || 'route' in step ? step.route.destination : '';
  if (planned.routes.has(destination)) return false;
  return heard ? heard.drifted.has(destination) : isRouteReached(destination, planned.wanted, before);
}

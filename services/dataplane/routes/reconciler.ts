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
import { ConditionReporter } from '../conditions/reporter.js';
import { StepBackoff, Convergence, isRouteAsWanted, observeNode, type ConvergenceResult } from './convergence.js';
import { factsOf } from './diff.js';
import type { ReconcileEvents } from './events.js';
import { EventApplier, podInterfacesOf, type EventEffects } from './kernel-events.js';
import type { NodeKernel, NodeWatch } from './kernel.js';
import { EventBuffer, type NodeStateCache, type BufferedEvents } from './node-state-cache.js';
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
   * Called when a pod's host interface of this name, or its routes, changed; without a name when notifications were lost, so that
   * any may have changed. Interference: wiring does not cause such a change. Must not throw.
   */
  readonly onPodInterface?: (name: string | undefined, isInterference: boolean) => void;
}

const NOTHING_WANTED: WantedNode = { tunnels: [], routes: new Map(), peers: [], sysctls: [], conditions: [] };

const CHECK_INTERVAL_MS = 90_000;
const CHECK_JITTER = 0.1;

/** Time for which the kernel's notifications are collected before they are processed, in milliseconds. */
const EVENT_DELAY_MS = 5;

/**
 * A full check that notifications cause waits for this multiple of the last check's duration, so checks take at most a tenth of
 * the time.
 */
const CHECK_PAUSE_FACTOR = 9;

/** Abort reason of a wait that ends early. */
const WAKE_REASON = 'woken';

/** Back-off while the kernel cannot be read, or the watch fails. */
const ROUND_BACKOFF = { baseMs: 250, maxMs: 15_000 };

/**
 * Reconciles the node's kernel with the cluster's state: tunnels, routes between nodes, and settings.
 *
 * What makes it hard:
 * - A change of one block must cost one message. So the kernel's state is cached: from a full reading, the outcome of each step,
 *   and the kernel's notifications.
 * - Other programs and the kernel itself change the state too. Notifications arrive late, or also for Podwire's own changes. Some
 *   are missing (IPv4 routes of an interface that goes down), or are lost (overrun). A notification that does not fit the cached
 *   state causes a full reading; one is also made every 90 s.
 * - The cluster's watch must not block. So {@link follow} only stores the last view, and a single loop does all work.
 */
export class RouteReconciler implements Follower {
  readonly #options: ReconcilerOptions;
  readonly #backoff: StepBackoff;
  readonly #reporter: ConditionReporter;
  readonly #buffer = new EventBuffer();
  readonly #stopping = new AbortController();
  #sleep = new AbortController();
  #watch: NodeWatch | undefined;
  #hasWatched = false;
  #abilities: NodeAbilities | undefined;
  /** When missing kernel features are probed again, as a module may have been loaded. */
  #abilitiesAtMs = 0;
  /** Why the last round failed; undefined after a success. */
  #failureCondition: Condition | undefined;
  #view: ClusterView | undefined;
  /** This node as last received from IPAM. */
  #self: ClusterNode | undefined;
  #pending: ClusterChange | undefined;
  #facts: NodeFacts | undefined;
  #wanted: WantedNode | undefined;
  #known: NodeStateCache | undefined;
  #isComplete = false;
  /** When notifications are processed; undefined while there are none. */
  #eventsDueAtMs: number | undefined;
  #checkAtMs = 0;
  /** End of the last full check by the wall clock, for the status. */
  #checkedAtMs: number | undefined;
  /** The same by the monotonic clock, as all other times here. */
  #checkEndMs = 0;
  #checkDurationMs = 0;
  #failedRounds = 0;
  #retryAtMs = 0;
  #driftCount = 0;
  readonly #loop: Promise<void>;

  constructor(options: ReconcilerOptions) {
    this.#options = options;
    this.#backoff = new StepBackoff(options);
    this.#reporter = new ConditionReporter(options);
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
    this.#checkAtMs = this.#options.clock.monotonicMs();
    this.#wake();
  }

  /** Parts of the cluster's state that this node cannot apply, with reasons. */
  conditions(): readonly Condition[] {
    return [...(this.#failureCondition ? [this.#failureCondition] : []), ...this.#reporter.conditions];
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
    const isUnreadable = this.#failureCondition !== undefined || (wanted && !known);
    const state = isUnreadable ? 'silent' : !wanted ? 'waiting' : this.#isComplete ? 'as-wanted' : 'reconciling';
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
      await this.#waitForWork();
      if (this.#isStopping()) break;
      try {
        await this.#runRound();
        if (this.#failedRounds > 0) this.#options.events.kernelReadable();
        this.#failedRounds = 0;
        this.#failureCondition = undefined;
      } catch (error) {
        this.#roundFailed(error);
      }
    }
    this.#watch?.close();
  }

  #isStopping(): boolean {
    return this.#stopping.signal.aborted;
  }

  /** The cached state may be wrong after a failure, so the next round reads the kernel in full. */
  #roundFailed(error: unknown): void {
    const { events, clock, random } = this.#options;
    this.#known = undefined;
    this.#retryAtMs = clock.monotonicMs() + 1 + backoffMs(this.#failedRounds, ROUND_BACKOFF, random());
    if (!(error instanceof Failure)) events.roundFailed(error);
    else if (this.#failedRounds === 0) events.kernelUnreadable(error);
    this.#failedRounds++;
    this.#failureCondition = roundFailureCondition(error);
  }

  /** Sleeps until work is due. */
  async #waitForWork(): Promise<void> {
    const { clock } = this.#options;
    for (;;) {
      this.#sleep = new AbortController();
      const waitMs = Math.ceil(this.#dueMs() - clock.monotonicMs());
      if (waitMs <= 0 || this.#isStopping()) return;
      await clock.sleep(waitMs, this.#sleep.signal);
    }
  }

  #wake(): void {
    // A plain reason avoids creating an error with its stack.
    this.#sleep.abort(WAKE_REASON);
  }

  #dueMs(): number {
    const eventsDueAtMs = this.#eventsDueAtMs ?? Number.POSITIVE_INFINITY;
    const dueMs = !this.#view
      ? this.#watch
        ? eventsDueAtMs
        : 0
      : this.#pending || !this.#known
        ? 0
        : Math.min(this.#checkAtMs, eventsDueAtMs, this.#backoff.nextDueMs() ?? Number.POSITIVE_INFINITY);
    return Math.max(dueMs, this.#retryAtMs);
  }

  async #runRound(): Promise<void> {
    const { kernel, clock } = this.#options;
    this.#watch ??= await this.#openWatch();
    // The wanted state is still unknown, but pods may need repair.
    if (!this.#view) {
      this.#flushEvents();
      return;
    }
    const abilities = await this.#readAbilities();
    const before = this.#known;
    const isCheck = !before || clock.monotonicMs() >= this.#checkAtMs;
    const known = isCheck ? await this.#readAll() : before;
    // The reading covers all earlier notifications.
    const effects = isCheck ? undefined : this.#applyEvents(known);
    const due = this.#backoff.takeDue();
    const planned = this.#plan(known, abilities);
    const { wanted } = planned;
    const destinations = due.flatMap((key) => destinationOfKey(key) ?? []);
    const isAll = isCheck || planned.isFirst;
    const converged = await new Convergence({
      kernel,
      backoff: this.#backoff,
      wanted,
      known,
      scope: {
        routes: isAll ? 'all' : new Set([...destinations, ...planned.routes, ...(effects?.routes ?? [])]),
        hasDevices:
          isAll || planned.hasOtherChanges || effects?.hasDeviceObjects === true || destinations.length < due.length,
      },
      isDrift: (step) => {
        if (!before || planned.isFirst) return false;
        return isDrift(step, { before, effects, planned });
      },
    }).run();
    this.#report(converged, { isCheck });
  }

  async #openWatch(): Promise<NodeWatch> {
    // The watch opens before the reading, which covers earlier changes.
    this.#known = undefined;
    const ended = new AbortController();
    const watch = await this.#options.kernel.watch({
      changed: (change) => {
        this.#buffer.put(change);
        if (this.#eventsDueAtMs !== undefined) return;
        this.#eventsDueAtMs = this.#options.clock.monotonicMs() + EVENT_DELAY_MS;
        this.#wake();
      },
      failed: (failure) => {
        ended.abort(failure);
        this.#watch = undefined;
        this.#roundFailed(failure);
        this.#wake();
      },
    });
    ended.signal.throwIfAborted();
    // Notifications between two watches are lost.
    if (this.#hasWatched) this.#buffer.put({ object: 'overrun' });
    this.#hasWatched = true;
    return watch;
  }

  async #readAll(): Promise<NodeStateCache> {
    const { clock, events, kernel, random, checkIntervalMs = CHECK_INTERVAL_MS } = this.#options;
    this.#flushEvents();
    const startMs = clock.monotonicMs();
    try {
      this.#known = await observeNode(kernel, this.#wanted);
    } catch (error) {
      events.checked('failed', clock.monotonicMs() - startMs);
      throw error;
    }
    this.#checkedAtMs = clock.nowMs();
    this.#checkEndMs = clock.monotonicMs();
    this.#checkDurationMs = this.#checkEndMs - startMs;
    this.#checkAtMs = this.#checkEndMs + checkIntervalMs * (1 + CHECK_JITTER * (2 * random() - 1));
    return this.#known;
  }

  #applyEvents(known: NodeStateCache): EventEffects {
    this.#eventsDueAtMs = undefined;
    const events = this.#buffer.take();
    const wanted = this.#wanted ?? NOTHING_WANTED;
    const parents = this.#parents();
    const unavailable = unavailableDevices(wanted, { known, parents });
    const applier = new EventApplier({
      known,
      wanted,
      isParent: (device) => parents.includes(device) || unavailable.has(device),
    });
    for (const change of events.changes) applier.apply(change);
    const { effects } = applier;
    this.#notifyPods(events);
    if (events.hasOverrun || effects.needsCheck) this.#checkSoon();
    return effects;
  }

  #parents(): string[] {
    return Object.values(this.#facts?.parents ?? {}).filter((name) => name !== undefined);
  }

  /** Drops notifications that a full reading covers: all except those about pods, which are passed on. */
  #flushEvents(): void {
    this.#eventsDueAtMs = undefined;
    this.#notifyPods(this.#buffer.take());
  }

  #notifyPods({ changes, hasOverrun }: BufferedEvents): void {
    const { events, onPodInterface } = this.#options;
    if (hasOverrun) events.overrun();
    if (hasOverrun) onPodInterface?.(undefined, false);
    for (const [name, isInterference] of podInterfacesOf(changes)) onPodInterface?.(name, isInterference);
  }

  /** Schedules a full check: now, or after a pause when the last one has just ended, so that a storm causes few readings. */
  #checkSoon(): void {
    const earliestMs = this.#checkEndMs + CHECK_PAUSE_FACTOR * this.#checkDurationMs;
    this.#checkAtMs = Math.min(this.#checkAtMs, Math.max(earliestMs, this.#options.clock.monotonicMs()));
    // Refused steps may succeed after the change.
    this.#backoff.retryRefused();
  }

  async #readAbilities(): Promise<NodeAbilities> {
    const { clock, kernel, checkIntervalMs = CHECK_INTERVAL_MS } = this.#options;
    const known = this.#abilities;
    if (known && ((known.hasVxlan && known.hasIpip) || clock.monotonicMs() < this.#abilitiesAtMs)) return known;
    this.#abilitiesAtMs = clock.monotonicMs() + checkIntervalMs;
    return (this.#abilities = await kernel.abilities());
  }

  #plan(known: NodeStateCache, abilities: NodeAbilities): PlanResult {
    const { planner, routing } = this.#options;
    const view = this.#view;
    if (!view) throw new Error('a round needs a view');
    const facts = factsOf({ known, self: this.#self, abilities, routing });
    const before = this.#wanted;
    const isSame = this.#facts !== undefined && equalFacts(this.#facts, facts);
    if (before && !this.#pending && isSame)
      return { wanted: before, routes: new Set(), hasOtherChanges: false, isFirst: false };
    const change = this.#pending ?? NO_CHANGE;
    // After a failed plan the planner's state is unknown.
    this.#pending = { blocks: 'all', hasOtherChanges: true };
    const { wanted, changedRoutes } = planner.update(view, change, facts);
    this.#pending = undefined;
    this.#facts = facts;
    this.#wanted = wanted;
    const hasOtherChanges =
      before?.tunnels !== wanted.tunnels || before.peers !== wanted.peers || before.sysctls !== wanted.sysctls;
    return { wanted, routes: changedRoutes, hasOtherChanges: hasOtherChanges, isFirst: before === undefined };
  }

  #report({ known, done, refused, drift }: ConvergenceResult, { isCheck }: { readonly isCheck: boolean }): void {
    const { events } = this.#options;
    if (done + refused > 0) events.applied({ done, refused });
    if (drift) {
      for (const count of drift.counts.values()) this.#driftCount += count;
      events.drifted(drift.counts, formatNodeStep(drift.example));
    }
    if (isCheck) events.checked(drift ? 'drift' : 'clean', this.#checkDurationMs);
    // When the watch failed meanwhile, the next round reads the kernel in full.
    this.#known = this.#watch && known;
    const wanted = this.#wanted;
    if (!wanted) return;
    const context = { known, attempts: this.#backoff, parents: this.#parents() };
    const conditions = kernelConditions(wanted, context);
    this.#isComplete = conditions.length === 0 && this.#backoff.nextDueMs() === undefined;
    this.#reporter.report([...wanted.conditions, ...conditions]);
  }
}

/** The operator's message for a failed round. */
function roundFailureCondition(error: unknown): Condition {
  const reason = error instanceof Failure ? error.message : 'internal error, see the log of podwire-dataplane';
  const message = `routes between nodes are not reconciled: ${reason}; existing routes stay, retrying`;
  return { reason: 'KernelSilent', message };
}

interface PlanResult {
  readonly wanted: WantedNode;
  /** Destinations whose route changed. */
  readonly routes: ReadonlySet<string>;
  readonly hasOtherChanges: boolean;
  readonly isFirst: boolean;
}

interface DriftContext {
  readonly before: NodeStateCache;
  /** Undefined: a full reading. */
  readonly effects: EventEffects | undefined;
  readonly planned: PlanResult;
}

/** Whether another program caused a difference: neither a new plan nor an earlier difference explains it. */
function isDrift(step: NodeStep, { before, effects, planned }: DriftContext): boolean {
  if (objectOf(step) !== 'route')
    return !planned.hasOtherChanges && (effects === undefined || effects.hasDeviceObjects);
  const destination = step.type === 'route-delete' || 'route' in step ? step.route.destination : '';
  if (planned.routes.has(destination)) return false;
  return effects ? effects.drifted.has(destination) : isRouteAsWanted(destination, planned.wanted, before);
}

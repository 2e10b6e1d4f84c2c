import { Failure } from '@podwire/shared/failure/failure';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import {
  encapsulationOf,
  modeOf,
  type ClusterChange,
  type ClusterPool,
  type ClusterView,
  type Follower,
} from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import { ConditionReporter } from '../conditions/reporter.js';
import { StepBackoff, Convergence, observeNode, type ConvergenceResult } from './convergence.js';
import type { ReconcileEvents } from './events.js';
import { EventApplier, podInterfacesOf } from './kernel-events.js';
import type { NodeKernel, NodeWatch } from './kernel.js';
import { EventBuffer, type NodeStateCache, type BufferedEvents } from './node-state-cache.js';
import type { NodeAbilities } from './observed.js';
import type { RoutePlanner } from './planner.js';
import { afterFailure, isDrift, NodePlan, scopeOf, type KernelState, type Reading, type Round } from './round.js';
import { countPresent, countWanted, kernelConditions, unavailableDevices, type NodeStatus } from './status.js';
import { formatNodeStep } from './step.js';
import { IPIP_DEVICE, VXLAN_DEVICE, type NodeFacts, type RoutingMode, type WantedNode } from './wanted.js';

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

/**
 * A full check that notifications cause waits for this multiple of the last check's duration, so checks take at most a tenth of
 * the time.
 */
const CHECK_PAUSE_FACTOR = 9;

/** Time for which the kernel's notifications are collected before they are processed, in milliseconds. */
const EVENT_DELAY_MS = 5;

/** Back-off while the kernel cannot be read, or the watch fails. */
const ROUND_BACKOFF = { baseMs: 250, maxMs: 15_000 };

/**
 * Reconciles the node's kernel with the cluster's state: tunnels, routes between nodes, and settings.
 *
 * Difficulties:
 * - A change of one block must cost one message. So the kernel's state is cached: from a full reading, the outcome of each step,
 *   and the kernel's notifications.
 * - Other programs and the kernel itself change the state too. Notifications arrive late, or also for Podwire's own changes. Some
 *   are missing (IPv4 routes of an interface that goes down), or are lost (overrun). A notification that does not fit the cached
 *   state causes a full reading; one is also made every 90 s.
 * - The cluster's watch must not block. So {@link follow} only stores the last view, and a single loop does all work in rounds.
 */
export class RouteReconciler implements Follower {
  readonly #options: ReconcilerOptions;
  readonly #plan: NodePlan;
  readonly #backoff: StepBackoff;
  readonly #reporter: ConditionReporter;
  readonly #buffer = new EventBuffer();
  readonly #rounds: WorkQueue<'round'>;
  #kernel: KernelState = { phase: 'unwatched', hasMissed: false };
  /** When the known state is checked. */
  #checkAtMs = Infinity;
  /** Notifications cause no check before. */
  #pauseEndMs = 0;
  /** End of the last full check by the wall clock; all other times are by the monotonic clock. */
  #checkedAtMs: number | undefined;
  /** Missing features are probed again after a time, as a module may have been loaded. */
  #probed: { readonly abilities: NodeAbilities; readonly againAtMs: number } | undefined;
  /** Why the last round failed; undefined after a success. */
  #failure: Condition | undefined;
  #driftCount = 0;

  constructor(options: ReconcilerOptions) {
    this.#options = options;
    this.#plan = new NodePlan(options);
    this.#backoff = new StepBackoff(options);
    this.#reporter = new ConditionReporter(options);
    this.#rounds = new WorkQueue({
      reconcile: () => this.#reconcile(),
      retryInMs: exponentialBackoff(ROUND_BACKOFF, options.random),
      onFailure: (error) => this.#roundFailed(error),
      clock: options.clock,
    });
    this.#rounds.request('round');
  }

  follow(view: ClusterView, change: ClusterChange): void {
    this.#plan.follow(view, change);
    this.#rounds.request('round');
  }

  async stop(): Promise<void> {
    await this.#rounds.stop();
    if ('watch' in this.#kernel) this.#kernel.watch.close();
  }

  /** Requests a full check as soon as possible. */
  check(): void {
    // The next round is a full check if the state is unknown.
    if ('known' in this.#kernel) this.#checkAtMs = this.#options.clock.monotonicMs();
    this.#rounds.request('round');
  }

  /** Parts of the cluster's state that this node cannot apply, with reasons. */
  conditions(): readonly Condition[] {
    return [...(this.#failure ? [this.#failure] : []), ...this.#reporter.conditions];
  }

  /** Name of the interface with the node's address of a family; undefined while unknown. */
  get parents(): NodeFacts['parents'] {
    return this.#plan.parents;
  }

  /** Name of the interface by which packets of a pool reach nodes of other subnets; undefined while unknown. */
  peerInterface(pool: ClusterPool): string | undefined {
    const { family } = pool.cidr;
    const { tunnel } = modeOf(encapsulationOf(pool));
    if (tunnel === 'none') return this.parents[family];
    return tunnel === 'vxlan' ? VXLAN_DEVICE[family] : IPIP_DEVICE;
  }

  get tunnels(): WantedNode['tunnels'] {
    return this.#plan.wanted?.tunnels ?? [];
  }

  status(): NodeStatus {
    const { wanted } = this.#plan;
    const kernel = this.#kernel;
    const known = 'known' in kernel ? kernel.known : undefined;
    return {
      state: this.#failure ? 'silent' : !wanted ? 'waiting' : 'known' in kernel ? kernel.phase : 'silent',
      tunnels: this.tunnels,
      wanted: wanted && countWanted(wanted),
      present: wanted && known && countPresent(wanted, known),
      conditions: this.conditions(),
      checkedAtMs: this.#checkedAtMs,
      driftCount: this.#driftCount,
    };
  }

  /** One round. @throws Failure when the kernel cannot be read, or the watch failed */
  async #reconcile(): Promise<NextRun> {
    const watch = await this.#ensureWatch();
    if (this.#plan.hasView) await this.#converge(watch);
    // The wanted state is still unknown, but pods may need repair.
    else this.#takeEvents();
    if (this.#failure) this.#options.events.kernelReadable();
    this.#failure = undefined;
    const dueMs = Math.min(this.#checkAtMs, this.#backoff.nextDueMs() ?? Infinity);
    return { inMs: dueMs - this.#options.clock.monotonicMs() };
  }

  async #converge(watch: NodeWatch): Promise<void> {
    const { kernel, clock } = this.#options;
    const abilities = await this.#readAbilities();
    const before = 'known' in this.#kernel ? this.#kernel.known : undefined;
    const isUpToDate = before && clock.monotonicMs() < this.#checkAtMs;
    const reading = isUpToDate ? this.#applyEvents(before) : await this.#readAll(watch);
    const retried = this.#backoff.takeDue();
    const plan = this.#plan.update(reading.known, abilities);
    const round = { before, reading, plan, retried };
    const converged = await new Convergence({
      kernel,
      backoff: this.#backoff,
      wanted: plan.wanted,
      known: reading.known,
      scope: scopeOf(round),
      isDrift: (step) => isDrift(step, round),
    }).run();
    const phase = this.#report(converged, round);
    this.#enter({ phase, watch, known: converged.known });
  }

  #roundFailed(error: unknown): void {
    const { events } = this.#options;
    if (!(error instanceof Failure)) events.roundFailed(error);
    else if (!this.#failure) events.kernelUnreadable(error);
    this.#failure = roundFailureCondition(error);
    this.#kernel = afterFailure(this.#kernel);
  }

  /** @throws Failure when the watch failed meanwhile: it is reopened after a back-off */
  #enter(state: KernelState): void {
    if (this.#kernel.phase === 'lost') throw this.#kernel.failure;
    this.#kernel = state;
  }

  /** The watch opens before the kernel is read, which covers earlier changes. */
  async #ensureWatch(): Promise<NodeWatch> {
    const state = this.#kernel;
    if (state.phase === 'lost') throw state.failure;
    if (state.phase !== 'unwatched') return state.watch;
    const watch = await this.#options.kernel.watch({
      changed: (change) => {
        this.#buffer.put(change);
        this.#rounds.request('round', EVENT_DELAY_MS);
      },
      failed: (failure) => {
        this.#kernel = { phase: 'lost', failure };
        this.#rounds.request('round');
      },
    });
    this.#enter({ phase: 'unread', watch });
    if (state.hasMissed) this.#buffer.put({ object: 'overrun' });
    return watch;
  }

  async #readAbilities(): Promise<NodeAbilities> {
    const { clock, kernel, checkIntervalMs = CHECK_INTERVAL_MS } = this.#options;
    const { abilities, againAtMs } = this.#probed ?? { againAtMs: 0 };
    if (abilities && ((abilities.hasVxlan && abilities.hasIpip) || clock.monotonicMs() < againAtMs)) return abilities;
    const probed = await kernel.abilities();
    this.#probed = { abilities: probed, againAtMs: clock.monotonicMs() + checkIntervalMs };
    return probed;
  }

  async #readAll(watch: NodeWatch): Promise<Reading> {
    const { clock, events, kernel, random, checkIntervalMs = CHECK_INTERVAL_MS } = this.#options;
    // The reading covers all earlier notifications.
    this.#takeEvents();
    const startMs = clock.monotonicMs();
    const known = await observeNode(kernel, this.#plan.wanted).catch((error: unknown) => {
      events.checked('failed', clock.monotonicMs() - startMs);
      throw error;
    });
    this.#checkedAtMs = clock.nowMs();
    const endMs = clock.monotonicMs();
    const checkMs = endMs - startMs;
    this.#checkAtMs = endMs + checkIntervalMs * (1 + CHECK_JITTER * (2 * random() - 1));
    this.#pauseEndMs = endMs + CHECK_PAUSE_FACTOR * checkMs;
    // Until the round ends, the result of the last one counts.
    this.#enter({ phase: this.#kernel.phase === 'as-wanted' ? 'as-wanted' : 'reconciling', watch, known });
    return { known, effects: undefined, checkMs };
  }

  #applyEvents(known: NodeStateCache): Reading {
    const wanted = this.#plan.wanted ?? NOTHING_WANTED;
    const parents = this.#parentNames();
    const unavailable = unavailableDevices(wanted, { known, parents });
    const isParent = (device: string): boolean => parents.includes(device) || unavailable.has(device);
    const applier = new EventApplier({ known, wanted, isParent });
    const { changes, hasOverrun } = this.#takeEvents();
    for (const change of changes) applier.apply(change);
    const { effects } = applier;
    if (hasOverrun || effects.needsCheck) this.#checkSoon();
    return { known, effects };
  }

  /** Takes the collected notifications, and passes on those about pods. */
  #takeEvents(): BufferedEvents {
    const { events, onPodInterface } = this.#options;
    const taken = this.#buffer.take();
    if (taken.hasOverrun) events.overrun();
    if (taken.hasOverrun) onPodInterface?.(undefined, false);
    for (const [name, isInterference] of podInterfacesOf(taken.changes)) onPodInterface?.(name, isInterference);
    return taken;
  }

  /** Schedules a full check: now, or after a pause when the last one has just ended, so that a storm causes few readings. */
  #checkSoon(): void {
    const earliestMs = Math.max(this.#pauseEndMs, this.#options.clock.monotonicMs());
    this.#checkAtMs = Math.min(this.#checkAtMs, earliestMs);
    // Refused steps may succeed after the change.
    this.#backoff.retryRefused();
  }

  /** @returns whether the kernel is as wanted */
  #report({ known, done, refused, drift }: ConvergenceResult, { reading, plan }: Round): 'reconciling' | 'as-wanted' {
    const { events } = this.#options;
    if (done + refused > 0) events.applied({ done, refused });
    if (drift) {
      for (const count of drift.counts.values()) this.#driftCount += count;
      events.drifted(drift.counts, formatNodeStep(drift.example));
    }
    if (!reading.effects) events.checked(drift ? 'drift' : 'clean', reading.checkMs);
    const context = { known, attempts: this.#backoff, parents: this.#parentNames() };
    const conditions = kernelConditions(plan.wanted, context);
    this.#reporter.report([...plan.wanted.conditions, ...conditions]);
    return conditions.length === 0 && this.#backoff.nextDueMs() === undefined ? 'as-wanted' : 'reconciling';
  }

  #parentNames(): string[] {
    return Object.values(this.parents).filter((name) => name !== undefined);
  }
}

/** The operator's message for a failed round. */
function roundFailureCondition(error: unknown): Condition {
  const reason = error instanceof Failure ? error.message : 'internal error, see the log of podwire-node';
  const message = `routes between nodes are not reconciled: ${reason}; existing routes stay, retrying`;
  return { reason: 'KernelSilent', message };
}

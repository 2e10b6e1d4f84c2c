import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterChange, ClusterNode, ClusterPool, ClusterView } from '../cluster/cluster.js';
import type { Lease, LeaseBook, LeaseListing } from './lease.js';
import type { LeaseEvents } from './lease-events.js';
import type { LeaseStock } from './lease-stock.js';

/** How many unbound leases of a family the node keeps. */
export interface LeaseMarks {
  /** A refill begins when so many are left. */
  readonly lowCount: number;
  /** A refill ends with so many; 0 turns leasing off. */
  readonly highCount: number;
}

interface LeaseKeeperOptions {
  readonly stock: LeaseStock;
  readonly book: LeaseBook;
  readonly marks: LeaseMarks;
  readonly events: LeaseEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Addresses of interfaces in the kernel whose attachments have no record. */
  readonly occupied: () => ReadonlySet<string>;
  /** Called with each listing, before its leases are offered. */
  readonly onListing: (listing: LeaseListing, signal: AbortSignal) => Promise<void>;
}

/** Why a pod gets no lease; a value of the metric's label `reason`. */
export type NoLease = 'off' | 'known' | 'unavailable' | 'exhausted';

export type TakenLeases =
  { readonly leases: readonly Lease[] } | { readonly leases?: undefined; readonly reason: NoLease };

const BACKOFF: BackoffBounds = { baseMs: 200, maxMs: 15_000 };

/** Timeout of a run, in milliseconds. */
const TIMEOUT_MS = 10_000;

/** How long an ADD waits for leases that are on their way, in milliseconds. Then podwire-ipam allocates its addresses. */
const WAIT_MS = 500;

/** A refill within this time after the last one doubles the number of leases, in milliseconds. */
const BUSY_MS = 2000;
/** Most leases of a family that a busy node keeps. */
const MAX_COUNT = 128;

/** Mean time between two comparisons with podwire-ipam: settings of the cluster may have changed without an event. */
const LISTING_INTERVAL_MS = 60_000;

/** All nodes see a change of a pool at once: time over which their listings are spread, in milliseconds. */
const CHANGE_SPREAD_MS = 5000;

/** After a recall, other nodes need the addresses: time without leases, in milliseconds. */
const RECALL_PAUSE_MS = 60_000;

/** Largest relative deviation of an interval from its mean, so that nodes that start together drift apart. */
const JITTER = 0.2;

interface SeenCluster {
  readonly node: ClusterNode;
  readonly pools: ReadonlyMap<string, ClusterPool>;
}

interface FamilyState {
  /** Number of leases that a refill aims at. */
  targetCount: number;
  /** Of the last refill, by the monotonic clock. */
  refilledAtMs: number;
  /** Whether the next run can bring leases: the last one did not fail, and podwire-ipam had enough. */
  isSupplied: boolean;
  /** Without leases until then, by the monotonic clock. */
  pausedUntilMs: number;
  /** Whether a pod of this family was added on this node. */
  isWanted: boolean;
  /** ADDs that wait for the end of a run. */
  waiting: (() => void)[];
}

/**
 * Keeps unbound leases on the node, so that an ADD finds its address there: refills them in the background, returns what exceeds
 * the mark, and returns all when podwire-ipam recalls them for other nodes.
 */
export class LeaseKeeper {
  readonly #options: LeaseKeeperOptions;
  readonly #queue: WorkQueue<Family>;
  readonly #states: ReadonlyMap<Family, FamilyState>;
  /** As last seen in the cluster's state; undefined: not yet. */
  #seen: SeenCluster | undefined;

  constructor(options: LeaseKeeperOptions) {
    this.#options = options;
    const { clock, random, events, stock, marks } = options;
    this.#queue = new WorkQueue({
      reconcile: (family, signal) => this.#run(family, signal),
      retryInMs: exponentialBackoff(BACKOFF, random),
      onFailure: (error, retryInMs, family) => {
        if (!(error instanceof Failure)) throw error;
        this.#state(family).isSupplied = false;
        events.refillFailed(family, error, retryInMs);
      },
      clock,
      timeoutMs: TIMEOUT_MS,
      // The stock compares one listing at a time with what happened meanwhile.
      concurrency: 1,
    });
    const stateOf = (family: Family): FamilyState => ({
      targetCount: marks.highCount,
      refilledAtMs: Number.NEGATIVE_INFINITY,
      isSupplied: true,
      pausedUntilMs: Number.NEGATIVE_INFINITY,
      isWanted: stock.count(family) > 0,
      waiting: [],
    });
    this.#states = new Map(([4, 6] as const).map((family) => [family, stateOf(family)]));
  }

  /** Finds the leases that the node has in podwire-ipam. Call once. */
  start(): void {
    for (const family of this.#states.keys()) this.#queue.request(family);
  }

  /** Takes one lease of each family, in that order. Waits shortly for leases that are on their way. */
  async take(families: readonly Family[], signal: AbortSignal): Promise<TakenLeases> {
    const { stock, marks, clock } = this.#options;
    if (marks.highCount === 0) return { reason: 'off' };
    for (const family of families) this.#state(family).isWanted = true;
    const deadlineMs = clock.monotonicMs() + WAIT_MS;
    let leases = stock.take(families);
    while (!leases) {
      const missing = families.filter((family) => stock.count(family) === 0).map((family) => this.#state(family));
      if (!missing.every((state) => this.#isSupplied(state))) return { reason: 'unavailable' };
      const ends = missing.map((state) => new Promise<void>((resolve) => state.waiting.push(resolve)));
      this.#refillLow(families);
      const leftMs = deadlineMs - clock.monotonicMs();
      if (leftMs <= 0 || signal.aborted) return { reason: 'exhausted' };
      const done = new AbortController();
      await Promise.race([Promise.all(ends), clock.sleep(leftMs, AbortSignal.any([signal, done.signal]))]);
      done.abort();
      leases = stock.take(families);
    }
    this.#refillLow(families);
    return { leases };
  }

  /** Returns leases of a pod that was never wired. */
  giveBack(leases: readonly Lease[]): void {
    this.#options.stock.giveBack(leases);
  }

  /** Whether a pod of these families would get leases. */
  hasLeases(families: readonly Family[]): boolean {
    return families.every((family) => this.#options.stock.count(family) > 0);
  }

  /**
   * Returns the leases when podwire-ipam recalls them. Lists them when a pool or this node has changed: they may be outdated.
   * Changes of other nodes, the most frequent ones, have no effect.
   */
  follow({ self, cluster: { nodes, pools } }: ClusterView, { hasOtherChanges }: ClusterChange): void {
    const node = nodes.get(self) ?? this.#seen?.node;
    if (!hasOtherChanges || !node) return;
    const before = this.#seen;
    this.#seen = { node, pools };
    if (before && (node.leaseRecallCount ?? 0n) !== (before.node.leaseRecallCount ?? 0n)) this.#recall();
    else if (before?.node !== node || before.pools !== pools) this.#listSoon();
  }

  #recall(): void {
    const pausedUntilMs = this.#options.clock.monotonicMs() + this.#jittered(RECALL_PAUSE_MS);
    for (const [family, state] of this.#states) {
      state.pausedUntilMs = pausedUntilMs;
      this.#queue.hurry(family);
    }
    this.#options.events.recalled();
  }

  #listSoon(): void {
    for (const [family, { isWanted }] of this.#states)
      if (isWanted) this.#queue.request(family, this.#options.random() * CHANGE_SPREAD_MS);
  }

  /** The leases stay on the node, for the next process. */
  async stop(): Promise<void> {
    await this.#queue.stop();
    for (const state of this.#states.values()) endWaits(state);
  }

  #refillLow(families: readonly Family[]): void {
    for (const family of families)
      if (this.#options.stock.count(family) <= this.#options.marks.lowCount) this.#queue.request(family);
  }

  async #run(family: Family, signal: AbortSignal): Promise<NextRun | undefined> {
    const state = this.#state(family);
    try {
      return await this.#reconcile(family, state, signal);
    } finally {
      endWaits(state);
    }
  }

  async #reconcile(family: Family, state: FamilyState, signal: AbortSignal): Promise<NextRun | undefined> {
    const { stock, marks, clock } = this.#options;
    const isPaused = this.#isPaused(state);
    if (!isPaused) this.#adaptTarget(state, stock.count(family), clock.monotonicMs());
    const keptCount = isPaused ? 0 : state.targetCount;
    stock.withdraw(family, keptCount);
    await this.#returnWithdrawn(family, signal);
    const askedCount = await this.#refill(family, keptCount, signal);
    // The listing may have outdated leases, more than were asked for, and after a lost answer leases that are new here.
    stock.withdraw(family, Math.max(keptCount, askedCount));
    await this.#returnWithdrawn(family, signal);
    if (isPaused) return { inMs: Math.max(0, state.pausedUntilMs - clock.monotonicMs()) };
    return marks.highCount === 0 ? undefined : { inMs: this.#jittered(LISTING_INTERVAL_MS) };
  }

  /** A busy node keeps more leases, so that one transaction carries many pods; a quiet one returns to the mark. */
  #adaptTarget(state: FamilyState, count: number, nowMs: number): void {
    const { highCount, lowCount } = this.#options.marks;
    const isBusy = nowMs - state.refilledAtMs < BUSY_MS;
    if (!isBusy || highCount === 0) state.targetCount = highCount;
    else if (count <= lowCount) state.targetCount = Math.min(Math.max(2 * state.targetCount, 1), MAX_COUNT);
  }

  /** @returns how many leases were asked for, with those of pods that podwire-ipam had not recorded yet */
  async #refill(family: Family, keptCount: number, signal: AbortSignal): Promise<number> {
    const { stock, book, clock, events, occupied, onListing } = this.#options;
    const state = this.#state(family);
    const startedMs = clock.monotonicMs();
    const beforeCount = stock.count(family);
    const wantedCount = state.isWanted && keptCount > 0 ? keptCount + stock.takenCount(family) : 0;
    // A DEL meanwhile ends what such an attachment holds, which the listing has as a lease.
    const occupiedAtFirst = occupied();
    stock.beginListing();
    const listing = await book.lease(family, wantedCount, signal);
    await onListing(listing, signal);
    stock.takeListing(family, listing, occupiedAtFirst);
    const count = stock.count(family);
    if (count > 0) state.isWanted = true;
    state.isSupplied = listing.explanation === '';
    events.listed(family, { count, explanation: listing.explanation });
    if (count <= beforeCount) return wantedCount;
    state.refilledAtMs = clock.monotonicMs();
    events.refilled(family, { addedCount: count - beforeCount, durationMs: state.refilledAtMs - startedMs });
    return wantedCount;
  }

  async #returnWithdrawn(family: Family, signal: AbortSignal): Promise<void> {
    const { stock, book, events } = this.#options;
    const leases = stock.withdrawn(family);
    if (leases.length === 0) return;
    await book.returnLeases(leases, signal);
    stock.returned(leases);
    events.returned(leases.length);
  }

  #isPaused({ pausedUntilMs }: FamilyState): boolean {
    return this.#options.clock.monotonicMs() < pausedUntilMs;
  }

  #isSupplied(state: FamilyState): boolean {
    return state.isSupplied && !this.#isPaused(state);
  }

  #state(family: Family): FamilyState {
    const state = this.#states.get(family);
    if (!state) throw new Error(`no state of family ${family}`);
    return state;
  }

  #jittered(meanMs: number): number {
    return meanMs * (1 + JITTER * (2 * this.#options.random() - 1));
  }
}

function endWaits(state: FamilyState): void {
  for (const resolve of state.waiting.splice(0)) resolve();
}

import type { ClusterChange, ClusterNode, ClusterPool, ClusterView } from '@podwire/dataplane/cluster/cluster';
import { FAMILIES, type Family } from '@podwire/shared/net/address';
import type { NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';
import { NS_PER_MS } from '@podwire/shared/runtime/wall-clock';
import { recordInterval } from '@podwire/shared/telemetry/intervals';

import type { AddressEvents } from './events.js';
import { leaseAddresses, leaseReturn, returnAddresses } from './lease-calls.js';
import type { Lease, LeaseMarks } from './lease.js';
import type { IpamSession } from './session.js';
import type { Settlement } from './settlement.js';
import type { LeaseStock } from './stock.js';

/** How long an ADD waits for leases that are on their way, in milliseconds. Then podwire-ipam allocates its addresses. */
const WAIT_MS = 500;

/** A refill while leases are left waits for the end of the command that took one, in milliseconds. */
const REFILL_DELAY_MS = 50;

/** A refill lasts for so many intervals of the settlement, at the rate of pods since the last one. */
const REFILL_INTERVALS = 6;
/** Most leases of a family that a busy node keeps. */
const MAX_COUNT = 128;

/** Mean time between two comparisons with podwire-ipam: settings of the cluster may have changed without an event. */
const LISTING_INTERVAL_MS = 60_000;

/** All nodes see a change of a pool at once: time over which their listings are spread, in milliseconds. */
const CHANGE_SPREAD_MS = 5000;

/** Time without leases after a recall, as other nodes need the addresses, in milliseconds. */
const RECALL_PAUSE_MS = 60_000;

/** Largest relative deviation of an interval from its mean, so that nodes that start together drift apart. */
const JITTER = 0.2;

interface LeaseRefillOptions {
  readonly stock: LeaseStock;
  readonly session: IpamSession;
  readonly marks: LeaseMarks;
  readonly events: AddressEvents;
  readonly clock: Clock;
  /** Time since the boot, in milliseconds. */
  readonly bootMs: () => number;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Number of addresses that podwire-ipam still has as leases, and pods have. */
  readonly unboundCount: (family: Family) => number;
  /** Gets the interval that podwire-ipam names. */
  readonly settlement: Pick<Settlement, 'bind' | 'hurryReturns' | 'interval'>;
  /** Called with each listing, before its leases are offered. */
  readonly onListing: (leases: readonly Lease[], signal: AbortSignal) => Promise<void>;
  /** Requests a run in this time; undefined: now, whatever failed before. */
  readonly request: (family: Family, afterMs: number | undefined) => void;
}

interface SeenCluster {
  readonly node: ClusterNode;
  readonly pools: ReadonlyMap<string, ClusterPool>;
}

interface FamilyState {
  /** Number of leases that a refill aims at. */
  targetCount: number;
  /** podwire-ipam's, of the last listing. */
  limit: number;
  /** Time of the last refill, by the monotonic clock. */
  refilledAtMs: number;
  /** Number of leases that pods took since then. */
  takenCount: number;
  /** Whether the next run can bring leases: the last one did not fail, and podwire-ipam had enough. */
  isSupplied: boolean;
  /** End of the pause in leases, by the monotonic clock. */
  pausedUntilMs: number;
  /** Whether a pod of this family was added on this node. */
  isWanted: boolean;
  /** ADDs that wait for the end of a run. */
  waiting: (() => void)[];
}

/**
 * Keeps unbound leases on the node, so that an ADD finds its address there: refills them in the background, returns what exceeds
 * the mark or podwire-ipam's limit, and returns all when podwire-ipam recalls them for other nodes.
 */
export class LeaseRefill {
  readonly #options: LeaseRefillOptions;
  readonly #states: ReadonlyMap<Family, FamilyState>;
  /** Cluster state as last seen; undefined: not yet. */
  #seen: SeenCluster | undefined;

  constructor(options: LeaseRefillOptions) {
    this.#options = options;
    const { marks, stock } = options;
    const stateOf = (family: Family): FamilyState => ({
      targetCount: marks.highCount,
      limit: Number.POSITIVE_INFINITY,
      refilledAtMs: Number.NEGATIVE_INFINITY,
      takenCount: 0,
      isSupplied: true,
      pausedUntilMs: Number.NEGATIVE_INFINITY,
      isWanted: stock.count(family) > 0,
      waiting: [],
    });
    this.#states = new Map(FAMILIES.map((family) => [family, stateOf(family)]));
  }

  /** Lists all leases soon. */
  list(afterMs = 0): void {
    for (const family of this.#states.keys()) this.#options.request(family, afterMs);
  }

  /** Lists all leases now, whatever failed before. */
  listNow(): void {
    for (const family of this.#states.keys()) this.#options.request(family, undefined);
  }

  /**
   * Takes one lease of each family, in that order. Waits shortly for leases that are on their way.
   * @returns why there are none
   */
  async take(
    families: readonly Family[],
    signal: AbortSignal,
  ): Promise<readonly Lease[] | 'unavailable' | 'exhausted'> {
    const { stock, clock } = this.#options;
    for (const family of families) this.#state(family).isWanted = true;
    const deadlineMs = clock.monotonicMs() + WAIT_MS;
    let leases = stock.take(families);
    while (!leases) {
      const missing = families.filter((family) => stock.count(family) === 0).map((family) => this.#state(family));
      if (!missing.every((state) => state.isSupplied && !this.#isPaused(state))) {
        this.#options.settlement.hurryReturns();
        return 'unavailable';
      }
      const ends = missing.map((state) => new Promise<void>((resolve) => state.waiting.push(resolve)));
      this.#refillLow(families);
      const leftMs = deadlineMs - clock.monotonicMs();
      if (leftMs <= 0 || signal.aborted) return 'exhausted';
      const done = new AbortController();
      const timeout = clock.sleep(leftMs, AbortSignal.any([signal, done.signal]));
      await recordInterval('podwire-ipam LeaseAddresses', 'rpc', () => Promise.race([Promise.all(ends), timeout]));
      done.abort();
      leases = stock.take(families);
    }
    for (const family of families) this.#state(family).takenCount++;
    this.#refillLow(families);
    return leases;
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

  /** The last run has failed. */
  failed(family: Family): void {
    this.#state(family).isSupplied = false;
  }

  /** Ends the waits. */
  end(): void {
    for (const state of this.#states.values()) endWaits(state);
  }

  async run(family: Family, signal: AbortSignal): Promise<NextRun | undefined> {
    const state = this.#state(family);
    try {
      return await this.#reconcile(family, state, signal);
    } finally {
      endWaits(state);
    }
  }

  #recall(): void {
    const pausedUntilMs = this.#options.clock.monotonicMs() + this.#jittered(RECALL_PAUSE_MS);
    for (const [family, state] of this.#states) {
      state.pausedUntilMs = pausedUntilMs;
      this.#options.request(family, undefined);
    }
    this.#options.settlement.hurryReturns();
    this.#options.events.recalled();
  }

  #listSoon(): void {
    for (const [family, { isWanted }] of this.#states)
      if (isWanted) this.#options.request(family, this.#options.random() * CHANGE_SPREAD_MS);
  }

  #refillLow(families: readonly Family[]): void {
    const { stock, marks, request } = this.#options;
    for (const family of families) {
      const count = stock.count(family);
      if (count <= marks.lowCount) request(family, count > 0 ? REFILL_DELAY_MS : 0);
    }
  }

  async #reconcile(family: Family, state: FamilyState, signal: AbortSignal): Promise<NextRun | undefined> {
    const { stock, marks, clock } = this.#options;
    const isPaused = this.#isPaused(state);
    if (!isPaused) this.#adaptTarget(state);
    const keptCount = isPaused ? 0 : state.targetCount;
    const { isWanted } = state;
    await this.#return(stock.withdraw(family, keptCount), signal);
    await this.#refill(family, keptCount, signal);
    if (isPaused) return { inMs: Math.max(0, state.pausedUntilMs - clock.monotonicMs()) };
    if (marks.highCount === 0) return undefined;
    // A pod of the family came during the run, which requested no lease.
    const isLate = state.isWanted && !isWanted;
    return { inMs: isLate ? REFILL_DELAY_MS : this.#jittered(LISTING_INTERVAL_MS) };
  }

  /** A busy node keeps more leases, so that one transaction carries many pods; a quiet one returns to the mark. */
  #adaptTarget(state: FamilyState): void {
    const { marks, clock, settlement } = this.#options;
    const { highCount } = marks;
    const intervals = (clock.monotonicMs() - state.refilledAtMs) / settlement.interval.longestMs;
    const neededCount = Math.ceil((state.takenCount * REFILL_INTERVALS) / Math.max(intervals, 1));
    const keptCount = intervals < REFILL_INTERVALS ? state.targetCount : highCount;
    state.targetCount = highCount === 0 ? 0 : Math.min(Math.max(neededCount, keptCount), MAX_COUNT);
  }

  /** Lists and refills; returns outdated leases and what exceeds podwire-ipam's limit. */
  async #refill(family: Family, keptCount: number, signal: AbortSignal): Promise<void> {
    const { stock, session, clock, bootMs, events, marks, settlement, onListing, unboundCount } = this.#options;
    const state = this.#state(family);
    if (keptCount > 0 && keptCount + unboundCount(family) > state.limit) {
      // Until then they count towards podwire-ipam's limit.
      await settlement.bind(signal);
    }
    const [startedMs, startedBootMs] = [clock.monotonicMs(), bootMs()];
    const beforeCount = stock.count(family);
    // podwire-ipam counts the leases of pods that it does not know yet.
    const aimedCount = beforeCount <= marks.lowCount ? keptCount : Math.min(beforeCount, keptCount);
    const wantedCount = state.isWanted && keptCount > 0 ? aimedCount + unboundCount(family) : 0;
    const listing = await leaseAddresses(session, family, wantedCount, signal);
    const leases = listing.addresses.filter(({ outdated }) => !outdated).map(leaseOf);
    await onListing(leases, signal);
    const { settleAfter, settleWithin } = listing;
    if (settleAfter) settlement.interval = { quietMs: durationMs(settleAfter), longestMs: durationMs(settleWithin) };
    const validForMs = durationMs(listing.validFor);
    stock.list(family, {
      leases,
      validUntilMs: startedBootMs + validForMs,
      coolDownMs: durationMs(listing.coolDown),
    });
    const count = stock.count(family);
    if (count > 0) state.isWanted = true;
    state.limit = listing.limit;
    state.isSupplied = listing.explanation === '';
    events.listed(family, { count, explanation: listing.explanation });
    if (count > beforeCount) {
      state.refilledAtMs = clock.monotonicMs();
      state.takenCount = 0;
      events.refilled(family, { addedCount: count - beforeCount, durationMs: state.refilledAtMs - startedMs });
    }
    const outdated = listing.addresses.filter((lease) => lease.outdated && !stock.isInUse(lease.address));
    // A recalled node keeps none, also none that an unanswered call leased.
    const limit = Math.min(listing.limit, Math.max(keptCount, wantedCount));
    await this.#return([...outdated, ...stock.withdraw(family, limit)], signal);
  }

  async #return(leases: readonly Pick<Lease, 'address' | 'sequenceNumber'>[], signal: AbortSignal): Promise<void> {
    if (leases.length === 0) return;
    const { session, events } = this.#options;
    await returnAddresses(session, leases.map(leaseReturn), signal);
    events.returned(leases.length);
  }

  #isPaused({ pausedUntilMs }: FamilyState): boolean {
    return this.#options.clock.monotonicMs() < pausedUntilMs;
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

const MS_PER_SECOND = 1000;

/** A duration of the contract; an absent one is 0. */
function durationMs(duration: { readonly seconds: bigint; readonly nanos: number } | undefined): number {
  return duration ? Number(duration.seconds) * MS_PER_SECOND + duration.nanos / Number(NS_PER_MS) : 0;
}

function leaseOf({ address, sequenceNumber, poolName }: Lease): Lease {
  return { address, sequenceNumber, poolName };
}

function endWaits(state: FamilyState): void {
  for (const resolve of state.waiting.splice(0)) resolve();
}

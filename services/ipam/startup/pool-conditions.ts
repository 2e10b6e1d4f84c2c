import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Events } from '../engine/events.js';
import type { Observed } from '../engine/mirror/mirror.js';
import type { IpamOptions } from '../engine/updates/operation.js';
import { poolStatuses, type PoolAdmission } from '../pools/admission.js';
import type { PoolEvents } from '../pools/pools-operations.js';
import type { RecordKeys } from '../records/json/keys.js';
import type { OpenStore } from './datastore.js';

interface PoolConditionsOptions {
  readonly admission: PoolAdmission;
  readonly publish: NonNullable<OpenStore['publishPools']>;
  readonly updates: Pick<IpamOptions['updates'], 'read'>;
  readonly keys: RecordKeys;
  readonly events: Pick<Events, 'upkeepFailed'>;
  readonly poolEvents: Pick<PoolEvents, 'poolRefused'>;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

/** Mean time between two runs without a change of a pool: findings also depend on nodes and blocks. In milliseconds. */
const INTERVAL_MS = 30_000;

/** How long a deletion is left to podwirectl, which may have begun it. */
const DELETION_PAUSE_MS = 1000;

const TASK = 'publish-pool-status';

/**
 * Follows changes of pools by any tool: keeps their status up to date, and completes deletions. A locked datastore is being copied, so
 * both wait until it is unlocked.
 */
export class PoolConditions {
  readonly #options: PoolConditionsOptions;
  readonly #queue: WorkQueue<typeof TASK>;
  /** Messages of the pools that podwire-ipam refuses, by name. */
  #refused: ReadonlyMap<string, string> = new Map();
  /** When the pools that are being deleted were first seen, by name. */
  #deletedSinceMs: ReadonlyMap<string, number> = new Map();
  #finishDeletions: ((signal: AbortSignal) => Promise<void>) | undefined;

  constructor(options: PoolConditionsOptions) {
    this.#options = options;
    const { events, clock, random } = options;
    const pauseMs = (): number => INTERVAL_MS * (0.5 + random());
    this.#queue = new WorkQueue({
      reconcile: async (_, signal) => {
        const isSoon = await this.#publish(signal);
        return { inMs: isSoon ? DELETION_PAUSE_MS : pauseMs() };
      },
      retryInMs: pauseMs,
      onFailure: (error) => events.upkeepFailed(TASK, error),
      timeoutMs: INTERVAL_MS,
      clock,
    });
  }

  begin(finishDeletions: (signal: AbortSignal) => Promise<void>): void {
    this.#finishDeletions = finishDeletions;
    this.#queue.request(TASK);
  }

  /** Receives what the mirror has applied. Before {@link begin}, another podwire-ipam may lead. */
  observe(observed: Observed): void {
    if (!this.#finishDeletions) return;
    const records = observed.type === 'listed' ? observed.records : observed.changes;
    const { pools, clusterInformation } = this.#options.keys;
    const isAffected = (key: string): boolean => key.startsWith(pools) || key === clusterInformation;
    if (observed.type === 'listed' || records.some(({ key }) => isAffected(key))) this.#queue.hurry(TASK);
  }

  stop(): Promise<void> {
    return this.#queue.stop();
  }

  /** @returns whether a deletion has just begun */
  async #publish(signal: AbortSignal): Promise<boolean> {
    const { admission, publish, updates, poolEvents, clock } = this.#options;
    const statuses = await updates.read((view) => (view.isLocked() ? undefined : poolStatuses(view, admission)), {
      signal,
    });
    if (!statuses) return false;
    const refused = statuses.filter(({ isRefused }) => isRefused);
    for (const { name, message } of refused)
      if (this.#refused.get(name) !== message) poolEvents.poolRefused(name, message);
    this.#refused = new Map(refused.map(({ name, message }) => [name, message]));
    await publish(statuses, signal);
    const nowMs = clock.monotonicMs();
    const deleted = statuses.filter(({ reason }) => reason === 'Terminating');
    this.#deletedSinceMs = new Map(deleted.map(({ name }) => [name, this.#deletedSinceMs.get(name) ?? nowMs]));
    const times = [...this.#deletedSinceMs.values()];
    if (times.some((timeMs) => nowMs - timeMs >= DELETION_PAUSE_MS)) await this.#finishDeletions?.(signal);
    return times.some((timeMs) => nowMs - timeMs < DELETION_PAUSE_MS);
  }
}

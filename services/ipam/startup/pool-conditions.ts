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

const TASK = 'publish-pool-status';

/** Keeps the status of pools up to date after each change of a pool by any tool. */
export class PoolConditions {
  readonly #options: PoolConditionsOptions;
  readonly #queue: WorkQueue<typeof TASK>;
  /** Messages of the pools that podwire-ipam refuses, by name. */
  #refused: ReadonlyMap<string, string> = new Map();

  constructor(options: PoolConditionsOptions) {
    this.#options = options;
    const { events, clock, random } = options;
    const pauseMs = (): number => INTERVAL_MS * (0.5 + random());
    this.#queue = new WorkQueue({
      reconcile: async (_, signal) => {
        await this.#publish(signal);
        return { inMs: pauseMs() };
      },
      retryInMs: pauseMs,
      onFailure: (error) => events.upkeepFailed(TASK, error),
      timeoutMs: INTERVAL_MS,
      clock,
    });
    this.#queue.request(TASK);
  }

  /** Receives what the mirror has applied. */
  observe(observed: Observed): void {
    const records = observed.type === 'listed' ? observed.records : observed.changes;
    const { pools } = this.#options.keys;
    if (observed.type === 'listed' || records.some(({ key }) => key.startsWith(pools))) this.#queue.hurry(TASK);
  }

  stop(): Promise<void> {
    return this.#queue.stop();
  }

  async #publish(signal: AbortSignal): Promise<void> {
    const { admission, publish, updates, poolEvents } = this.#options;
    const statuses = await updates.read((view) => poolStatuses(view, admission), { signal });
    const refused = statuses.filter(({ isRefused }) => isRefused);
    for (const { name, message } of refused)
      if (this.#refused.get(name) !== message) poolEvents.poolRefused(name, message);
    this.#refused = new Map(refused.map(({ name, message }) => [name, message]));
    await publish(statuses, signal);
  }
}

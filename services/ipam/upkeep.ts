import { context } from '@opentelemetry/api';
import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import { withAuthor } from '@podwire/shared/rpc/access';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import type { UpkeepTaskName } from '@podwire/shared/telemetry/catalog/metrics-ipam';

import type { AuditEvents } from './audit/audit-operations.js';
import type { Ipam } from './ipam.js';

/** Background work: finishes interrupted operations. Several replicas may run it concurrently. */
export interface UpkeepTask {
  readonly name: UpkeepTaskName;
  readonly run: (signal: AbortSignal) => Promise<void>;
}

export interface UpkeepOptions {
  readonly tasks: readonly UpkeepTask[];
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Receives each failed task; the next round retries it. Must not throw. */
  readonly reportFailure: (task: UpkeepTaskName, error: unknown) => void;
  /** Mean time from the end of a task to its next run. Default: 30,000. */
  readonly intervalMs?: number;
  /** Time limit of a run. Default: 60,000. */
  readonly taskTimeoutMs?: number;
}

/**
 * Runs its tasks one at a time, immediately and then periodically. The runs of replicas drift apart: each pause is 0.5 to 1.5 times
 * the interval.
 */
export class Upkeep {
  readonly #queue: WorkQueue<UpkeepTask>;

  /** The creator stops it before it closes the dependencies of its tasks. */
  constructor({ tasks, clock, random, reportFailure, intervalMs = 30_000, taskTimeoutMs = 60_000 }: UpkeepOptions) {
    const pauseMs = (): number => intervalMs * (0.5 + random());
    this.#queue = new WorkQueue({
      reconcile: async (task, signal) => {
        await context.with(withAuthor(context.active(), `podwire-ipam: ${task.name}`), () => task.run(signal));
        return { inMs: pauseMs() };
      },
      retryInMs: pauseMs,
      onFailure: (error, _, { name }) => reportFailure(name, error),
      timeoutMs: taskTimeoutMs,
      concurrency: 1,
      clock,
    });
    for (const task of tasks) this.#queue.request(task);
  }

  /** Aborts the task in progress and waits for its end. Idempotent. */
  stop(): Promise<void> {
    return this.#queue.stop();
  }
}

interface LockPauseOptions {
  /** Whether Calico's tools have locked the datastore, as far as this replica knows. */
  readonly isLocked: () => Promise<boolean>;
  readonly log: Logger;
}

/** Prevents upkeep from changing allocations while the datastore is locked, and logs the begin and end of a lock. */
export class LockGuard {
  readonly #options: LockPauseOptions;
  #wasLocked = false;

  constructor(options: LockPauseOptions) {
    this.#options = options;
  }

  /** The task, which does nothing while the datastore is locked. */
  unlessLocked({ name, run }: UpkeepTask): UpkeepTask {
    return {
      name,
      run: async (signal) => {
        if (!(await this.#checkLock())) await run(signal);
      },
    };
  }

  async #checkLock(): Promise<boolean> {
    const { isLocked, log } = this.#options;
    const locked = await isLocked();
    if (locked && !this.#wasLocked)
      log.warn(
        'the datastore is locked (datastoreReady false in Calico\'s ClusterInformation "default"): allocations and releases fail with STORE_LOCKED, and upkeep pauses; unlock it after the migration: calicoctl datastore migrate unlock',
      );
    if (!locked && this.#wasLocked) log.info('the datastore is unlocked: allocations and releases are served again');
    this.#wasLocked = locked;
    return locked;
  }
}

/** Maximum repairs per run; the next run does the rest. */
const MAX_REPAIRS_COUNT = 1000;

interface MaintenanceOptions {
  readonly audits: Pick<Ipam['audits'], 'collectGarbage'>;
  readonly events: Pick<AuditEvents, 'garbageLimitReached'>;
}

/**
 * Removes what an older Calico left behind: orphaned handles and affinities, empty blocks without an owner, and
 * addresses whose cool-down is over in unused blocks. Podwire itself leaves none of these, and no holder loses an
 * address.
 *
 * The first round does nothing, as a replica is busy when it starts.
 */
export function garbageTask({ audits, events }: MaintenanceOptions): UpkeepTask {
  let rounds = 0;
  return {
    name: 'collect-garbage',
    run: async (signal) => {
      if (rounds++ === 0) return;
      const { more } = await audits.collectGarbage(MAX_REPAIRS_COUNT, signal);
      if (more) events.garbageLimitReached(MAX_REPAIRS_COUNT);
    },
  };
}

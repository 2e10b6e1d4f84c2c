import { setMaxListeners } from 'node:events';

import { context, ROOT_CONTEXT } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { backoffMs, type BackoffBounds } from './schedule.js';
import type { Clock } from '../runtime/clock.js';

/** When to run again by itself; nothing: with the next request only. */
export interface NextRun {
  readonly inMs: number;
}

export interface WorkQueueOptions<Key> {
  /**
   * Does the due work of a key. Idempotent; ends soon after the signal fires. A failure is retried.
   */
  readonly reconcile: (key: Key, signal: AbortSignal) => Promise<NextRun | undefined>;
  /** Time until a failed run is repeated, in milliseconds. `failures`: of this key in a row, before this one. */
  readonly retryInMs: (failures: number) => number;
  /** Called on each failure. An error that it throws ends the process: rethrow defects. */
  readonly onFailure: (error: unknown, retryInMs: number, key: Key) => void;
  readonly clock: Pick<Clock, 'monotonicMs' | 'sleep' | 'after'>;
  /** Time limit of a run, in milliseconds; then its signal fires. Default: none. */
  readonly timeoutMs?: number;
  /** A failed run that took this long counts as the first failure, in milliseconds, as of a watch that was open. Default: none does. */
  readonly resetAfterMs?: number;
  /** Number of keys whose runs may overlap. Default: all. */
  readonly concurrency?: number;
}

/** An exponential back-off with jitter. @param random - uniform in [0, 1) */
export function exponentialBackoff(bounds: BackoffBounds, random: () => number): (failures: number) => number {
  return (failures) => backoffMs(failures, bounds, random());
}

/** Why a wait ends early. Without a reason, each abort would create an error with a stack. */
const WOKEN = 'woken';

interface Work {
  /** Time of the next run, by the monotonic clock; undefined: none is due. */
  dueMs: number | undefined;
  failures: number;
  /** Ends the run or the wait in progress. */
  round: AbortController;
  isRunning: boolean;
  /** The run in progress is followed by another at once, even if it fails. */
  isHurried: boolean;
  /** The run in progress was aborted by {@link WorkQueue.restart}. */
  isRestarted: boolean;
  done: Promise<void>;
}

/**
 * The one loop of everything that runs in the background until it succeeds: runs for a key never overlap, requests during a run
 * cause one more run, failures are repeated after a back-off, and a run says itself when the next one is due.
 *
 * Runs belong to no caller's trace.
 */
export class WorkQueue<Key> {
  readonly #options: WorkQueueOptions<Key>;
  readonly #work = new Map<Key, Work>();
  /** Callers of {@link runNow} whose run has not begun. */
  readonly #waiting = new Map<Key, ((run: Promise<unknown>) => void)[]>();
  readonly #slots: Slots | undefined;
  readonly #stopping = new AbortController();

  constructor(options: WorkQueueOptions<Key>) {
    this.#options = options;
    this.#slots = options.concurrency === undefined ? undefined : new Slots(options.concurrency);
  }

  /** Requests a run after this time, or earlier. During a run it follows that one; after a failure the back-off stays. */
  request(key: Key, afterMs = 0): void {
    if (this.#isStopped()) return;
    const dueMs = this.#options.clock.monotonicMs() + afterMs;
    const work = this.#work.get(key);
    if (!work) this.#begin(key, dueMs);
    else if ((work.failures === 0 || work.isRunning) && dueMs < (work.dueMs ?? Infinity)) {
      work.dueMs = dueMs;
      if (!work.isRunning) work.round.abort(WOKEN);
    }
  }

  /** Requests a run now, even during a back-off. During a run it follows that one, even if that one fails. */
  hurry(key: Key): void {
    const work = this.#work.get(key);
    if (!work) {
      this.request(key);
      return;
    }
    Object.assign(work, { dueMs: this.#options.clock.monotonicMs(), isHurried: true });
    if (!work.isRunning) work.round.abort(WOKEN);
  }

  /**
   * Requests a run as {@link hurry}, and waits for its end. A run that began before the call does not count.
   * @throws the error of the run, or Failure CANCELLED when the queue is stopped before it
   */
  async runNow(key: Key): Promise<void> {
    const run = new Promise<unknown>((resolve) => this.#waiting.set(key, [...(this.#waiting.get(key) ?? []), resolve]));
    if (this.#isStopped()) this.#cancelWaiting();
    else this.hurry(key);
    await run;
  }

  /**
   * Aborts the run or the wait in progress, and requests a run without a back-off. A Failure or an AbortError of the aborted run
   * is no failure of the key; any other error is.
   */
  restart(key: Key): void {
    const work = this.#work.get(key);
    if (work) Object.assign(work, { failures: 0, isRestarted: true });
    work?.round.abort();
    this.hurry(key);
  }

  /** Aborts the runs in progress, and waits for their end. No run begins any more. Idempotent. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    const all = [...this.#work.values()];
    for (const { round } of all) round.abort();
    await Promise.all(all.map(({ done }) => done));
    this.#cancelWaiting();
  }

  #begin(key: Key, dueMs: number): void {
    const round = new AbortController();
    const idle = { isRunning: false, isHurried: false, isRestarted: false };
    const work: Work = { dueMs, failures: 0, round, ...idle, done: Promise.resolve() };
    this.#work.set(key, work);
    work.done = context.with(ROOT_CONTEXT, () => this.#serve(key, work));
  }

  async #serve(key: Key, work: Work): Promise<void> {
    while (work.dueMs !== undefined && !this.#isStopped()) {
      const waitMs = Math.ceil(work.dueMs - this.#options.clock.monotonicMs());
      if (waitMs > 0 && (await this.#wait(work, waitMs)) === 'aborted') continue;
      if (this.#slots) await this.#slots.take();
      if (!this.#isStopped()) await this.#run(key, work);
      this.#slots?.give();
    }
    this.#work.delete(key);
  }

  #wait(work: Work, durationMs: number): Promise<'elapsed' | 'aborted'> {
    work.round = new AbortController();
    return this.#options.clock.sleep(durationMs, work.round.signal);
  }

  async #run(key: Key, work: Work): Promise<void> {
    const { reconcile, clock, timeoutMs, resetAfterMs = Infinity, retryInMs, onFailure } = this.#options;
    const startMs = clock.monotonicMs();
    const round = new AbortController();
    // A run adds many listeners concurrently; Node warns of a leak above ten.
    setMaxListeners(0, round.signal);
    Object.assign(work, { dueMs: undefined, isRunning: true, isHurried: false, isRestarted: false, round });
    const waiting = this.#waiting.get(key) ?? [];
    this.#waiting.delete(key);
    const cancelTimeout = timeoutMs === undefined ? undefined : clock.after(timeoutMs, () => round.abort());
    try {
      const run = reconcile(key, round.signal);
      for (const resolve of waiting) resolve(run);
      const next = await run;
      work.failures = 0;
      if (next) work.dueMs = Math.min(work.dueMs ?? Infinity, clock.monotonicMs() + next.inMs);
    } catch (error) {
      if (this.#isStopped() || (work.isRestarted && isOfAbort(error))) return;
      const nowMs = clock.monotonicMs();
      if (nowMs - startMs >= resetAfterMs) work.failures = 0;
      const inMs = work.isHurried ? 0 : retryInMs(work.failures);
      work.failures++;
      work.dueMs = nowMs + inMs;
      onFailure(error, inMs, key);
    } finally {
      cancelTimeout?.();
      work.isRunning = false;
    }
  }

  #cancelWaiting(): void {
    for (const resolve of [...this.#waiting.values()].flat())
      resolve(Promise.reject(new Failure('CANCELLED', 'the process is stopping')));
    this.#waiting.clear();
  }

  #isStopped(): boolean {
    return this.#stopping.signal.aborted;
  }
}

/** Whether an aborted run ends with such an error; any other is a defect. */
function isOfAbort(error: unknown): boolean {
  return error instanceof Failure || (error instanceof Error && error.name === 'AbortError');
}

/** A number of places, each taken by one at a time, in the order of asking. */
class Slots {
  readonly #waiting: (() => void)[] = [];
  #free: number;

  constructor(count: number) {
    this.#free = count;
  }

  async take(): Promise<void> {
    if (this.#free > 0) this.#free--;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  give(): void {
    const next = this.#waiting.shift();
    if (next) next();
    else this.#free++;
  }
}

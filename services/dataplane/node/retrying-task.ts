import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

interface RetryingTaskOptions {
  /** Idempotent; ends soon after the signal fires. */
  readonly task: (signal: AbortSignal) => Promise<void>;
  readonly backoff: BackoffBounds;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Called on each failure. Must not throw. */
  readonly onFailure: (error: unknown, retryInMs: number) => void;
}

/**
 * Runs a task on request, one run at a time, and retries with a back-off until it succeeds. A request during a run causes one
 * more run.
 */
export class RetryingTask {
  readonly #options: RetryingTaskOptions;
  readonly #stopping = new AbortController();
  /** Cancels the current run, or the wait after a failed run. */
  #round = new AbortController();
  #isRequested = false;
  #running: Promise<void> | undefined;

  constructor(options: RetryingTaskOptions) {
    this.#options = options;
  }

  /** Requests a run. */
  request(): void {
    this.#isRequested = true;
    if (!this.#running && !this.#stopping.signal.aborted) this.#running = this.#run();
  }

  /** Cancels the current run or wait, resets the back-off, and requests a run. */
  restart(): void {
    this.#round.abort();
    this.request();
  }

  /** Cancels the current run, and waits for its end. Idempotent. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { task, backoff, clock, random, onFailure } = this.#options;
    for (let attempt = 0; this.#isRequested && !this.#isStopped();) {
      this.#isRequested = false;
      this.#round = new AbortController();
      const round = this.#round.signal;
      const signal = AbortSignal.any([this.#stopping.signal, round]);
      try {
        await task(signal);
        attempt = 0;
      } catch (error) {
        if (this.#isStopped()) return;
        if (round.aborted) {
          attempt = 0;
          continue;
        }
        const retryInMs = backoffMs(attempt, backoff, random());
        attempt++;
        onFailure(error, retryInMs);
        this.#isRequested = true;
        if ((await clock.sleep(retryInMs, signal)) === 'aborted') attempt = 0;
      }
    }
    this.#running = undefined;
  }

  #isStopped(): boolean {
    return this.#stopping.signal.aborted;
  }
}

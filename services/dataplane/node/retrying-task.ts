import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

interface RepeatedOptions {
  /** Reaches the goal, or finds nothing to do. Idempotent; ends soon when the signal fires. */
  readonly task: (signal: AbortSignal) => Promise<void>;
  readonly backoff: BackoffBounds;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Called on each failure. Must not throw. */
  readonly failed: (error: unknown, retryInMs: number) => void;
}

/**
 * Runs a task on request, one run at a time, and retries with a back-off until it succeeds. A request during a run causes one
 * more run.
 */
export class Repeated {
  readonly #options: RepeatedOptions;
  readonly #stop = new AbortController();
  /** Cancels the current run, or the wait after a failed one. */
  #round = new AbortController();
  #isAsked = false;
  #running: Promise<void> | undefined;

  constructor(options: RepeatedOptions) {
    this.#options = options;
  }

  /** Requests a run. */
  ask(): void {
    this.#isAsked = true;
    if (!this.#running && !this.#stop.signal.aborted) this.#running = this.#run();
  }

  /** The goal changed: cancels the current run, starts the next one, and resets the back-off. */
  renew(): void {
    this.#round.abort();
    this.ask();
  }

  /** Cancels the current run, and waits for its end. Idempotent. */
  async stop(): Promise<void> {
    this.#stop.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { task, backoff, clock, random, failed } = this.#options;
    for (let attempt = 0; this.#isAsked && !this.#isStopped();) {
      this.#isAsked = false;
      this.#round = new AbortController();
      const round = this.#round.signal;
      const signal = AbortSignal.any([this.#stop.signal, round]);
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
        failed(error, retryInMs);
        this.#isAsked = true;
        if ((await clock.sleep(retryInMs, signal)) === 'aborted') attempt = 0;
      }
    }
    this.#running = undefined;
  }

  #isStopped(): boolean {
    return this.#stop.signal.aborted;
  }
}

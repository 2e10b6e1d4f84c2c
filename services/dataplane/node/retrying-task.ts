import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

interface RepeatedOptions {
  /** Brings something about, or finds nothing to do. Idempotent; ends soon when the signal fires. */
  readonly task: (signal: AbortSignal) => Promise<void>;
  readonly backoff: BackoffBounds;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Told of each failure. Must not throw. */
  readonly failed: (error: unknown, retryInMs: number) => void;
}

/**
 * Runs a task whenever it is asked for, one run at a time, and after a failure again, later each time, until it succeeds. Asked
 * for during a run it runs once more afterwards.
 */
export class Repeated {
  readonly #options: RepeatedOptions;
  readonly #stop = new AbortController();
  /** Ends the run under way, or the wait after one that failed. */
  #round = new AbortController();
  #isAsked = false;
  #running: Promise<void> | undefined;

  constructor(options: RepeatedOptions) {
    this.#options = options;
  }

  /** There may be something to do. */
  ask(): void {
    this.#isAsked = true;
    if (!this.#running && !this.#stop.signal.aborted) this.#running = this.#run();
  }

  /** What there is to do is another than before: a run under way is given up for the next one, and no failure before it counts. */
  renew(): void {
    this.#round.abort();
    this.ask();
  }

  /** Ends the run under way, and waits for its end. Idempotent. */
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

import type { Clock } from '@podwire/shared/runtime/clock';

/**
 * Within this time after a call that the datastore did not execute, nodes repeat theirs, in milliseconds: their pause of at most
 * 15 s, and the time limits of the calls.
 */
export const REPEAT_MS = 30_000;

/**
 * A monotonic clock that stands still while the datastore is unreachable or full, and shortly afterwards. No node can be
 * heard of then, so that it is not silent.
 */
export class ReachableClock {
  readonly #clock: Pick<Clock, 'monotonicMs'>;
  /** The current or last standstill. */
  #fromMs: number;
  #untilMs: number;
  /** Total time of the earlier ones, in milliseconds. */
  #formerMs = 0;

  constructor(clock: Pick<Clock, 'monotonicMs'>) {
    this.#clock = clock;
    this.#fromMs = this.#untilMs = clock.monotonicMs();
  }

  nowMs(): number {
    const nowMs = this.#clock.monotonicMs();
    return nowMs - this.#formerMs - (Math.min(nowMs, this.#untilMs) - this.#fromMs);
  }

  /** Stands still until the returned function is called. */
  hold(): () => void {
    this.failed();
    this.#untilMs = Infinity;
    return () => (this.#untilMs = this.#clock.monotonicMs());
  }

  /** The datastore failed. */
  failed(): void {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs > this.#untilMs) {
      this.#formerMs += this.#untilMs - this.#fromMs;
      this.#fromMs = nowMs;
    }
    this.#untilMs = Math.max(this.#untilMs, nowMs + REPEAT_MS);
  }
}

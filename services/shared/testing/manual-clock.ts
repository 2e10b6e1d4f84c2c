import type { Clock } from '../runtime/clock.js';

interface Sleeper {
  wakesAtMs: number;
  readonly wake: () => void;
}

/** A clock that only a test advances. */
export class ManualClock implements Clock {
  #nowMs = 1_000_000;
  #elapsedMs = 0;
  #sleepers: Sleeper[] = [];

  nowMs(): number {
    return this.#nowMs;
  }

  monotonicMs(): number {
    return this.#elapsedMs;
  }

  /** Number of sleepers and timers. */
  get sleeping(): number {
    return this.#sleepers.length;
  }

  /** Time until the next sleeper wakes, in milliseconds; undefined when there is none. */
  get nextMs(): number | undefined {
    const times = this.#sleepers.map(({ wakesAtMs }) => wakesAtMs - this.#nowMs);
    return times.length > 0 ? Math.min(...times) : undefined;
  }

  sleep(durationMs: number, signal: AbortSignal): Promise<'elapsed' | 'aborted'> {
    return new Promise((resolve) => {
      if (signal.aborted) {
        resolve('aborted');
        return;
      }
      const remove = (outcome: 'elapsed' | 'aborted'): void => {
        this.#sleepers = this.#sleepers.filter((other) => other !== sleeper);
        signal.removeEventListener('abort', onAbort);
        resolve(outcome);
      };
      const onAbort = (): void => remove('aborted');
      const sleeper = { wakesAtMs: this.#nowMs + Math.max(0, durationMs), wake: () => remove('elapsed') };
      this.#sleepers.push(sleeper);
      signal.addEventListener('abort', onAbort, { once: true });
    });
  }

  after(durationMs: number, act: () => void): () => void {
    const remove = (): void => {
      this.#sleepers = this.#sleepers.filter((other) => other !== sleeper);
    };
    const wake = (): void => {
      remove();
      act();
    };
    const sleeper = { wakesAtMs: this.#nowMs + Math.max(0, durationMs), wake };
    this.#sleepers.push(sleeper);
    return remove;
  }

  /** Sets the clock back, like NTP. Sleepers sleep for the same duration. */
  setBack(durationMs: number): void {
    this.#nowMs -= durationMs;
    for (const sleeper of this.#sleepers) sleeper.wakesAtMs -= durationMs;
  }

  /** Advances the clock, and wakes the sleepers that are due. */
  advance(durationMs: number): void {
    this.#nowMs += durationMs;
    this.#elapsedMs += Math.max(0, durationMs);
    for (const { wakesAtMs, wake } of [...this.#sleepers]) if (wakesAtMs <= this.#nowMs) wake();
  }
}

import type { Clock } from '../runtime/clock.js';

interface Sleeper {
  wakesAtMs: number;
  readonly wake: () => void;
}

/** A clock that stands still until a test moves it. Who sleeps on it sleeps until then. */
export class ManualClock implements Clock {
  #nowMs = 1_000_000;
  #sleepers: Sleeper[] = [];

  nowMs(): number {
    return this.#nowMs;
  }

  /** How many sleep. */
  get sleeping(): number {
    return this.#sleepers.length;
  }

  /** For how long the next one sleeps, in milliseconds; undefined when nobody does. */
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
      const leave = (how: 'elapsed' | 'aborted'): void => {
        this.#sleepers = this.#sleepers.filter((other) => other !== sleeper);
        signal.removeEventListener('abort', cut);
        resolve(how);
      };
      const cut = (): void => leave('aborted');
      const sleeper = { wakesAtMs: this.#nowMs + Math.max(0, durationMs), wake: () => leave('elapsed') };
      this.#sleepers.push(sleeper);
      signal.addEventListener('abort', cut, { once: true });
    });
  }

  after(durationMs: number, act: () => void): () => void {
    const leave = (): void => {
      this.#sleepers = this.#sleepers.filter((other) => other !== sleeper);
    };
    const wake = (): void => {
      leave();
      act();
    };
    const sleeper = { wakesAtMs: this.#nowMs + Math.max(0, durationMs), wake };
    this.#sleepers.push(sleeper);
    return leave;
  }

  /** The clock is set back, as by NTP. Who sleeps does so for as long as before. */
  setBack(durationMs: number): void {
    this.#nowMs -= durationMs;
    for (const sleeper of this.#sleepers) sleeper.wakesAtMs -= durationMs;
  }

  /** Moves time on; those whose time is over wake. */
  advance(durationMs: number): void {
    this.#nowMs += durationMs;
    for (const { wakesAtMs, wake } of [...this.#sleepers]) if (wakesAtMs <= this.#nowMs) wake();
  }
}

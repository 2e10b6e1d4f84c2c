import type { Clock } from '../runtime/clock.js';

/** A clock that stands still but for sleeping, which takes no real time and is written down. */
export class FakeClock implements Clock {
  readonly sleptMs: number[] = [];
  /** Called when a sleep begins: where a test fires the sleeper's signal. */
  beforeSleep: () => void = () => undefined;
  #nowMs: number;

  constructor(nowMs = 1_000_000) {
    this.#nowMs = nowMs;
  }

  nowMs(): number {
    return this.#nowMs;
  }

  sleep(durationMs: number, signal: AbortSignal): Promise<'elapsed' | 'aborted'> {
    this.sleptMs.push(durationMs);
    this.beforeSleep();
    if (signal.aborted) return Promise.resolve('aborted');
    this.#nowMs += durationMs;
    return Promise.resolve('elapsed');
  }

  /** Never acts: no time passes while nobody sleeps. */
  after(): () => void {
    return () => undefined;
  }
}

import type { Clock } from '../runtime/clock.js';

/** A clock that only advances by sleeping, which takes no real time and is recorded. */
export class FakeClock implements Clock {
  readonly sleepsMs: number[] = [];
  /** Called at the beginning of a sleep, so that a test can fire its signal. */
  beforeSleep: () => void = () => undefined;
  #nowMs: number;
  #setBackMs = 0;

  constructor(nowMs = 1_000_000) {
    this.#nowMs = nowMs;
  }

  nowMs(): number {
    return this.#nowMs - this.#setBackMs;
  }

  /** Sets the wall clock back, like NTP. */
  setBack(durationMs: number): void {
    this.#setBackMs += durationMs;
  }

  monotonicMs(): number {
    return this.#nowMs;
  }

  sleep(durationMs: number, signal: AbortSignal): Promise<'elapsed' | 'aborted'> {
    this.sleepsMs.push(durationMs);
    this.beforeSleep();
    if (signal.aborted) return Promise.resolve('aborted');
    this.#nowMs += durationMs;
    return Promise.resolve('elapsed');
  }

  /** Never fires, because the clock only advances by sleeping. */
  after(): () => void {
    return () => undefined;
  }
}

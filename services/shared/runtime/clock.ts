import { setTimeout as sleep } from 'node:timers/promises';

/** Where time comes from, so that tests can set it. */
export interface Clock {
  /** Wall clock, in milliseconds since the epoch. */
  nowMs(): number;
  /**
   * Waits; a negative duration is none, one beyond {@link MAX_TIMER_MS} is cut to it. Resolves early, and says so, when the signal
   * fires; never rejects.
   */
  sleep(durationMs: number, signal: AbortSignal): Promise<'elapsed' | 'aborted'>;
}

/** Longest time that Node's timers know, almost 25 days, in milliseconds: they take a longer one for 1 ms. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  sleep: (durationMs, signal) =>
    sleep(Math.min(durationMs, MAX_TIMER_MS), undefined, { signal }).then(
      () => 'elapsed' as const,
      () => 'aborted' as const,
    ),
};

import { setTimeout as sleep } from 'node:timers/promises';

/** Where time comes from, so that tests can set it. */
export interface Clock {
  /** Wall clock, in milliseconds since the epoch. */
  nowMs(): number;
  /** Waits. Resolves early, and says so, when the signal fires; never rejects. */
  sleep(durationMs: number, signal: AbortSignal): Promise<'elapsed' | 'aborted'>;
}

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  sleep: (durationMs, signal) =>
    sleep(durationMs, undefined, { signal }).then(
      () => 'elapsed' as const,
      () => 'aborted' as const,
    ),
};

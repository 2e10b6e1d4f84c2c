import { performance } from 'node:perf_hooks';

/** The source of time, which tests replace. */
export interface Clock {
  /** Wall clock, in milliseconds since the epoch. */
  nowMs(): number;
  /** Milliseconds, with fractions, since an arbitrary moment. Never goes back, so durations are measured with it. */
  monotonicMs(): number;
  /**
   * Waits. A negative duration is 0, and {@link MAX_TIMER_MS} is the longest. Resolves with `aborted` when the signal fires. Never
   * rejects.
   */
  sleep(durationMs: number, signal: AbortSignal): Promise<'elapsed' | 'aborted'>;
  /**
   * Calls a function after a duration, which has the limits of {@link sleep}. For timeouts: nearly all are cancelled, which costs less
   * than to abort a sleep.
   * @returns a function that cancels the timer; idempotent
   */
  after(durationMs: number, act: () => void): () => void;
}

/** Longest duration of Node's timers, almost 25 days, in milliseconds. They treat a longer one as 1 ms. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  monotonicMs: () => performance.now(),
  // Not timers/promises, which creates an error with a stack for each aborted sleep. Most timeouts are aborted.
  sleep: (durationMs, signal) =>
    new Promise((resolve) => {
      if (signal.aborted) {
        resolve('aborted');
        return;
      }
      const wake = (): void => {
        clearTimeout(timer);
        resolve('aborted');
      };
      const timer = setTimeout(() => {
        signal.removeEventListener('abort', wake);
        resolve('elapsed');
      }, timerMs(durationMs));
      signal.addEventListener('abort', wake, { once: true });
    }),
  after: (durationMs, act) => {
    const timer = setTimeout(act, timerMs(durationMs));
    return () => clearTimeout(timer);
  },
};

function timerMs(durationMs: number): number {
  return Math.max(0, Math.min(durationMs, MAX_TIMER_MS));
}

/** Where time comes from, so that tests can set it. */
export interface Clock {
  /** Wall clock, in milliseconds since the epoch. */
  nowMs(): number;
  /**
   * Waits; a negative duration is none, one beyond {@link MAX_TIMER_MS} is cut to it. Resolves early, and says so, when the signal
   * fires; never rejects.
   */
  sleep(durationMs: number, signal: AbortSignal): Promise<'elapsed' | 'aborted'>;
  /**
   * Acts once a time is over; durations as {@link sleep}. For time limits, nearly all of which are called off, which costs less than a
   * sleep that is cut short.
   * @returns what calls it off; idempotent
   */
  after(durationMs: number, act: () => void): () => void;
}

/** Longest time that Node's timers know, almost 25 days, in milliseconds: they take a longer one for 1 ms. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  // Not timers/promises: it makes an error with a stack for each sleep that is cut short, and most time-outs are.
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

/** Bounds of a growing delay, in milliseconds. */
export interface BackoffBounds {
  /** Mean of the first delay. */
  readonly baseMs: number;
  /** Largest delay. */
  readonly maxMs: number;
}

/**
 * How long to wait before repeating for the `attempt`-th time (from 0): doubles with each attempt, and is drawn evenly from the
 * whole of 0 to twice the mean ("full jitter"), so that those who collided do not meet again.
 * @param random - a number from 0 (included) to 1 (excluded)
 */
export function backoffMs(attempt: number, { baseMs, maxMs }: BackoffBounds, random: number): number {
  return Math.min(maxMs, 2 * baseMs * 2 ** attempt * random);
}

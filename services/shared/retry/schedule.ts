/** Bounds of a growing delay, in milliseconds. */
export interface BackoffBounds {
  /** Mean of the first delay. */
  readonly baseMs: number;
  /** Largest delay. */
  readonly maxMs: number;
}

/**
 * How long to wait before repeating for the `attempt`-th time (from 0), in milliseconds. The mean doubles with each attempt; the
 * delay is drawn evenly from 0 to twice the mean, or to the largest delay where that is less ("full jitter"), so that those who
 * collided do not meet again, however often they have.
 * @param random - a number from 0 (included) to 1 (excluded)
 */
export function backoffMs(attempt: number, { baseMs, maxMs }: BackoffBounds, random: number): number {
  return random * Math.min(maxMs, 2 * baseMs * 2 ** attempt);
}

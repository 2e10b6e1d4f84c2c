/** Bounds of a growing delay, in milliseconds. */
export interface BackoffBounds {
  /** Mean of the first delay. */
  readonly baseMs: number;
  /** Largest delay. */
  readonly maxMs: number;
}

/**
 * Back-off before the `attempt`-th retry (from 0), in milliseconds. The mean doubles with each attempt. The delay is uniformly
 * distributed from 0 to twice the mean, or to the largest delay if that is less ("full jitter"), so that colliding clients do
 * not collide again.
 * @param random - a number from 0 (included) to 1 (excluded)
 */
export function backoffMs(attempt: number, { baseMs, maxMs }: BackoffBounds, random: number): number {
  return random * Math.min(maxMs, 2 * baseMs * 2 ** attempt);
}

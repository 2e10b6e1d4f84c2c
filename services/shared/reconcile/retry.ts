import type { Clock } from '../runtime/clock.js';
import { backoffMs, type BackoffBounds } from './schedule.js';

export interface RetryOptions {
  /** Maximum number of attempts: 1 or more. */
  readonly attempts: number;
  readonly backoff: BackoffBounds;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Ends the back-off. The operation has to observe it too. */
  readonly signal: AbortSignal;
  /** Whether the failure is transient. */
  readonly retryable: (failure: unknown) => boolean;
}

/**
 * Runs an idempotent operation until it succeeds, fails permanently, or attempts or time are exhausted.
 * @throws the error of the last attempt
 */
export async function retry<Result>(operation: () => Promise<Result>, options: RetryOptions): Promise<Result> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await operation();
    } catch (failure) {
      const last = attempt + 1 >= options.attempts || options.signal.aborted || !options.retryable(failure);
      if (last) throw failure;
      const woken = await options.clock.sleep(backoffMs(attempt, options.backoff, options.random()), options.signal);
      if (woken === 'aborted') throw failure;
    }
  }
}

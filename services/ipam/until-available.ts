import { Failure } from '@podwire/shared/failure/failure';
import { retry } from '@podwire/shared/retry/retry';
import type { BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

export interface Patience {
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Ends the waiting. */
  readonly signal: AbortSignal;
  /** Told of each failure that may pass. Must not throw. */
  readonly report: (failure: Failure) => void;
}

const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 5_000 };

/**
 * Repeats an idempotent step of the start until the datastore answers: a service that ends because etcd is not up yet would be
 * started again and again, later each time.
 * @throws a failure that will not pass by itself; the last one, whatever it is, when the signal fires
 */
export async function untilAvailable<Result>(step: () => Promise<Result>, patience: Patience): Promise<Result> {
  const { report, ...rest } = patience;
  const reported = async (): Promise<Result> => {
    try {
      return await step();
    } catch (error) {
      if (mayPass(error)) report(error);
      throw error;
    }
  };
  return await retry(reported, {
    ...rest,
    attempts: Number.POSITIVE_INFINITY,
    backoff: BACKOFF,
    retryable: mayPass,
  });
}

function mayPass(error: unknown): error is Failure {
  return error instanceof Failure && error.retryable;
}

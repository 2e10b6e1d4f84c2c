import { Failure } from './failure.js';

/** The failure behind a signal that fired: its reason, as the RPC server sets it; DEADLINE_EXCEEDED for a time-out; else CANCELLED. */
export function failureOfSignal(signal: AbortSignal): Failure {
  const reason: unknown = signal.reason;
  if (reason instanceof Failure) return reason;
  const timedOut = reason instanceof Error && reason.name === 'TimeoutError';
  return timedOut
    ? new Failure('DEADLINE_EXCEEDED', 'the time for the request is over; repeat it', { cause: reason })
    : new Failure('CANCELLED', 'the caller gave up; repeat the request if it is still wanted', { cause: reason });
}

import { Failure } from './failure.js';

/** The failure of an aborted signal: its reason, if the RPC server set one; DEADLINE_EXCEEDED for a timeout; else CANCELLED. */
export function failureOfSignal(signal: AbortSignal): Failure {
  const reason: unknown = signal.reason;
  if (reason instanceof Failure) return reason;
  const timedOut = reason instanceof Error && reason.name === 'TimeoutError';
  return timedOut
    ? new Failure('DEADLINE_EXCEEDED', 'the deadline of the request has passed; retry it', { cause: reason })
    : new Failure('CANCELLED', 'the caller cancelled the request; retry it if still needed', { cause: reason });
}

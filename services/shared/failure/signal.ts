import { Failure } from './failure.js';

/** The failure behind a signal that fired: its reason, which the RPC server sets, or CANCELLED. */
export function failureOfSignal(signal: AbortSignal): Failure {
  const reason: unknown = signal.reason;
  return reason instanceof Failure ? reason : new Failure('CANCELLED', 'the caller gave up', { cause: reason });
}

import { Failure } from '@podwire/shared/failure/failure';

import type { RecordChange, Transaction } from './store.js';

/** The failure of a call whose signal has fired: its own reason where that is a failure, as a deadline's is. */
export function signalFailure(signal: AbortSignal): Failure {
  const reason: unknown = signal.reason;
  if (reason instanceof Failure) return reason;
  const timedOut = reason instanceof Error && reason.name === 'TimeoutError';
  return timedOut
    ? new Failure('DEADLINE_EXCEEDED', 'the time for the request is over; repeat it', { cause: reason })
    : new Failure('CANCELLED', 'the caller gave up; repeat the request if it is still wanted', { cause: reason });
}

/** @throws Failure when the signal has fired */
export function throwIfAborted(signal: AbortSignal): void {
  if (signal.aborted) throw signalFailure(signal);
}

/** The changes of a transaction, deletes of missing records left out. */
export function effectiveChanges(
  { puts, deletes }: Transaction,
  exists: (key: string) => boolean,
): readonly RecordChange[] {
  return [
    ...puts.map(({ key, value }) => ({ type: 'put', key, value }) as const),
    ...deletes.filter(exists).map((key) => ({ type: 'delete', key }) as const),
  ];
}

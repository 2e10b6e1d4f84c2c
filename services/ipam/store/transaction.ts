import { failureOfSignal } from '@podwire/shared/failure/signal';

import type { RecordChange, Transaction } from './store.js';

/** @throws Failure when the signal has fired */
export function throwIfAborted(signal: AbortSignal): void {
  if (signal.aborted) throw failureOfSignal(signal);
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

import { failureOfSignal } from '@podwire/shared/failure/signal';

import type { RecordChange, Transaction } from './store.js';

/** @throws Failure when the signal has fired */
export function throwIfAborted(signal: AbortSignal): void {
  if (signal.aborted) throw failureOfSignal(signal);
}

/** @throws what the promise throws, or the signal's failure as soon as it fires; the promise goes on */
export async function untilAborted<Result>(promise: Promise<Result>, signal: AbortSignal): Promise<Result> {
  let onAbort = (): void => undefined;
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(failureOfSignal(signal));
    signal.addEventListener('abort', onAbort);
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
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

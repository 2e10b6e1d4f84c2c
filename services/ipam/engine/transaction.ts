import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';

import type { Comparison, LostComparison, RecordChange, StoredRecord, Transaction } from './store.js';

/** @throws Failure when the signal has fired */
export function throwIfAborted(signal: AbortSignal): void {
  if (signal.aborted) throw failureOfSignal(signal);
}

/** The failure of every method of a closed store. */
export function closedFailure(): Failure {
  return new Failure('STORE_UNAVAILABLE', 'the datastore is closed: the service is shutting down; repeat the request');
}

/** Whether the store refuses every request from now on, because it was replaced. */
export function isPermanent(error: unknown): error is Failure {
  return error instanceof Failure && error.code === 'STORE_CORRUPT';
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

/** The state that comparisons are evaluated against, of one moment. */
export interface ComparisonState {
  readonly revision: number;
  get(key: string): StoredRecord | undefined;
  /** Revision of the record with this key; 0 where there is none. */
  modRevision(key: string): number;
  /** The records under a prefix that were made or changed after a revision. */
  changedUnder(prefix: string, revision: number): Iterable<StoredRecord>;
}

/** @returns the conflicting records of the lost comparisons; undefined when all hold */
export function evaluateComparisons(
  comparisons: readonly Comparison[],
  state: ComparisonState,
): LostComparison | undefined {
  const lost = comparisons.filter((comparison) => !holds(comparison, state));
  if (lost.length === 0) return undefined;
  const changed = new Map<string, StoredRecord>();
  const missing = new Set<string>();
  for (const comparison of lost) {
    if (comparison.type === 'prefix') {
      const { prefix, notAfterRevision } = comparison;
      for (const record of state.changedUnder(prefix, notAfterRevision)) changed.set(record.key, record);
      continue;
    }
    const { key, modRevision } = comparison;
    const record = state.get(key);
    if (!record) missing.add(key);
    else if (record.modRevision > modRevision) changed.set(key, record);
  }
  return { committed: false, revision: state.revision, changed: [...changed.values()], missing: [...missing] };
}

function holds(comparison: Comparison, state: ComparisonState): boolean {
  if (comparison.type === 'record') return state.modRevision(comparison.key) === comparison.modRevision;
  for (const _ of state.changedUnder(comparison.prefix, comparison.notAfterRevision)) return false;
  return true;
}

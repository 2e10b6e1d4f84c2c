import type { Clock } from '@podwire/shared/runtime/clock';

import type { Store } from './store.js';

/** One datastore call that requests wait for. */
export interface StoreCall {
  /** `commit`: a transaction; `revision`: whether the mirror is up to date. */
  readonly operation: 'commit' | 'revision';
  /** Until the answer or the failure. */
  readonly durationMs: number;
}

/** A transaction that the datastore answered. */
export interface TransactionEnd {
  /** Comparisons, puts and deletes. */
  readonly operationsCount: number;
  /** False if a comparison failed, because another replica had changed the record. */
  readonly isCommitted: boolean;
}

interface TimedStoreOptions {
  readonly clock: Clock;
  readonly events: {
    storeCallEnded(call: StoreCall): void;
    transactionEnded(transaction: TransactionEnd): void;
  };
}

/** A store that reports how long requests wait for it. Requests of the start and of background work are not counted. */
export function timedStore(store: Store, { clock, events }: TimedStoreOptions): Store {
  const timed = async <Result>(operation: StoreCall['operation'], call: () => Promise<Result>): Promise<Result> => {
    const begunMs = clock.monotonicMs();
    try {
      return await call();
    } finally {
      events.storeCallEnded({ operation, durationMs: clock.monotonicMs() - begunMs });
    }
  };
  return {
    list: (prefix, signal) => store.list(prefix, signal),
    read: (keys, signal) => store.read(keys, signal),
    scan: (request, signal) => store.scan(request, signal),
    revision: (signal) => timed('revision', () => store.revision(signal)),
    commit: async (transaction, signal) => {
      const result = await timed('commit', () => store.commit(transaction, signal));
      const { comparisons, puts, deletes } = transaction;
      const operationsCount = comparisons.length + puts.length + deletes.length;
      events.transactionEnded({ operationsCount, isCommitted: result.committed });
      return result;
    },
    watch: (request, signal) => store.watch(request, signal),
    close: () => store.close(),
  };
}

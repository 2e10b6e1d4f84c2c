import type { Clock } from '@podwire/shared/runtime/clock';

import type { Store } from './store.js';

/** One datastore call that requests wait for. */
export interface StoreCall {
  /** `commit`: a transaction; `revision`: whether the mirror is up to date. */
  readonly operation: 'commit' | 'revision';
  /** Until the answer or the failure. */
  readonly durationMs: number;
}

interface TimedStoreOptions {
  readonly clock: Clock;
  readonly report: (call: StoreCall) => void;
}

/** A store that reports how long requests wait for it. Requests of the start and of background work are not counted. */
export function timedStore(store: Store, { clock, report }: TimedStoreOptions): Store {
  const timed = async <Result>(operation: StoreCall['operation'], call: () => Promise<Result>): Promise<Result> => {
    const begunMs = clock.nowMs();
    try {
      return await call();
    } finally {
      // The clock may have been set back meanwhile.
      report({ operation, durationMs: Math.max(0, clock.nowMs() - begunMs) });
    }
  };
  return {
    list: (prefix, signal) => store.list(prefix, signal),
    read: (keys, signal) => store.read(keys, signal),
    scan: (request, signal) => store.scan(request, signal),
    revision: (signal) => timed('revision', () => store.revision(signal)),
    commit: (transaction, signal) => timed('commit', () => store.commit(transaction, signal)),
    watch: (request, signal) => store.watch(request, signal),
    close: () => store.close(),
  };
}

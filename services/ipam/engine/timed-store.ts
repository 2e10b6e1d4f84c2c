import type { Clock } from '@podwire/shared/runtime/clock';

import type { Store } from './store.js';

/** One question to the datastore that requests wait for. */
export interface StoreAnswer {
  /** `commit`: a transaction; `revision`: whether the mirror is up to date. */
  readonly operation: 'commit' | 'revision';
  /** Until the answer, or the failure. */
  readonly durationMs: number;
}

interface Timing {
  readonly clock: Clock;
  readonly told: (answer: StoreAnswer) => void;
}

/** A store that reports how long requests wait for it. Requests of the start and of background work are not counted. */
export function timedStore(store: Store, { clock, told }: Timing): Store {
  const timed = async <Answer>(operation: StoreAnswer['operation'], ask: () => Promise<Answer>): Promise<Answer> => {
    const begunMs = clock.nowMs();
    try {
      return await ask();
    } finally {
      // However the clock was set meanwhile.
      told({ operation, durationMs: Math.max(0, clock.nowMs() - begunMs) });
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

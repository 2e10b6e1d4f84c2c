import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test } from 'vitest';

import { MemoryStore } from './testing/memory-store.js';
import { describeStoreContract } from './testing/store-contract.js';
import { timedStore, type StoreCall } from './timed-store.js';

const signal = new AbortController().signal;

describeStoreContract('a store that is timed', () => {
  const memory = new MemoryStore();
  const store = timedStore(memory, { clock: new ManualClock(), report: () => undefined });
  const forgetChanges = () => {
    memory.compact();
    return Promise.resolve();
  };
  return Promise.resolve({ store, forgetChanges, dispose: () => store.close() });
});

test('calls that requests wait for are reported with their duration, successful or not; others are not', async () => {
  const clock = new ManualClock();
  const memory = new MemoryStore({
    before: (operation) => {
      clock.advance(operation === 'commit' ? 2800 : 5);
      return Promise.resolve();
    },
  });
  const report: StoreCall[] = [];
  const store = timedStore(memory, { clock, report: (answer) => report.push(answer) });
  const put = { comparisons: [], puts: [{ key: '/a', value: Buffer.from('1') }], deletes: [] };
  await store.list('/', signal);
  await store.commit(put, signal);
  await store.revision(signal);
  memory.injectFault('commit', { type: 'fails', failure: new Failure('STORE_UNAVAILABLE', 'planned') });
  await expect(store.commit(put, signal)).rejects.toThrow('planned');
  expect(report).toEqual([
    { operation: 'commit', durationMs: 2800 },
    { operation: 'revision', durationMs: 5 },
    { operation: 'commit', durationMs: 2800 },
  ]);
});

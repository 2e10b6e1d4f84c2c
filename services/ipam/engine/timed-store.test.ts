import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test } from 'vitest';

import { MemoryStore } from './testing/memory-store.js';
import { describeStoreContract } from './testing/store-contract.js';
import { timedStore, type StoreCall, type TransactionEnd } from './timed-store.js';

const signal = new AbortController().signal;

describeStoreContract('a store that is timed', () => {
  const memory = new MemoryStore();
  const events = { storeCallEnded: () => undefined, transactionEnded: () => undefined };
  const store = timedStore(memory, { clock: new ManualClock(), events });
  const forgetChanges = () => {
    memory.compact();
    return Promise.resolve();
  };
  return Promise.resolve({ store, forgetChanges, dispose: () => store.close() });
});

test('calls that requests wait for are reported with their duration, successful or not; background calls are not', async () => {
  const clock = new ManualClock();
  const memory = new MemoryStore({
    before: (operation) => {
      clock.advance(operation === 'commit' ? 2800 : 5);
      return Promise.resolve();
    },
  });
  const calls: StoreCall[] = [];
  const transactions: TransactionEnd[] = [];
  const store = timedStore(memory, {
    clock,
    events: {
      storeCallEnded: (call) => void calls.push(call),
      transactionEnded: (transaction) => void transactions.push(transaction),
    },
  });
  const put = { comparisons: [], puts: [{ key: '/a', value: Buffer.from('1') }], deletes: [] };
  await store.list('/', signal);
  await store.commit(put, signal);
  await store.revision(signal);
  memory.injectFault('commit', { type: 'fails', failure: new Failure('STORE_UNAVAILABLE', 'planned') });
  await expect(store.commit(put, signal)).rejects.toThrow('planned');
  expect(transactions).toEqual([{ operationsCount: 1, isCommitted: true }]);
  expect(calls).toEqual([
    { operation: 'commit', durationMs: 2800 },
    { operation: 'revision', durationMs: 5 },
    { operation: 'commit', durationMs: 2800 },
  ]);
});

test('a transaction that lost a comparison is reported as not committed, with its size', async () => {
  const transactions: TransactionEnd[] = [];
  const events = {
    storeCallEnded: () => undefined,
    transactionEnded: (transaction: TransactionEnd) => void transactions.push(transaction),
  };
  const store = timedStore(new MemoryStore(), { clock: new ManualClock(), events });
  const value = Buffer.from('1');
  const comparisons = [{ type: 'record', key: '/a', modRevision: 7 } as const];
  await store.commit({ comparisons, puts: [{ key: '/a', value }], deletes: ['/b'] }, signal);
  expect(transactions).toEqual([{ operationsCount: 3, isCommitted: false }]);
});

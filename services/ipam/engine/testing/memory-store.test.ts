import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, it } from 'vitest';

import { MemoryStore } from './memory-store.js';
import { describeStoreContract } from './store-contract.js';

const signal = new AbortController().signal;
const put = { comparisons: [], puts: [{ key: '/a', value: Buffer.from('1') }], deletes: [] };

describeStoreContract('the memory store', () => {
  const store = new MemoryStore();
  return Promise.resolve({
    store,
    forgetChanges: () => {
      store.compact();
      return Promise.resolve();
    },
    dispose: () => store.close(),
  });
});

describe('the memory store as a fake', () => {
  it('prints itself as etcdctl does', async () => {
    const store = new MemoryStore();
    const puts = [
      { key: '/b', value: Buffer.from('{"x":1}') },
      { key: '/a', value: Buffer.from('1') },
    ];
    await store.commit({ ...put, puts }, signal);
    expect(String(store)).toBe('/a\n1\n/b\n{"x":1}\n');
  });

  it('fails the next operation of a kind once, and reports unused faults', async () => {
    const store = new MemoryStore();
    const failure = new Failure('STORE_UNAVAILABLE', 'planned');
    store.injectFault('commit', { type: 'fails', failure });
    await store.list('/', signal);
    expect(store.unusedFaults()).toEqual(['commit']);
    await expect(store.commit(put, signal)).rejects.toBe(failure);
    expect(store.unusedFaults()).toEqual([]);
    expect(await store.commit(put, signal)).toEqual({ committed: true, revision: 2 });
  });

  it('loses a race, and loses an answer', async () => {
    const store = new MemoryStore();
    const failure = new Failure('STORE_UNAVAILABLE', 'planned');
    store.injectFault('commit', { type: 'losesRace' });
    store.injectFault('commit', { type: 'failsAfterCommit', failure });
    expect(await store.commit(put, signal)).toEqual({ committed: false, revision: 1, changed: [], missing: [] });
    expect(String(store)).toBe('');
    await expect(store.commit(put, signal)).rejects.toBe(failure);
    expect(String(store)).toBe('/a\n1\n');
  });
});

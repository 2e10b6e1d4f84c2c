import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, it } from 'vitest';

import { MemoryStore, type Operation } from '../testing/memory-store.js';
import { forever, handle, instantClock, keys, readCount, startReplica, writeHandle } from '../testing/stores.js';
import { FreshView } from './fresh-view.js';

/** A store that counts its calls, and whose watches are held until a test releases them. */
function countingStore() {
  const asked: Operation[] = [];
  let release = (): void => undefined;
  const watched = new Promise<void>((resolve) => (release = resolve));
  const store = new MemoryStore({
    before: (operation) => {
      asked.push(operation);
      return operation === 'watch' ? watched : Promise.resolve();
    },
  });
  const count = (operation: Operation): number => asked.filter((each) => each === operation).length;
  return { store, count, letWatchGo: () => release() };
}

async function freshViewOf(store: MemoryStore) {
  const { mirror, updater } = await startReplica(store);
  return { mirror, updater, fresh: new FreshView({ store, mirror, keys, clock: instantClock }, forever) };
}

describe('a fresh view', () => {
  it('waits until the watch has delivered every commit acknowledged before', async () => {
    const { store, letWatchGo } = countingStore();
    const { mirror, fresh } = await freshViewOf(store);
    await writeHandle(store, handle('a', 3));
    let isReached = false;
    const reached = fresh.reach(forever).then(() => (isReached = true));
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect([isReached, mirror.view.handle('a')]).toEqual([false, undefined]);
    letWatchGo();
    await reached;
    expect(mirror.view.handle('a')).toEqual(handle('a', 3));
  });

  it('asks once for all earlier waiters, and again for later ones', async () => {
    const { store, count, letWatchGo } = countingStore();
    letWatchGo();
    const { fresh } = await freshViewOf(store);
    await Promise.all([fresh.reach(forever), fresh.reach(forever), fresh.reach(forever)]);
    expect(count('revision')).toBe(1);
    await fresh.reach(forever);
    expect(count('revision')).toBe(2);
  });

  it('writes a key that is watched where the newest revision is of keys that are not', async () => {
    const { store, letWatchGo } = countingStore();
    letWatchGo();
    const { mirror, fresh } = await freshViewOf(store);
    const puts = [{ key: '/elsewhere', value: Buffer.from('1') }];
    await store.commit({ comparisons: [], puts, deletes: [] }, forever);
    await fresh.reach(forever);
    const { records, revision } = await store.read([keys.barrier], forever);
    expect(records.map(({ modRevision }) => modRevision)).toEqual([revision]);
    expect(mirror.position).toBe(revision);
  });

  it('lists everything, once, where the store is too full for that key', async () => {
    const { store, count } = countingStore();
    await writeHandle(store, handle('gone', 1));
    const { mirror, fresh } = await freshViewOf(store);
    await writeHandle(store, handle('made', 2));
    await store.commit({ comparisons: [], puts: [], deletes: [keys.handle('gone')] }, forever);
    const { position } = mirror;
    store.injectFault('commit', { type: 'fails', failure: new Failure('STORE_FULL', 'planned') });
    await fresh.reach(forever);
    expect([mirror.view.handle('gone'), mirror.view.handle('made')]).toEqual([undefined, handle('made', 2)]);
    // Followers of the changes are still notified of each.
    expect(mirror.position).toBe(position);
    const scans = count('scan');
    await fresh.reach(forever);
    expect([store.unusedFaults(), count('scan')]).toEqual([[], scans]);
  });

  it('fails the waiters when the store cannot be read, and serves the next', async () => {
    const { store, letWatchGo } = countingStore();
    letWatchGo();
    const { fresh } = await freshViewOf(store);
    const failure = new Error('planned');
    store.injectFault('revision', { type: 'fails', failure });
    await expect(fresh.reach(forever)).rejects.toBe(failure);
    expect(store.unusedFaults()).toEqual([]);
    await fresh.reach(forever);
  });

  it('fails the waiters when the watch ends for ever because the datastore was replaced, and later ones', async () => {
    const { store, letWatchGo } = countingStore();
    const { fresh } = await freshViewOf(store);
    await writeHandle(store, handle('a', 1));
    const failure = new Failure('STORE_CORRUPT', 'planned');
    store.injectFault('watch', { type: 'fails', failure });
    const waiting = expect(fresh.reach(forever)).rejects.toBe(failure);
    await new Promise((resolve) => setTimeout(resolve, 20));
    letWatchGo();
    await waiting;
    await expect(fresh.reach(forever)).rejects.toBe(failure);
  });

  it('releases a waiter that cancels', async () => {
    const { store } = countingStore();
    const { fresh } = await freshViewOf(store);
    await writeHandle(store, handle('a', 1));
    const abort = new AbortController();
    const gone = expect(fresh.reach(abort.signal)).rejects.toMatchObject({ code: 'CANCELLED' });
    abort.abort();
    await gone;
  });
});

describe('an answer without a comparison', () => {
  it('is given from what another replica has acknowledged, though the watch is behind', async () => {
    const { store, letWatchGo } = countingStore();
    const { updater } = await freshViewOf(store);
    await writeHandle(store, handle('a', 7));
    const answers = [
      updater.update('n', readCount('a'), { signal: forever }),
      updater.read((view) => view.handle('a')?.blocks.size, { signal: forever }),
    ];
    // Both have been decided, on the state known so far.
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(await updater.peek((view) => view.handle('a'))).toBeUndefined();
    letWatchGo();
    expect(await Promise.all(answers)).toEqual([7, 1]);
  });

  it('is not read when no other process writes', async () => {
    const { store, count } = countingStore();
    const { updater } = await startReplica(store, { isExclusiveWriter: true });
    expect(await updater.update('n', readCount('a'), { signal: forever })).toBe(0);
    expect(await updater.read((view) => view.handle('a'), { signal: forever })).toBeUndefined();
    expect(count('revision')).toBe(0);
  });
});

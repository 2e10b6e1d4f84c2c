import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { MemoryStore, type Operation } from '../testing/memory-store.js';
import {
  forever,
  handle,
  blockingStore,
  increment,
  instantClock,
  keys,
  put,
  readCount,
  settleEvents,
  startReplica,
  writeHandle,
} from '../testing/stores.js';
import type { Decide } from './update-loop.js';

const unavailable = new Failure('STORE_UNAVAILABLE', 'planned');
const always = { signal: forever };

async function stored(store: MemoryStore, id: string): Promise<string[]> {
  const { records } = await store.read([keys.handle(id)], forever);
  return records.map(({ value }) => Buffer.from(value).toString());
}

describe('folding', () => {
  it('commits 100 requests that arrive together in one transaction, exactly', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store, { maxOperationsCount: 128 });
    const counts = await Promise.all(Array.from({ length: 100 }, () => updater.update('n', increment('a'), always)));
    expect(counts).toEqual(Array.from({ length: 100 }, (_, index) => index + 1));
    expect((await store.list('', forever)).revision).toBe(2);
  });

  it('puts requests that arrive during a transaction into the next one', async () => {
    const { store, releaseNext, blockedCount } = blockingStore();
    const { updater } = await startReplica(store);
    const first = updater.update('n', increment('a'), always);
    await settleEvents();
    const rest = [1, 2, 3].map(() => updater.update('n', increment('a'), always));
    await settleEvents();
    expect(blockedCount()).toBe(1);
    releaseNext();
    await first;
    await settleEvents();
    releaseNext();
    expect(await Promise.all(rest)).toEqual([2, 3, 4]);
    expect((await store.list('', forever)).revision).toBe(3);
  });

  it('commits requests of several lanes together', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store);
    const counts = await Promise.all(['a', 'b', 'c'].map((id) => updater.update(`node ${id}`, increment(id), always)));
    expect(counts).toEqual([1, 1, 1]);
    expect((await store.list('', forever)).revision).toBe(2);
  });

  it('has no more transactions in flight than its limit, and none with a lane twice', async () => {
    const { store, releaseNext, blockedCount } = blockingStore();
    const { updater } = await startReplica(store, { maxInFlightCount: 2 });
    const first = updater.update('n', increment('a'), always);
    await settleEvents();
    const rest = [updater.update('n', increment('a'), always), updater.update('m', increment('b'), always)];
    await settleEvents();
    expect(blockedCount()).toBe(2);
    const last = updater.update('o', increment('c'), always);
    await settleEvents();
    expect(blockedCount()).toBe(2);
    for (let commit = 0; commit < 4; commit++) {
      releaseNext();
      await settleEvents();
    }
    expect(await Promise.all([first, ...rest, last])).toEqual([1, 2, 1, 1]);
  });

  it('ends a transaction before it is too large', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store, { maxTransactionBytes: 4000 });
    await Promise.all(['a', 'b', 'c', 'd'].map((id) => updater.update('n', increment(id), always)));
    expect((await store.list('', forever)).revision).toBe(1 + 2);
  });

  it('fails the request whose decision throws, and no other', async () => {
    const { updater } = await startReplica(new MemoryStore());
    const refusal = new Failure('POOLS_EXHAUSTED', 'nothing left');
    const refuse: Decide<number> = () => {
      throw refusal;
    };
    const decisions = [increment('a'), refuse, increment('a'), readCount('a')];
    expect(await Promise.allSettled(decisions.map((decide) => updater.update('n', decide, always)))).toEqual([
      { status: 'fulfilled', value: 1 },
      { status: 'rejected', reason: refusal },
      { status: 'fulfilled', value: 2 },
      { status: 'fulfilled', value: 2 },
    ]);
  });

  it('answers what depends on an uncommitted change only once that is committed', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store, { isExclusiveWriter: true });
    store.injectFault('commit', { type: 'fails', failure: unavailable });
    const results = await Promise.allSettled([
      updater.update('n', increment('a'), always),
      updater.update('n', readCount('a'), always),
    ]);
    expect(results.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    expect(store.unusedFaults()).toEqual([]);
  });

  it('answers a decision without changes without a commit', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store);
    store.injectFault('commit', { type: 'fails', failure: unavailable });
    expect(await updater.update('n', readCount('a'), always)).toBe(0);
    expect(store.unusedFaults()).toEqual(['commit']);
  });

  it('splits a group at the limit of operations', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store, { maxOperationsCount: 3 });
    await Promise.all(['a', 'b', 'c', 'd', 'e', 'f', 'g'].map((id) => updater.update('n', increment(id), always)));
    expect((await store.list('', forever)).revision).toBe(1 + 3);
  });

  it('refuses a decision that is over the limit alone, and serves the other requests', async () => {
    const { updater } = await startReplica(new MemoryStore(), { maxOperationsCount: 2 });
    const large: Decide<string> = () => ({
      changes: ['x', 'y', 'z'].map((id) => put(handle(id, 1))),
      outcome: 'never',
    });
    const before = updater.update('n', increment('a'), always);
    const refused = expect(updater.update('n', large, always)).rejects.toThrow(/3 operations .* allows 2/);
    const after = updater.update('n', increment('a'), always);
    await refused;
    expect(await Promise.all([before, after])).toEqual([1, 2]);
  });
});

describe('lost comparisons', () => {
  it('decides again on the records of another replica', async () => {
    const store = new MemoryStore();
    const [first, second] = [await startReplica(store), await startReplica(store)];
    await first.updater.update('n', increment('a'), always);
    expect(await second.updater.update('n', increment('a'), always)).toBe(2);
    await writeHandle(store, handle('a', 10));
    expect(await second.updater.update('n', increment('a'), always)).toBe(11);
  });

  it('cost one more transaction and no read, though the watch has delivered nothing', async () => {
    const never = new Promise<void>(() => undefined);
    const asked: Operation[] = [];
    const store = new MemoryStore({
      before: (operation) => {
        asked.push(operation);
        return operation === 'watch' ? never : Promise.resolve();
      },
    });
    const { updater } = await startReplica(store);
    await writeHandle(store, handle('a', 10));
    asked.length = 0;
    expect(await updater.update('n', increment('a'), always)).toBe(11);
    expect(asked).toEqual(['commit', 'commit']);
  });

  it('are retried at once, and with a growing back-off only after many in a row', async () => {
    const waits: number[] = [];
    const clock: Clock = {
      ...instantClock,
      sleep: (durationMs, signal) => {
        waits.push(durationMs);
        return instantClock.sleep(durationMs, signal);
      },
    };
    const store = new MemoryStore();
    const { updater } = await startReplica(store, { clock });
    for (let attempt = 0; attempt < 10; attempt++) store.injectFault('commit', { type: 'losesRace' });
    await updater.update('n', increment('a'), always);
    // It yields once to the event loop after a transaction that took no time.
    expect(waits).toEqual([0]);
    for (let attempt = 0; attempt < 13; attempt++) store.injectFault('commit', { type: 'losesRace' });
    await updater.update('n', increment('a'), always);
    expect(waits).toEqual([0, 2, 4, 8, 0]);
    expect(store.unusedFaults()).toEqual([]);
  });

  it('retries when the store reports a conflict without a reason', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store);
    store.injectFault('commit', { type: 'losesRace' });
    expect(await updater.update('n', increment('a'), always)).toBe(1);
    expect(store.unusedFaults()).toEqual([]);
  });

  it('serves a lane that lost alone, so that the other lanes do not lose with it', async () => {
    const never = new Promise<void>(() => undefined);
    const before = (operation: Operation) => (operation === 'watch' ? never : Promise.resolve());
    const store = new MemoryStore({ before });
    const { updater } = await startReplica(store, { maxAttemptsCount: 2 });
    const both = () =>
      Promise.all([updater.update('n', increment('a'), always), updater.update('m', increment('b'), always)]);
    await both();
    await writeHandle(store, handle('a', 10));
    // The transaction of both is lost; that of the lane that is not at fault is repeated at once.
    expect(await both()).toEqual([11, 2]);
    expect(await both()).toEqual([12, 3]);
    expect((await store.list('', forever)).revision).toBe(1 + 1 + 1 + 2 + 2);
    // It has not lost for two transactions.
    expect(await both()).toEqual([13, 4]);
    expect((await store.list('', forever)).revision).toBe(1 + 1 + 1 + 2 + 2 + 1);
  });

  it('gives up after the maximum of attempts', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store, { maxAttemptsCount: 3 });
    for (let attempt = 0; attempt < 4; attempt++) store.injectFault('commit', { type: 'losesRace' });
    await expect(updater.update('n', increment('a'), always)).rejects.toMatchObject({ code: 'CONFLICT' });
    expect(store.unusedFaults()).toEqual(['commit']);
    expect(String(store)).toBe('');
  });

  it('counts exactly over many lanes and replicas', async () => {
    const store = new MemoryStore();
    const options = { maxAttemptsCount: 1000 };
    const replicas = [await startReplica(store, options), await startReplica(store, options)];
    const counts = await Promise.all(
      Array.from({ length: 20 }, (_, index) =>
        replicas.map(({ updater }) => updater.update(`lane ${index % 5}`, increment('a'), always)),
      ).flat(),
    );
    expect(counts.sort((a, b) => a - b)).toEqual(Array.from({ length: 40 }, (_, index) => index + 1));
  });
});

describe('failures of the store', () => {
  it.each([
    ['before it has an effect', 'fails', 1],
    ['after it has committed', 'failsAfterCommit', 2],
  ] as const)(
    'a commit that fails %s fails its request, and is known before the next decision',
    async (_, type, count) => {
      const store = new MemoryStore();
      const { updater } = await startReplica(store);
      store.injectFault('commit', { type, failure: unavailable });
      await expect(updater.update('n', increment('a'), always)).rejects.toBe(unavailable);
      expect(store.unusedFaults()).toEqual([]);
      expect(await updater.update('other lane', readCount('a'), always)).toBe(count - 1);
      expect(await updater.update('n', increment('a'), always)).toBe(count);
    },
  );

  it('decides nothing while doubtful records cannot be read', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store);
    store.injectFault('commit', { type: 'failsAfterCommit', failure: unavailable });
    store.injectFault('read', { type: 'fails', failure: unavailable });
    await expect(updater.update('n', increment('a'), always)).rejects.toBe(unavailable);
    await expect(updater.update('n', readCount('a'), always)).rejects.toBe(unavailable);
    expect(store.unusedFaults()).toEqual([]);
    expect(await updater.update('n', readCount('a'), always)).toBe(1);
  });

  it('reads doubtful records once for each request, while the store refuses', async () => {
    let readsCount = 0;
    const before = (operation: Operation) => {
      if (operation !== 'read') return Promise.resolve();
      readsCount++;
      return Promise.reject(unavailable);
    };
    const store = new MemoryStore({ before });
    const { updater } = await startReplica(store);
    store.injectFault('commit', { type: 'fails', failure: unavailable });
    for (let requestsCount = 0; requestsCount < 3; requestsCount++) {
      await expect(updater.update('n', increment('a'), always)).rejects.toBe(unavailable);
      await settleEvents();
      expect(readsCount).toBeLessThanOrEqual(requestsCount + 1);
    }
    expect(readsCount).toBeGreaterThan(0);
  });
});

describe('callers that give up', () => {
  it('before anything: nothing is decided', async () => {
    const { updater } = await startReplica(new MemoryStore());
    const aborted = updater.update('n', increment('a'), { signal: AbortSignal.abort() });
    await expect(aborted).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(await updater.update('n', readCount('a'), always)).toBe(0);
  });

  it('in the lane: the request leaves no trace', async () => {
    const { store, releaseNext } = blockingStore();
    const { updater } = await startReplica(store);
    const abort = new AbortController();
    const first = updater.update('n', increment('a'), always);
    await settleEvents();
    const dropped = expect(updater.update('n', increment('a'), { signal: abort.signal })).rejects.toMatchObject({
      code: 'CANCELLED',
    });
    abort.abort();
    await dropped;
    releaseNext();
    await first;
    await updater.close();
    expect(await stored(store, 'a')).toEqual(['{"deleted":false,"block":{"10.0.0.0/26":1}}']);
  });

  it('during the transaction: the caller fails immediately, and the outcome stands', async () => {
    const { store, releaseNext } = blockingStore();
    const { updater } = await startReplica(store);
    const abort = new AbortController();
    const gone = updater.update('n', increment('a'), { signal: abort.signal });
    await settleEvents();
    abort.abort(new Failure('DEADLINE_EXCEEDED', 'too late'));
    await expect(gone).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    releaseNext();
    expect(await updater.update('n', readCount('a'), always)).toBe(1);
  });

  it('between two attempts: the request is not decided again', async () => {
    const { store, releaseNext } = blockingStore();
    const { updater } = await startReplica(store);
    const abort = new AbortController();
    store.injectFault('commit', { type: 'losesRace' });
    const gone = updater.update('n', increment('a'), { signal: abort.signal });
    await settleEvents();
    abort.abort();
    await expect(gone).rejects.toMatchObject({ code: 'CANCELLED' });
    releaseNext();
    await updater.close();
    expect(String(store)).toBe('');
    expect(store.unusedFaults()).toEqual([]);
  });

  it('closing fails the waiters, and waits for transactions in flight', async () => {
    const { store, releaseNext } = blockingStore();
    const { updater } = await startReplica(store);
    const inFlight = updater.update('n', increment('a'), always);
    await settleEvents();
    const waiting = expect(updater.update('n', increment('a'), always)).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
    });
    const closed = updater.close();
    releaseNext();
    await Promise.all([closed, waiting]);
    expect(await inFlight).toBe(1);
    await expect(updater.update('n', increment('a'), always)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  });
});

describe('interleavings', () => {
  it('of two replicas and three requests keep every count, in any order of the store’s answers', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.scheduler(),
        fc.array(fc.constantFrom('n', 'm'), { minLength: 3, maxLength: 3 }),
        async (s, lanes) => {
          const store = new MemoryStore({ before: (operation) => s.schedule(Promise.resolve(), operation) });
          const starting = Promise.all([startReplica(store), startReplica(store)]);
          const [first, second] = await s.waitFor(starting);
          const running = lanes.map((lane, index) =>
            (index === 1 ? second : first).updater.update(lane, increment('a'), always),
          );
          const counts = await s.waitFor(Promise.all(running));
          expect(counts.sort()).toEqual([1, 2, 3]);
          await s.waitFor(store.list('', forever));
          expect(String(store)).toContain('"10.0.0.0/26":3');
        },
      ),
      { seed: 20261121, numRuns: 60 },
    );
  });
});

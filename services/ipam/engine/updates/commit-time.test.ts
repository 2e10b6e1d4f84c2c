import { failureOfSignal } from '@podwire/shared/failure/signal';
import { expect, it } from 'vitest';

import type { Decision } from '../../records/view.js';
import { MemoryStore } from '../testing/memory-store.js';
import { forever, handle, instantClock, put, settleEvents, startReplica } from '../testing/stores.js';

interface TimeLimit {
  readonly durationMs: number;
  readonly act: () => void;
  isOff: boolean;
}

/** Its time limits expire when a test says so. */
class LimitClock {
  readonly limits: TimeLimit[] = [];
  readonly nowMs = instantClock.nowMs.bind(undefined);
  readonly monotonicMs = instantClock.monotonicMs.bind(undefined);
  readonly sleep = instantClock.sleep.bind(undefined);

  after(durationMs: number, act: () => void): () => void {
    const limit = { durationMs, act, isOff: false };
    this.limits.push(limit);
    return () => (limit.isOff = true);
  }
}

/** While it is silent it answers no commit, except when the signal aborts. */
class SilentStore extends MemoryStore {
  isSilent = true;

  override commit(...args: Parameters<MemoryStore['commit']>): ReturnType<MemoryStore['commit']> {
    const [, signal] = args;
    if (!this.isSilent) return super.commit(...args);
    return new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(failureOfSignal(signal)));
    });
  }
}

const write = (): Decision<string> => ({ changes: [put(handle('net.c1', 1))], outcome: 'written' });

it('cancels the time limit of a transaction at its answer', async () => {
  const clock = new LimitClock();
  const { updater } = await startReplica(new MemoryStore(), { clock });
  expect(await updater.update('n', write, { signal: forever })).toBe('written');
  expect(clock.limits).toMatchObject([{ durationMs: 10_000, isOff: true }]);
});

it('abandons a transaction that the store does not answer in time, and commits the next', async () => {
  const clock = new LimitClock();
  const store = new SilentStore();
  const { updater } = await startReplica(store, { clock });
  const written = updater.update('n', write, { signal: forever });
  await settleEvents();
  for (const { act } of clock.limits) act();
  await expect(written).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', message: expect.stringContaining('10000') });
  store.isSilent = false;
  expect(await updater.update('n', write, { signal: forever })).toBe('written');
});

import { failureOfSignal } from '@podwire/shared/failure/signal';
import { expect, it } from 'vitest';

import type { Decision } from '../allocator/view.js';
import { MemoryStore } from './memory/memory-store.js';
import { forever, handle, instantClock, put, settleEvents, startReplica } from './store.fixture.js';

interface TimeLimit {
  readonly durationMs: number;
  readonly act: () => void;
  isOff: boolean;
}

/** Its time limits are over when a test says so. */
class LimitClock {
  readonly limits: TimeLimit[] = [];
  readonly nowMs = instantClock.nowMs.bind(undefined);
  readonly sleep = instantClock.sleep.bind(undefined);

  after(durationMs: number, act: () => void): () => void {
    const limit = { durationMs, act, isOff: false };
    this.limits.push(limit);
    return () => (limit.isOff = true);
  }
}

/** Never answers a commit, but for its signal. */
class SilentStore extends MemoryStore {
  override commit(...[, signal]: Parameters<MemoryStore['commit']>): ReturnType<MemoryStore['commit']> {
    return new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(failureOfSignal(signal)));
    });
  }
}

const write = (): Decision<string> => ({ changes: [put(handle('net.c1', 1))], outcome: 'written' });

it('calls the time limit of a transaction off with its answer', async () => {
  const clock = new LimitClock();
  const { updater } = await startReplica(new MemoryStore(), { clock });
  expect(await updater.update('n', write, { signal: forever })).toBe('written');
  expect(clock.limits).toMatchObject([{ durationMs: 10_000, isOff: true }]);
});

it('gives a transaction up that the store does not answer in time', async () => {
  const clock = new LimitClock();
  const { updater } = await startReplica(new SilentStore(), { clock });
  const written = updater.update('n', write, { signal: forever });
  await settleEvents();
  for (const { act } of clock.limits) act();
  await expect(written).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE', message: expect.stringContaining('10000') });
});

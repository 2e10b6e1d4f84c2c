import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, it } from 'vitest';

import type { Handle } from '../allocator/records.js';
import type { Change } from '../allocator/view.js';
import { Mirror, type MirrorEvent } from './mirror.js';
import { RecordKeys } from './record/keys.js';
import { MemoryStore } from './memory/memory-store.js';
import { Updater, type Decide, type UpdaterOptions } from './update.js';

const keys = new RecordKeys('/calico');
const BLOCK = '10.0.0.0/26';
const forever = new AbortController().signal;
const clock = { nowMs: () => 0, sleep: instantSleep };

/** Waits end at once, but for the time limit of a commit, which never does. */
function instantSleep(durationMs: number, signal: AbortSignal): Promise<'elapsed' | 'aborted'> {
  if (durationMs < 10_000) return new Promise((resolve) => setImmediate(() => resolve('elapsed')));
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve('aborted')));
}

async function start(store: MemoryStore, options: Partial<UpdaterOptions> = {}) {
  const events: MirrorEvent[] = [];
  const report = (event: MirrorEvent): number => events.push(event);
  const mirror = await Mirror.start({ store, keys, clock, random: () => 0.5, report }, forever);
  const updater = new Updater({ store, mirror, keys, clock, random: () => 0.5, ...options });
  return { mirror, updater, events };
}

/** One higher count in the handle's only block. @returns the count */
function increment(id: string): Decide<number> {
  return (view) => {
    const count = (view.handle(id)?.blocks.get(BLOCK) ?? 0) + 1;
    return { changes: [put({ id, blocks: new Map([[BLOCK, count]]) })], outcome: count };
  };
}

function put(value: Handle): Change {
  return { type: 'put', record: { kind: 'handle', value } };
}

const read =
  (id: string): Decide<number> =>
  (view) => ({ changes: [], outcome: view.handle(id)?.blocks.get(BLOCK) ?? 0 });

describe('the update loop', () => {
  it('counts 100 concurrent increments exactly, in few transactions', async () => {
    const store = new MemoryStore();
    const { updater } = await start(store);
    const counts = await Promise.all(
      Array.from({ length: 100 }, () => updater.update('lane', increment('a'), { signal: forever })),
    );
    expect(counts).toEqual(Array.from({ length: 100 }, (_, index) => index + 1));
    expect((await store.list('', forever)).revision).toBe(2);
  });

  it('counts exactly in many lanes at once', async () => {
    const store = new MemoryStore();
    const { updater } = await start(store, { maxAttemptsCount: 1000 });
    const counts = await Promise.all(
      Array.from({ length: 100 }, (_, index) => updater.update(`lane-${index}`, increment('a'), { signal: forever })),
    );
    expect(counts.sort((a, b) => a - b)).toEqual(Array.from({ length: 100 }, (_, index) => index + 1));
  });

  it('fails a request whose decision throws, and no other', async () => {
    const { updater } = await start(new MemoryStore());
    const refusal = new Failure('POOLS_EXHAUSTED', 'nothing left');
    const refuse: Decide<number> = () => {
      throw refusal;
    };
    const results = await Promise.allSettled([
      updater.update('lane', increment('a'), { signal: forever }),
      updater.update('lane', refuse, { signal: forever }),
      updater.update('lane', increment('a'), { signal: forever }),
      updater.update('lane', read('a'), { signal: forever }),
    ]);
    expect(results).toEqual([
      { status: 'fulfilled', value: 1 },
      { status: 'rejected', reason: refusal },
      { status: 'fulfilled', value: 2 },
      { status: 'fulfilled', value: 2 },
    ]);
  });
});

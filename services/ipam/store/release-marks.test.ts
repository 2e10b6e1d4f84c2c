import { describe, expect, it } from 'vitest';

import { MemoryStore } from './memory/memory-store.js';
import { expireReleaseMarks, markExpiry } from './release-marks.js';
import { forever, keys } from './store.fixture.js';

const KEPT_MS = 15 * 60_000;
const nowMs = Date.parse('2026-08-22T12:00:00Z');

const mark = (id: string, atMs: number) => ({
  key: keys.release(id),
  value: Buffer.from(JSON.stringify({ releasedAt: new Date(atMs).toISOString() })),
});

async function storeWith(puts: readonly { readonly key: string; readonly value: Uint8Array }[]): Promise<MemoryStore> {
  const store = new MemoryStore();
  for (let start = 0; start < puts.length; start += 50)
    await store.commit({ comparisons: [], puts: puts.slice(start, start + 50), deletes: [] }, forever);
  return store;
}

async function marksIn(store: MemoryStore): Promise<string[]> {
  return (await store.list(keys.releases, forever)).records.map(({ key }) => key.slice(keys.releases.length));
}

describe('marks of releases', () => {
  it('go after a quarter of an hour, and those that cannot be read at once', async () => {
    const store = await storeWith([
      mark('old', nowMs - KEPT_MS),
      mark('young', nowMs - KEPT_MS + 1),
      mark('ahead', nowMs + KEPT_MS),
      { key: keys.release('broken'), value: Buffer.from('{') },
    ]);
    expect(await expireReleaseMarks({ store, keys, nowMs }, forever)).toBe(2);
    expect(await marksIn(store)).toEqual(['ahead', 'young']);
    expect(await expireReleaseMarks({ store, keys, nowMs }, forever)).toBe(0);
  });

  it('go however many there are', async () => {
    const store = await storeWith(Array.from({ length: 1001 }, (_, index) => mark(`c${index}`, 0)));
    expect(await expireReleaseMarks({ store, keys, nowMs }, forever)).toBe(1001);
    expect(await marksIn(store)).toEqual([]);
  });

  it('stay when they are made anew at the same moment', async () => {
    const store = await storeWith([mark('c1', 0)]);
    const scan = store.scan.bind(store);
    store.scan = async (request, signal) => {
      const page = await scan(request, signal);
      await store.commit({ comparisons: [], puts: [mark('c1', nowMs)], deletes: [] }, signal);
      return page;
    };
    expect(await expireReleaseMarks({ store, keys, nowMs }, forever)).toBe(0);
    expect(await marksIn(store)).toEqual(['c1']);
  });

  it('are not looked at more often than every five minutes', async () => {
    const store = await storeWith([mark('c1', 0)]);
    const clock = {
      after: () => () => undefined,
      timeMs: nowMs,
      nowMs: () => clock.timeMs,
      sleep: () => Promise.resolve('elapsed' as const),
    };
    const run = markExpiry({ store, keys, clock });
    await run(forever);
    await store.commit({ comparisons: [], puts: [mark('c2', 0)], deletes: [] }, forever);
    clock.timeMs += 5 * 60_000 - 1;
    await run(forever);
    expect(await marksIn(store)).toEqual(['c2']);
    clock.timeMs += 1;
    await run(forever);
    expect(await marksIn(store)).toEqual([]);
  });
});

import { describe, expect, it } from 'vitest';

import { MemoryStore } from './memory/memory-store.js';
import { listInParts } from './pages.js';
import { forever } from './store.fixture.js';

const put = (store: MemoryStore, key: string, bytes = 10) =>
  store.commit({ comparisons: [], puts: [{ key, value: Buffer.alloc(bytes) }], deletes: [] }, forever);

const keyOf = (index: number): string => `/a/${String(index).padStart(5, '0')}`;

async function filled(count: number, bytes = 10): Promise<MemoryStore> {
  const store = new MemoryStore();
  const puts = Array.from({ length: count }, (_, index) => ({ key: keyOf(index), value: Buffer.alloc(bytes) }));
  await store.commit({ comparisons: [], puts, deletes: [] }, forever);
  return store;
}

describe('a list in parts', () => {
  it.each([0, 1, 100, 101, 5000])('has all of %i records once, in parts, at one revision', async (count) => {
    const store = await filled(count);
    await put(store, '/b/other');
    const { revision } = await store.list('', forever);
    const keys: string[] = [];
    let parts = 0;
    for await (const part of listInParts(store, '/a/', forever)) {
      expect(part).toMatchObject({ revision, isFirst: parts++ === 0 });
      keys.push(...part.records.map(({ key }) => key));
    }
    expect(keys).toEqual(Array.from({ length: count }, (_, index) => keyOf(index)));
    expect(parts).toBeLessThanOrEqual(1 + Math.ceil(count / 2000));
  });

  it('has small parts where records are large', async () => {
    const store = await filled(150, 100_000);
    const sizes: number[] = [];
    for await (const { records } of listInParts(store, '/a/', forever)) sizes.push(records.length);
    expect(sizes.slice(0, 3)).toEqual([100, 10, 10]);
  });

  it('begins anew, at once, where the store no longer has the moment', async () => {
    const store = await filled(3000);
    const listed = new Set<string>();
    const firsts: boolean[] = [];
    for await (const part of listInParts(store, '/a/', forever)) {
      firsts.push(part.isFirst);
      if (part.isFirst) listed.clear();
      for (const { key } of part.records) listed.add(key);
      if (firsts.length === 1) await put(store, '/a/99999');
    }
    expect(firsts).toEqual([true, true]);
    expect(listed.size).toBe(3001);
  });
});

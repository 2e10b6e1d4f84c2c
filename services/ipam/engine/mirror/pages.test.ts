import { describe, expect, it } from 'vitest';

import { MemoryStore, type Operation } from '../testing/memory-store.js';
import { forever } from '../testing/stores.js';
import { listInParts } from './pages.js';

const put = (store: MemoryStore, key: string, bytes = 10) =>
  store.commit({ comparisons: [], puts: [{ key, value: Buffer.alloc(bytes) }], deletes: [] }, forever);

const keyOf = (index: number): string => `/a/${String(index).padStart(5, '0')}`;

async function filled(
  count: number,
  bytes = 10,
  before: (operation: Operation) => Promise<void> = () => Promise.resolve(),
): Promise<MemoryStore> {
  const store = new MemoryStore({ before });
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

  it('has small parts when records are large', async () => {
    const store = await filled(150, 100_000);
    const sizes: number[] = [];
    for await (const { records } of listInParts(store, '/a/', forever)) sizes.push(records.length);
    expect(sizes).toEqual(Array.from({ length: 15 }, () => 10));
  });

  it('reads few pages ahead, each while the previous one is processed', async () => {
    const scans: number[] = [];
    let given = 0;
    const count = (operation: Operation): Promise<void> => {
      if (operation === 'scan') scans.push(given);
      return Promise.resolve();
    };
    const store = await filled(50_000, 10, count);
    for await (const { records } of listInParts(store, '/a/', forever)) given += records.length;
    expect(given).toBe(50_000);
    expect(scans).toEqual([0, 0, 100, 20_100]);
  });

  it('restarts immediately when the store no longer has the revision', async () => {
    const store = await filled(300, 100_000);
    const listed = new Set<string>();
    const firsts: boolean[] = [];
    for await (const part of listInParts(store, '/a/', forever)) {
      firsts.push(part.isFirst);
      if (part.isFirst) listed.clear();
      for (const { key } of part.records) listed.add(key);
      if (firsts.length === 1) await put(store, '/a/99999');
    }
    expect(firsts.filter(Boolean)).toHaveLength(2);
    expect(firsts.at(-1)).toBe(true);
    expect(listed.size).toBe(301);
  });

  it('leaves no unhandled rejection', async () => {
    let scans = 0;
    const store = await filled(3000, 10, (operation) =>
      operation === 'scan' && ++scans === 2 ? Promise.reject(new Error('lost')) : Promise.resolve(),
    );
    for await (const { isFirst } of listInParts(store, '/a/', forever)) {
      expect(isFirst).toBe(true);
      break;
    }
    expect(scans).toBe(2);
    await new Promise((resolve) => setImmediate(resolve));
  });
});

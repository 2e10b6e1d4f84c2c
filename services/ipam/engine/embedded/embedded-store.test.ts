import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

import { afterEach, beforeEach, describe, expect, it, test } from 'vitest';

import { describeStoreContract } from '../testing/store-contract.js';
import { EmbeddedStore, RecentRevisions } from './embedded-store.js';

const signal = new AbortController().signal;
let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'podwire-store-'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const openStore = () => EmbeddedStore.open({ directory, pid: process.pid, watchHistoryCount: 100 });

describeStoreContract('the embedded store', async () => {
  const store = await openStore();
  return {
    store,
    forgetChanges: async () => {
      for (let index = 0; index < 250; index++) {
        const puts = [{ key: '/elsewhere', value: Buffer.from(String(index)) }];
        await store.commit({ comparisons: [], puts, deletes: [] }, signal);
      }
    },
    dispose: () => store.close(),
  };
});

describe('the embedded store on disk', () => {
  it('keeps records, revisions and its format over a restart', async () => {
    const first = await openStore();
    const puts = [{ key: '/a', value: Buffer.from('1') }];
    const committed = await first.commit({ comparisons: [], puts, deletes: [] }, signal);
    await first.close();
    const second = await openStore();
    const snapshot = await second.list('/', signal);
    expect(committed).toEqual({ committed: true, revision: snapshot.revision });
    expect(snapshot.records.map(({ key, modRevision }) => [key, modRevision])).toEqual([['/a', snapshot.revision]]);
    await second.close();
  });

  it('grows beyond its first address space', async () => {
    const store = await EmbeddedStore.open({ directory, pid: process.pid, initialMapBytes: 2 ** 20 });
    const value = Buffer.alloc(2 ** 20, 7);
    for (let index = 0; index < 8; index++)
      await store.commit({ comparisons: [], puts: [{ key: `/${index}`, value }], deletes: [] }, signal);
    const { records } = await store.list('/', signal);
    expect(records.map((record) => value.equals(record.value))).toEqual(records.map(() => true));
    expect(records).toHaveLength(8);
    await store.close();
  });

  it('evaluates a transaction after earlier ones that are still being written', async () => {
    const store = await openStore();
    const puts = ['/0', '/1', '/2', '/3', '/4'].map((key) => ({ key, value: Buffer.from(key) }));
    const comparisons = [{ type: 'record', key: '/0', modRevision: 0 } as const];
    const first = store.commit({ comparisons, puts, deletes: [] }, signal);
    await new Promise((resolve) => setImmediate(resolve));
    const second = store.commit({ comparisons, puts, deletes: [] }, signal);
    expect([await first, await second]).toEqual([
      { committed: true, revision: 2 },
      {
        committed: false,
        revision: 2,
        changed: [{ key: '/0', value: Buffer.from('/0'), modRevision: 2 }],
        missing: [],
      },
    ]);
    await store.close();
  });

  it('evaluates against the stored values, whether they were written lately, long ago or deleted', async () => {
    const store = await openStore();
    const keys = Array.from({ length: 1500 }, (_, at) => `/${at}`);
    const value = Buffer.from('value');
    await store.commit({ comparisons: [], puts: keys.map((key) => ({ key, value })), deletes: [] }, signal);
    const again = keys.filter((_, at) => at % 7 === 0).map((key) => ({ key, value }));
    await store.commit({ comparisons: [], puts: again, deletes: keys.filter((_, at) => at % 7 === 1) }, signal);

    const { records } = await store.list('/', signal);
    const stored = new Map(records.map(({ key, modRevision }) => [key, modRevision]));
    for (const key of keys.slice(0, 60).concat(keys.slice(-60))) {
      for (const modRevision of [0, 2, 3]) {
        const comparisons = [{ type: 'record', key, modRevision } as const];
        const { committed } = await store.commit({ comparisons, puts: [], deletes: [] }, signal);
        expect([key, modRevision, committed]).toEqual([key, modRevision, modRevision === (stored.get(key) ?? 0)]);
      }
    }
    await store.close();
  });

  it('is accessible to its owner only', async () => {
    const store = await openStore();
    expect(statSync(directory).mode & 0o777).toBe(0o700);
    await store.close();
  });

  it('refuses a second opener, naming directory and PID, until the first has closed', async () => {
    const first = await openStore();
    await expect(openStore()).rejects.toMatchObject({
      code: 'STORE_IN_USE',
      details: { directory, pid: String(process.pid) },
    });
    await first.close();
    const second = await openStore();
    await second.close();
  });

  it('lets exactly one of many concurrent openers in', async () => {
    const results = await Promise.allSettled(Array.from({ length: 10 }, openStore));
    const opened = results.filter((result) => result.status === 'fulfilled');
    expect(opened).toHaveLength(1);
    for (const { value } of opened) await value.close();
  });
});

test('the latest writes and deletions are known', () => {
  const recent = new RecentRevisions();
  recent.set('/a', 2);
  recent.set('/b', 3);
  recent.set('/a', 4);
  recent.set('/b', 0);
  expect(['/a', '/b', '/c'].map((key) => recent.get(key))).toEqual([4, 0, undefined]);
});

test('the last 1,024 are known, and keys that were not written for twice as long are dropped', () => {
  const recent = new RecentRevisions();
  recent.set('/kept', 1);
  recent.set('/forgotten', 1);
  for (let at = 0; at < 5_000; at++) {
    recent.set(`/${at}`, 2);
    recent.set('/kept', 3);
    if (at > 2_048) expect(recent.get('/forgotten')).toBeUndefined();
    expect(recent.get(`/${Math.max(0, at - 1_022)}`)).toBe(2);
    expect(recent.get(`/${at - 2_048}`)).toBeUndefined();
  }
  expect(recent.get('/kept')).toBe(3);
});

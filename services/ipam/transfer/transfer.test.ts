import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { EmbeddedStore } from '../engine/embedded/embedded-store.js';
import type { Store } from '../engine/store.js';
import { openEtcdStore } from '../engine/testing/etcd-faults.js';
import { EtcdServer } from '../engine/testing/etcd-server.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { HistoryLog } from '../history/history-log.js';
import { dayStartMs, RecordKeys } from '../records/json/keys.js';
import { contentOf, exported, fill, forever, imported, recordLines, sampleRecords } from '../testing/archives.js';
import { exportDatastore, readLines, writeAtomically } from './export.js';
import { importMarkKey, readMark, requireCompleteImport } from './scope.js';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-transfer-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const openEmbedded = (name: string): Promise<Store> =>
  EmbeddedStore.open({ directory: join(folder, name), pid: process.pid, watchHistoryCount: 1 });

const hex = (records: ReadonlyMap<string, Buffer>) =>
  new Map([...records].map(([key, value]) => [key, value.toString('hex')]));

async function filled(records = sampleRecords()): Promise<MemoryStore> {
  const store = new MemoryStore();
  await fill(store, records);
  return store;
}

describe('a datastore comes out as it went in', () => {
  test('from embedded to etcd and back', { timeout: 60_000 }, async () => {
    const records = sampleRecords();
    const server = await EtcdServer.start();
    const stores = [await openEmbedded('a'), await openEtcdStore([server]), await openEmbedded('b')] as const;
    try {
      await fill(stores[0], records);
      const first = await exported(stores[0]);
      expect(await imported(stores[1], first)).toEqual({
        records: records.size,
        written: records.size,
        resumed: false,
        leftOut: new Map(),
        leftOutEntries: new Map(),
      });
      const second = await exported(stores[1]);
      await imported(stores[2], second);
      expect(recordLines(second)).toBe(recordLines(first));
      expect(recordLines(await exported(stores[2]))).toBe(recordLines(first));
      expect(await contentOf(stores[1])).toEqual(hex(records));
      expect(await contentOf(stores[2])).toEqual(hex(records));
    } finally {
      for (const store of stores) await store.close();
      await server.dispose();
    }
  });

  test('of one moment, though etcd is written to meanwhile', { timeout: 60_000 }, async () => {
    const server = await EtcdServer.start();
    const store = await openEtcdStore([server]);
    try {
      const keys = Array.from({ length: 1000 }, (_, index) => `/calico/k${String(index).padStart(4, '0')}`);
      await fill(store, new Map(keys.map((key) => [key, Buffer.from('old')])));
      const ended = new AbortController();
      const file = exported(store).finally(() => ended.abort());
      // Writes lie after and before the pages that were read: one after the other, so that half of a pair would show.
      let round = 0;
      for (; !ended.signal.aborted; round++)
        await fill(
          store,
          new Map([keys.at(-1 - round)!, keys[round]!].map((key) => [key, Buffer.from(`new${round}`)])),
        );
      expect(round).toBeGreaterThan(2);
      const lines = recordLines(await file).split('\n');
      const seen = lines.filter((line) => line.includes('new')).length;
      // The moment is one between two writes: everything written by then is present, in pairs.
      expect(seen % 2).toBe(0);
      expect(lines).toHaveLength(1000);
    } finally {
      await store.close();
      await server.dispose();
    }
  });

  test('with another prefix, if requested', async () => {
    const file = await exported(await filled());
    const target = new MemoryStore();
    await expect(imported(target, file, { prefix: '/other' })).rejects.toMatchObject({
      code: 'IMPORT_REFUSED',
      message: expect.stringContaining("the file's keys begin with /calico, but the datastore's with /other"),
    });
    await imported(target, file, { prefix: '/other', rewritePrefix: true });
    expect(await contentOf(target, '/other')).toEqual(hex(sampleRecords('/other')));
    expect(await contentOf(target)).toEqual(new Map());
  });

  const LIMIT_BYTES = 100 * 2 ** 20;

  test('without holding it: 50,000 records of 200 MB within 100 MiB', { timeout: 120_000 }, async () => {
    const source = await openEmbedded('large');
    const value = Buffer.from('x'.repeat(4000));
    await fill(source, new Map(Array.from({ length: 50_000 }, (_, index) => [`/calico/k${index}`, value])));
    const target = await openEmbedded('copy');
    const path = join(folder, 'large.jsonl');
    setFlagsFromString('--expose-gc');
    const collect: () => void = runInNewContext('gc');
    const used = () => process.memoryUsage().heapUsed + process.memoryUsage().external;
    const before = used();
    let peak = 0;
    const watch = setInterval(() => {
      // Uncollected garbage does not count.
      if (used() - before >= LIMIT_BYTES) collect();
      peak = Math.max(peak, used() - before);
    }, 5);
    await writeAtomically(path, process.pid, (sink) =>
      exportDatastore({ store: source, kind: 'embedded', prefix: '/calico', sink, signal: forever }),
    );
    const lines = () => readLines(path);
    const counts = await imported(target, Buffer.alloc(0), {
      lines,
      maxOperationsCount: 1024,
      maxTransactionBytes: 2 ** 19,
    });
    clearInterval(watch);
    expect(counts).toMatchObject({ records: 50_000, written: 50_000 });
    expect(peak).toBeLessThan(LIMIT_BYTES);
    await source.close();
    await target.close();
  });
});

describe('an import is refused, and changes nothing', () => {
  test.each([
    ["a record of Calico's", '/calico/x'],
    ['history', '/podwire/calico/history/1'],
  ])('when the datastore has %s', async (_, key) => {
    const target = await filled(new Map([[key, Buffer.from('{}')]]));
    const before = target.toString();
    await expect(imported(target, await exported(await filled()))).rejects.toMatchObject({
      code: 'IMPORT_REFUSED',
      message: expect.stringContaining(`the datastore is not empty: it has ${key}`),
    });
    expect(target.toString()).toBe(before);
  });

  test('when a record of the same key has another value, even with merging', async () => {
    const target = await filled(
      new Map([
        ['/calico/empty', Buffer.from('not')],
        ['/calico/own', Buffer.from('{}')],
      ]),
    );
    const before = target.toString();
    await expect(imported(target, await exported(await filled()), { merge: true })).rejects.toMatchObject({
      code: 'IMPORT_REFUSED',
      message: expect.stringContaining('1 record exists with another value: /calico/empty'),
    });
    expect(target.toString()).toBe(before);
  });

  test('when the file was changed or cut off', async () => {
    const file = await exported(await filled());
    const target = new MemoryStore();
    const changed = Buffer.from(file.toString().replace('FelixConfiguration', 'Felixconfiguration'));
    await expect(imported(target, changed)).rejects.toMatchObject({ code: 'EXPORT_INVALID' });
    const cut = file.subarray(0, file.lastIndexOf('{'));
    await expect(imported(target, cut)).rejects.toMatchObject({ code: 'EXPORT_INVALID' });
    expect(target.toString()).toBe('');
  });

  test('when it is a dry run', async () => {
    const target = await filled(new Map([['/calico/empty', Buffer.alloc(0)]]));
    const before = target.toString();
    const file = await exported(await filled());
    const { size } = sampleRecords();
    expect(await imported(target, file, { merge: true, dryRun: true })).toMatchObject({
      records: size,
      written: size - 1,
    });
    expect(target.toString()).toBe(before);
  });
});

test('merging keeps existing records, and adds missing ones', async () => {
  const own = new Map([
    ['/calico/empty', Buffer.alloc(0)],
    ['/calico/own', Buffer.from('{}')],
  ]);
  const target = await filled(own);
  await imported(target, await exported(await filled()), { merge: true });
  expect(await contentOf(target)).toEqual(hex(new Map([...sampleRecords(), ...own])));
});

test('merging histories that are whole from different days on makes one that is from the later on', async () => {
  const keys = new RecordKeys('/calico');
  const wholeFrom = async (day: number): Promise<MemoryStore> => {
    const store = new MemoryStore();
    await new HistoryLog(store, keys).recordKeptFrom(day, forever);
    return store;
  };
  for (const [source, target] of [
    [20_000, 20_001],
    [20_001, 20_000],
  ] as const) {
    const merged = await wholeFrom(target);
    await imported(merged, await exported(await wholeFrom(source)), { merge: true });
    expect(await new HistoryLog(merged, keys).keptFromMs(forever)).toBe(dayStartMs(20_001));
  }
});

describe('transient records of the processes', () => {
  const passing = (value: string): Map<string, Buffer> =>
    new Map(
      ['/podwire/calico/releases/net.c1', '/podwire/calico/fences/s/0', '/calico/podwire/barrier'].map((key) => [
        key,
        Buffer.from(value),
      ]),
    );

  test('are not exported', async () => {
    const source = await filled(new Map([...sampleRecords(), ...passing('{}')]));
    expect(recordLines(await exported(source))).toBe(recordLines(await exported(await filled())));
  });

  test('of the target do not block merging, and stay', async () => {
    const target = await filled(passing('{"of":"the target"}'));
    const count = sampleRecords().size;
    const file = await exported(await filled());
    expect(await imported(target, file, { merge: true })).toMatchObject({ records: count, written: count });
    const { records: kept } = await target.read([...passing('').keys()], forever);
    expect(kept.map(({ value }) => Buffer.from(value).toString())).toEqual(Array(3).fill('{"of":"the target"}'));
  });
});

describe('an import that is cut off', () => {
  const records = sampleRecords('/calico', 60);
  const failure = new Failure('STORE_UNAVAILABLE', 'cut');

  /** Fails the commit of a number, before or after it has its effect. */
  function failing(store: MemoryStore, number: number, type: 'fails' | 'failsAfterCommit'): Store {
    let count = 0;
    return {
      list: (...args) => store.list(...args),
      read: (...args) => store.read(...args),
      scan: (...args) => store.scan(...args),
      revision: (...args) => store.revision(...args),
      watch: (...args) => store.watch(...args),
      close: () => store.close(),
      commit: (...args) => {
        if (count++ === number) store.injectFault('commit', { type, failure });
        return store.commit(...args);
      },
    };
  }

  test.each(['fails', 'failsAfterCommit'] as const)(
    'wherever its commit %s, continues when it is repeated',
    async (type) => {
      const file = await exported(await filled(records));
      let cuts = 0;
      for (let number = 0; ; number++) {
        const target = new MemoryStore();
        const [outcome] = await Promise.allSettled([imported(failing(target, number, type), file)]);
        if (outcome.status === 'fulfilled') break;
        cuts++;
        const mark = await readMark(target, '/calico', forever);
        const isRunning = mark?.mark.state === 'running';
        const whole = await requireCompleteImport(target, '/calico', forever).then(
          () => true,
          () => false,
        );
        expect(whole).toBe(!isRunning);
        // There is nothing to continue after none or all of the records.
        const repeat = imported(target, file, { merge: mark?.mark.state === 'complete' });
        expect(await repeat).toMatchObject({ records: records.size, resumed: isRunning });
        expect(await contentOf(target)).toEqual(hex(records));
        expect(await requireCompleteImport(target, '/calico', forever)).toBe('uid');
      }
      expect(cuts).toBeGreaterThan(5);
    },
  );

  test('keeps the datastore from being served or exported, and cannot be continued with another file', async () => {
    const target = new MemoryStore();
    const file = await exported(await filled(records));
    await expect(imported(failing(target, 3, 'fails'), file)).rejects.toBe(failure);
    await expect(requireCompleteImport(target, '/calico', forever)).rejects.toMatchObject({
      code: 'IMPORT_INCOMPLETE',
    });
    await expect(exported(target)).rejects.toMatchObject({ code: 'IMPORT_INCOMPLETE' });
    const other = await exported(await filled(sampleRecords('/calico', 61)));
    await expect(imported(target, other)).rejects.toMatchObject({
      code: 'IMPORT_REFUSED',
      message: expect.stringContaining('an import of another file'),
    });
  });

  test('cannot be continued while it progresses', async () => {
    const target = new MemoryStore();
    const file = await exported(await filled(records));
    await expect(imported(failing(target, 3, 'fails'), file)).rejects.toBe(failure);
    const clock = {
      nowMs: () => 0,
      monotonicMs: () => 0,
      // This import renews too, all the time.
      sleep: async () => {
        const puts = (await target.read([importMarkKey('/calico')], forever)).records;
        await target.commit({ comparisons: [], puts, deletes: [] }, forever);
        return 'elapsed' as const;
      },
      after: () => () => undefined,
    };
    const second = imported(target, file, { isExclusiveWriter: false, clock });
    await expect(second).rejects.toMatchObject({
      message: expect.stringContaining('another import into the datastore is running'),
    });
  });
});

test('of two imports at once one completes, and the records are complete', async () => {
  const records = sampleRecords('/calico', 60);
  const file = await exported(await filled(records));
  const target = new MemoryStore({ before: () => new Promise((resolve) => setImmediate(resolve)) });
  let uid = 0;
  const both = await Promise.allSettled(
    [1, 2].map(() => imported(target, file, { isExclusiveWriter: false, newUid: () => `uid-${++uid}` })),
  );
  const failed = both.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []));
  expect(failed).toEqual([expect.objectContaining({ code: 'IMPORT_REFUSED' })]);
  expect(await contentOf(target)).toEqual(hex(records));
  expect((await readMark(target, '/calico', forever))?.mark.state).toBe('complete');
});

test('a halted import writes nothing once another has replaced it', async () => {
  const records = sampleRecords('/calico', 60);
  const file = await exported(await filled(records));
  const target = new MemoryStore();
  let releaseNext = (): void => undefined;
  let commits = 0;
  const halting: Store = Object.assign(Object.create(target), {
    commit: async (...args: Parameters<Store['commit']>) => {
      if (commits++ === 3) await new Promise<void>((resolve) => (releaseNext = resolve));
      return target.commit(...args);
    },
    read: target.read.bind(target),
    scan: target.scan.bind(target),
    revision: target.revision.bind(target),
  });
  const first = imported(halting, file);
  while (commits < 4) await new Promise((resolve) => setImmediate(resolve));
  await imported(target, file);
  // The service has begun, and has released what the halted transaction would restore.
  await target.commit({ comparisons: [], puts: [], deletes: [...records.keys()] }, forever);
  releaseNext();
  await expect(first).rejects.toMatchObject({ code: 'IMPORT_REFUSED' });
  expect(await contentOf(target)).toEqual(new Map());
  expect((await readMark(target, '/calico', forever))?.mark.state).toBe('complete');
});

test('a service that starts meanwhile makes the import fail', async () => {
  const target = new MemoryStore();
  const file = await exported(await filled());
  let commits = 0;
  const intruded: Store = Object.assign(Object.create(target), {
    commit: async (...args: Parameters<Store['commit']>) => {
      if (commits++ === 0) await fill(target, new Map([['/calico/made', Buffer.from('{}')]]));
      return target.commit(...args);
    },
    read: target.read.bind(target),
    scan: target.scan.bind(target),
    revision: target.revision.bind(target),
  });
  await expect(imported(intruded, file)).rejects.toMatchObject({ code: 'IMPORT_REFUSED' });
  expect([...(await contentOf(target)).keys()]).toEqual(['/calico/made']);
});

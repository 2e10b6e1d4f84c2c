import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { attachment, block, NOW_MS, poolRecord } from '../../testing/records.js';
import { RecordKeys } from '../../records/json/keys.js';
import { decodeRecord, encodeRecord, serialize } from '../../records/json/registry.js';
import { takeOrdinals, type Block } from '../../records/block.js';
import type { Comparison, RevisionChanges, Transaction } from '../store.js';
import { MemoryObjects } from '../testing/memory-objects.js';
import { describeStoreContract } from '../testing/store-contract.js';
import { forever } from '../testing/stores.js';
import { KubernetesStore } from './kubernetes-store.js';
import type { ObjectApi, ObjectObserver } from './object-api.js';

const keys = new RecordKeys('/calico');

for (const reports of ['prompt', 'late'] as const)
  describeStoreContract(`the Kubernetes store with ${reports} reports`, async () => {
    const api = new MemoryObjects(keys).connect({ reports });
    const store = await KubernetesStore.open({ api, keys, watchHistoryCount: 1 }, forever);
    const puts = [{ key: '/unrelated', value: Buffer.from('1') }];
    const forgetChanges = async (): Promise<void> => {
      for (let count = 0; count < 3; count++) await store.commit({ comparisons: [], puts, deletes: [] }, forever);
    };
    return { store, forgetChanges, dispose: () => store.close() };
  });

let objects: MemoryObjects;
let store: KubernetesStore;

beforeEach(async () => {
  objects = new MemoryObjects(keys);
  store = await KubernetesStore.open({ api: objects.connect(), keys }, forever);
});
afterEach(() => store.close());

const bytes = (text: string): Buffer => Buffer.from(text);

const change = (parts: Partial<Transaction>) =>
  store.commit({ comparisons: [], puts: [], deletes: [], ...parts }, forever);

const put = (key: string, text: string) => ({ key, value: bytes(text) });

const unchanged = (key: string, modRevision: number): Comparison => ({ type: 'record', key, modRevision });

const textOf = async (key: string) => {
  const { records } = await store.read([key], forever);
  return records[0] && Buffer.from(records[0].value).toString();
};

/** Another writer, which the store's reports may not have brought yet. */
function writeElsewhere(key: string, text: string): void {
  const id = `records/${key}`;
  objects.write({ id, records: new Map([[key, bytes(text)]]), details: new Map() }, objects.get(id));
}

async function takeChanges(count: number): Promise<RevisionChanges[]> {
  const taken: RevisionChanges[] = [];
  const ended = new AbortController();
  for await (const item of store.watch({ prefix: '/', afterRevision: 1 }, ended.signal))
    if (taken.push(item) === count) ended.abort();
  return taken;
}

describe('other writers', () => {
  test('are seen by reads and watches', async () => {
    writeElsewhere('/a', '1');
    expect(await textOf('/a')).toBe('1');
    const [first] = await takeChanges(1);
    expect(first).toMatchObject({ revision: 2, changes: [{ type: 'put', key: '/a' }] });
  });

  test('in the middle of a transaction make it lose; it returns all that it met, and what it wrote', async () => {
    const late = await KubernetesStore.open({ api: objects.connect({ reports: 'late' }), keys }, forever);
    await late.commit({ comparisons: [], puts: [put('/a', '1'), put('/b', '1')], deletes: [] }, forever);
    const { records } = await late.list('/', forever);
    writeElsewhere('/b', 'other');
    const comparisons = records.map(({ key, modRevision }) => unchanged(key, modRevision));
    const result = await late.commit({ comparisons, puts: [put('/a', '2'), put('/b', '2')], deletes: [] }, forever);
    if (result.committed) throw new Error('it was committed');
    const met = result.changed.map(({ key, value }) => [key, Buffer.from(value).toString()]);
    expect(met).toEqual([
      ['/a', '2'],
      ['/b', 'other'],
    ]);
    await late.close();
  });

  test('are seen after a refresh, although the watch has reported nothing', async () => {
    const texts = { '/a': '1', '/b': '1', '/c': '1' };
    await change({ puts: Object.entries(texts).map(([key, text]) => put(key, text)) });
    const deaf = await KubernetesStore.open({ api: objects.connect({ reports: 'never' }), keys }, forever);
    writeElsewhere('/a', '2');
    await change({ puts: [put('/d', '1')], deletes: ['/b'] });
    await deaf.refresh(forever);
    const { records, revision } = await deaf.list('/', forever);
    expect(records.map(({ key, value }) => [key, Buffer.from(value).toString()])).toEqual([
      ['/a', '2'],
      ['/c', '1'],
      ['/d', '1'],
    ]);
    await deaf.refresh(forever);
    expect(await deaf.revision(forever)).toBe(revision);
    await deaf.close();
  });

  test('whose object was replaced here cannot delete the new one by a late report', async () => {
    let observer: ObjectObserver | undefined;
    const connection = objects.connect({ reports: 'never' });
    const follow: ObjectApi['follow'] = (each, signal) => connection.follow((observer = each), signal);
    let deleted = '';
    const write: ObjectApi['write'] = (...args) => {
      if (deleted !== '') observer?.deleted('records//a', deleted);
      return connection.write(...args);
    };
    const late = await KubernetesStore.open({ api: { ...connection, follow, write }, keys }, forever);
    const commit = (parts: Partial<Transaction>) =>
      late.commit({ comparisons: [], puts: [], deletes: [], ...parts }, forever);
    await commit({ puts: [put('/a', '1')] });
    await commit({ deletes: ['/a'] });
    deleted = '102';
    await commit({ puts: [put('/a', '2')] });
    expect((await late.list('/', forever)).records).toHaveLength(1);
    await late.close();
  });

  test('cannot bring back an object that was deleted here, by a report from before', async () => {
    const late = await KubernetesStore.open({ api: objects.connect({ reports: 'late' }), keys }, forever);
    for (const text of ['1', '2'])
      await late.commit({ comparisons: [], puts: [put('/a', text)], deletes: [] }, forever);
    await late.commit({ comparisons: [], puts: [], deletes: ['/a'] }, forever);
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect((await late.list('/', forever)).records).toEqual([]);
    await late.commit({ comparisons: [], puts: [put('/a', '3')], deletes: [] }, forever);
    expect((await late.list('/', forever)).records).toHaveLength(1);
    await late.close();
  });
});

test('a list with an older state than it should have reveals a restore', async () => {
  let observer: ObjectObserver | undefined;
  const connection = objects.connect();
  const follow: ObjectApi['follow'] = (each, signal) => connection.follow((observer = each), signal);
  let restoredCount = 0;
  const restored = (): number => restoredCount++;
  const follower = await KubernetesStore.open({ api: { ...connection, follow }, keys, restored }, forever);
  await change({ puts: [put('/a', '1')] });
  const old = objects.get('records//a')!;
  await change({ puts: [put('/a', '2')] });
  observer?.listed('records', old.version, [old]);
  expect(restoredCount).toBe(0);
  observer?.listed('records', '1000', [old]);
  expect(restoredCount).toBe(1);
  await follower.close();
});

test('deletions while the datastore is locked are published when it is unlocked', async () => {
  const lockKeys = new RecordKeys('/calico', { hasLock: true });
  const objectsOfCalico = new MemoryObjects(lockKeys);
  const other = await KubernetesStore.open({ api: objectsOfCalico.connect(), keys: lockKeys }, forever);
  let heldCount = 0;
  const deletedUnderLock = (): void => {
    heldCount++;
  };
  const api = objectsOfCalico.connect();
  const follower = await KubernetesStore.open({ api, keys: lockKeys, deletedUnderLock }, forever);
  const [first, second] = ['a', 'b'].map((name) => lockKeys.of(poolRecord(name, '10.0.0.0/24')));
  const write = (puts: readonly { key: string; value: Buffer }[], deletes: readonly string[] = []) =>
    other.commit({ comparisons: [], puts, deletes }, forever);
  const setReady = (datastoreReady: boolean) =>
    write([put(lockKeys.clusterInformation, JSON.stringify({ metadata: {}, spec: { datastoreReady } }))]);
  const pools = async () => (await follower.list(lockKeys.pools, forever)).records.length;
  await write([put(first!, '{}'), put(second!, '{}')]);
  await setReady(false);
  await write([], [first!, second!]);
  expect([await pools(), heldCount]).toEqual([2, 2]);
  await write([put(first!, '{"new":1}')]);
  await setReady(true);
  await expect.poll(pools).toBe(1);
  await Promise.all([follower.close(), other.close()]);
});

test('a lock that is deleted stays, as Calico is not ready without its object, until the object is there again', async () => {
  const lockKeys = new RecordKeys('/calico', { hasLock: true });
  const objectsOfCalico = new MemoryObjects(lockKeys);
  const [follower, other] = await Promise.all(
    [0, 1].map(() => KubernetesStore.open({ api: objectsOfCalico.connect(), keys: lockKeys }, forever)),
  );
  if (!follower || !other) throw new Error('a store is missing');
  const key = lockKeys.clusterInformation;
  const write = (...puts: { key: string; value: Buffer }[]) =>
    other.commit({ comparisons: [], puts, deletes: [] }, forever);
  const information = (datastoreReady: boolean) => put(key, JSON.stringify({ metadata: {}, spec: { datastoreReady } }));
  const pool = lockKeys.of(poolRecord('a', '10.0.0.0/24'));
  const known = async () => {
    const { records } = await follower.read([key, pool], forever);
    return records.map(({ value }) => Buffer.from(value).toString().slice(-7));
  };
  await write(put(pool, '{}'), information(false));
  await other.commit({ comparisons: [], puts: [], deletes: [pool, key] }, forever);
  expect(await known()).toEqual(['false}}', '{}'].sort());
  await write(information(false));
  expect(await known()).toHaveLength(2);
  await write(information(true));
  await expect.poll(known).toEqual([':true}}']);
  await Promise.all([follower.close(), other.close()]);
});

test('a transaction is seen as a whole, with one revision', async () => {
  const result = await change({ puts: [put('/a', '1'), put('/b', '1')] });
  expect(result).toMatchObject({ committed: true, revision: 2 });
  const [first] = await takeChanges(1);
  expect(first?.changes.map(({ key }) => key)).toEqual(['/a', '/b']);
});

test('an object whose deletion was reported is not brought back by an answer from before it', async () => {
  const connection = objects.connect();
  let answer = (): void => undefined;
  const answered = new Promise<void>((resolve) => (answer = resolve));
  const read: ObjectApi['read'] = async (...args) => {
    const found = await connection.read(...args);
    await answered;
    return found;
  };
  const versions: ObjectApi['versions'] = () => Promise.resolve(new Map([['records//a', '1']]));
  const reading = await KubernetesStore.open({ api: { ...connection, read, versions }, keys }, forever);
  await change({ puts: [put('/a', '1')] });
  const refreshing = reading.refresh(forever);
  await new Promise((resolve) => setImmediate(resolve));
  await change({ deletes: ['/a'] });
  answer();
  await refreshing;
  expect((await reading.list('/', forever)).records).toEqual([]);
  await reading.close();
});

test('an object whose write has an unknown outcome is read again before anything else', async () => {
  const dying = objects.connect();
  const write: ObjectApi['write'] = async (...args) => {
    await dying.write(...args);
    throw new Failure('STORE_UNAVAILABLE', 'the answer was lost');
  };
  const failing = await KubernetesStore.open({ api: { ...dying, write }, keys }, forever);
  const writing = failing.commit({ comparisons: [], puts: [put('/a', '1')], deletes: [] }, forever);
  await expect(writing).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  expect((await failing.read(['/a'], forever)).records).toHaveLength(1);
  await failing.close();
});

test('transactions that share a record wait for each other, and a separate one does not', async () => {
  const order: string[] = [];
  const note = (name: string, parts: Partial<Transaction>) => change(parts).then(() => order.push(name));
  await Promise.all([
    note('a, b', { puts: [put('/a', '1'), put('/b', '1'), put('/c', '1')] }),
    note('b after', { comparisons: [unchanged('/b', 3)], puts: [put('/b', '2')] }),
    note('d', { puts: [put('/d', '1')] }),
  ]);
  expect(order).toEqual(['d', 'a, b', 'b after']);
  expect(await textOf('/b')).toBe('2');
});

describe('handles and endpoints', () => {
  const taken = (...ordinals: readonly number[]): Block =>
    takeOrdinals(block('10.0.0.0/30', 'n1'), ordinals, {
      handleId: 'net.c1',
      owner: { node: 'n1', network: 'net', interface: 'eth0', timestamp: '2026-11-20 10:00:00.5 +0000 UTC' },
      releasedAtMs: undefined,
    });

  const writeBlock = (value: Block) => {
    const record = { kind: 'block', value } as const;
    return change({ puts: [{ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }] });
  };

  const read = async (prefix: string) => {
    const { records } = await store.list(prefix, forever);
    return records.map(({ key, value }) => decodeRecord(key, keys.parse(key)!, value).record);
  };

  test('follow from the blocks of any writer', async () => {
    const pool = poolRecord('p', '10.0.0.0/24');
    await change({ puts: [{ key: keys.of(pool), value: serialize(encodeRecord(pool, undefined)) }] });
    await writeBlock(taken(0, 1));
    expect(await read(keys.handle(''))).toEqual([
      { kind: 'handle', value: { id: 'net.c1', blocks: new Map([['10.0.0.0/30', 2]]) } },
    ]);
    expect(await read(keys.endpoints)).toMatchObject([
      {
        value: {
          attachment: attachment('c1'),
          createTimeMs: Date.parse('2026-11-20T10:00:00Z'),
          addresses: [{ poolName: 'p' }, { poolName: 'p' }],
        },
      },
    ]);
    await writeBlock(block('10.0.0.0/30', 'n1', { claimTimeMs: NOW_MS }));
    expect(await read(keys.handle(''))).toEqual([]);
    expect(await read(keys.endpoints)).toEqual([]);
  });

  test('that do not follow from the blocks are taken back with the next revision', async () => {
    const handle = { kind: 'handle', value: { id: 'net.c2', blocks: new Map([['10.0.0.0/30', 1]]) } } as const;
    const key = keys.of(handle);
    const result = await change({ puts: [{ key, value: serialize(encodeRecord(handle, undefined)) }] });
    expect(result).toMatchObject({ committed: true, revision: 2 });
    const changes = await takeChanges(1);
    expect(changes).toEqual([{ revision: 3, changes: [{ type: 'delete', key }] }]);
  });

  test('are there after a start, without their own objects', async () => {
    await writeBlock(taken(2));
    const next = await KubernetesStore.open({ api: objects.connect(), keys }, forever);
    const { records } = await next.list('/', forever);
    expect(records.map(({ key }) => keys.parse(key)?.kind)).toEqual(['block', 'handle', 'endpoint']);
    await next.close();
  });
});

import { Writable } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import { parseAddress } from '@podwire/shared/net/address';
import { createLogger } from '@podwire/shared/runtime/log';
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import { Events } from '../engine/events.js';
import { HistorySegments } from '../engine/kubernetes/history/history-segments.js';
import { KubernetesStore } from '../engine/kubernetes/kubernetes-store.js';
import type { ObjectApi } from '../engine/kubernetes/object-api.js';
import type { Store } from '../engine/store.js';
import { MemoryObjects } from '../engine/testing/memory-objects.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, instantClock, keys, startReplica } from '../engine/testing/stores.js';
import { HistoryLog } from '../history/history-log.js';
import { HOUR_MS } from '../history/history-operations.js';
import type { TenureSubject } from '../history/tenures.js';
import { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { exported, imported } from '../testing/archives.js';
import { ObjectServer } from '../testing/object-server.js';
import { attachment, host, NOW_MS, prefix, request } from '../testing/records.js';
import { HistoryImport } from '../transfer/history-import.js';
import { byteTarget, ObjectTarget, type ImportTarget } from '../transfer/import-target.js';

/** The history of the Kubernetes store. The memory store, whose transactions write it, is the oracle. */

const SEGMENTS = '/apis/podwire.dev/v1alpha1/historysegments';
const RETENTION_HOURS = 168;
const EVER = { fromMs: 0, untilMs: Number.MAX_SAFE_INTEGER };

let server: ObjectServer;
let api: KubernetesApi;
let cleanups: (() => Promise<unknown>)[];

beforeAll(async () => {
  server = await ObjectServer.start();
  server.groups.set('/apis/podwire.dev/v1alpha1', ['historysegments']);
  api = new KubernetesApi(server.options);
});
afterAll(async () => {
  api.close();
  await server.stop();
});

beforeEach(() => {
  cleanups = [];
});
afterEach(async () => {
  for (const cleanUp of cleanups.toReversed()) await cleanUp();
  removeSegments();
});

function removeSegments(): void {
  for (const { metadata } of server.list(SEGMENTS)) server.delete(`${SEGMENTS}/${String(Object(metadata).name)}`);
}

interface Time {
  nowMs: number;
}

/** podwire-ipam on a store. */
async function startOn<Opened extends Store>(store: Opened, time: Time) {
  const { updater, mirror } = await startReplica(store);
  let uids = 0;
  const destination = new Writable({ write: (_chunk, _encoding, done) => done() });
  const ipam = new Ipam({
    updates: updater,
    events: new Events(createLogger({ service: 'test', level: 'fatal', destination })),
    clock: { ...instantClock, nowMs: () => time.nowMs },
    newUid: () => `uid-${uids++}`,
    history: { log: new HistoryLog(store, keys), retentionHours: RETENTION_HOURS },
    unknownNodes: 'register',
  });
  const end = async (): Promise<void> => {
    await updater.close();
    await mirror.close();
    await store.close();
  };
  return { ipam, end, store };
}

/** podwire-ipam on the Kubernetes store, as one replica. */
async function startProcess(objects: ObjectApi, time: Time) {
  const clock = { ...instantClock, nowMs: () => time.nowMs, sleep: waitForAbort };
  const reports = {
    unavailable: rethrow,
    unreadable: (_: string, failure: Failure) => rethrow(failure),
    writeFailed: rethrow,
  };
  const history = await HistorySegments.open({ api, keys, clock, random: Math.random, reports }, forever);
  if (!history) throw new Error('there are no segments');
  const store = await KubernetesStore.open({ api: objects, keys }, forever);
  store.keepHistory(history);
  const started = await startOn(store, time);
  /** Ends as SIGTERM ends the service. */
  const stop = async (): Promise<void> => {
    await started.end();
    await history.segments.close(forever);
  };
  return { ...started, stop };
}

/** No minute ends in these tests. */
function waitForAbort(_: number, signal: AbortSignal): Promise<'aborted'> {
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve('aborted')));
}

function rethrow(error: unknown): never {
  throw error;
}

async function createPool(ipam: Ipam, name: string, cidr: string, blockSizeBits = 0): Promise<void> {
  const checked = checkPool({ name, cidr, blockSizeBits, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await ipam.pools.create(checked.spec, forever);
}

async function tenuresOf(ipam: Ipam, subject: TenureSubject) {
  const { tenures, next } = await ipam.history.query({ subject, span: EVER, limit: 1000, after: undefined }, forever);
  expect(next).toBeUndefined();
  return tenures;
}

async function changesIn(ipam: Ipam): Promise<readonly string[]> {
  const query = { span: EVER, selects: () => true, limit: 1000, after: undefined };
  const { changes } = await ipam.history.changes(query, forever);
  return changes.map(({ kind, name, action }) => `${kind} ${name} ${action}`);
}

const releasesOf = async (ipam: Ipam, id: string) =>
  (await tenuresOf(ipam, { kind: 'handle', handleId: `net.${id}` })).map(({ releasedAtMs }) => releasedAtMs);

describe('tenures', () => {
  const id = fc.constantFrom('c1', 'c2', 'c3', 'c4');
  const step = fc.record({
    type: fc.constantFrom('allocate', 'allocate', 'release', 'handle', 'abandon', 'stop'),
    id,
    node: fc.constantFrom('n1', 'n2'),
    gapMs: fc.integer({ min: 1, max: HOUR_MS }),
  });
  type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;

  const ADDRESSES = Array.from({ length: 8 }, (_, ordinal) => {
    const address = parseAddress(`10.0.0.${ordinal}`);
    if (!address) throw new Error('the address is at fault');
    return address;
  });

  const SUBJECTS: readonly TenureSubject[] = [
    ...ADDRESSES.map((address) => ({ kind: 'address', address }) as const),
    ...['c1', 'c2', 'c3', 'c4'].flatMap((each): TenureSubject[] => [
      { kind: 'handle', handleId: `net.${each}` },
      { kind: 'pod', pod: { namespace: 'default', name: `pod-${each}` } },
    ]),
  ];

  /** All answers about the time since a moment. */
  async function answersOf(ipam: Ipam, time: Time, sinceMs = NOW_MS) {
    const answers = [];
    for (const subject of SUBJECTS) {
      const tenures = await tenuresOf(ipam, subject);
      answers.push(tenures.filter(({ releasedAtMs = Infinity }) => releasedAtMs >= sinceMs));
    }
    for (const address of ADDRESSES)
      for (let atMs = sinceMs; atMs <= time.nowMs; atMs += HOUR_MS)
        answers.push(await ipam.history.at(address, atMs, forever));
    return answers;
  }

  async function carryOut(ipam: Ipam, { type, id: each, node }: Step): Promise<string> {
    try {
      if (type === 'allocate') await ipam.addresses.allocate(request(each, { nodeName: node }), forever);
      else if (type === 'release') await ipam.addresses.release(attachment(each), forever);
      else if (type === 'handle')
        await ipam.handles.release({ handleId: `net.${each}`, searchesAllBlocks: false }, forever);
      else if (type === 'abandon') {
        const scope = { kind: 'owner', owner: host(node) } as const;
        await ipam.affinities.release({ scope, mustBeEmpty: false }, forever);
      }
      return 'done';
    } catch (error) {
      if (error instanceof Failure) return error.code;
      throw error;
    }
  }

  test('property: are equal to the tenures of the memory store, also after restarts', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 14 }), async (steps) => {
        removeSegments();
        const time = { nowMs: NOW_MS };
        const objects = new MemoryObjects(keys);
        const oracle = await startOn(new MemoryStore(), time);
        let replica = await startProcess(objects.connect(), time);
        for (const { ipam } of [oracle, replica]) await createPool(ipam, 'p', '10.0.0.0/29', 30);
        for (const each of steps) {
          time.nowMs += each.gapMs;
          if (each.type === 'stop') {
            await replica.stop();
            replica = await startProcess(objects.connect(), time);
          }
          expect(await carryOut(replica.ipam, each)).toBe(await carryOut(oracle.ipam, each));
        }
        expect(await answersOf(replica.ipam, time)).toEqual(await answersOf(oracle.ipam, time));
        await replica.stop();
        replica = await startProcess(objects.connect(), time);
        expect(await answersOf(replica.ipam, time)).toEqual(await answersOf(oracle.ipam, time));
        await replica.stop();
        await oracle.end();
      }),
      { numRuns: 60, verbose: fc.VerbosityLevel.Verbose },
    );
  });

  /** Moves all records by a file. */
  async function moveInto(store: Store, source: Store, target: ImportTarget = byteTarget('/calico')): Promise<void> {
    await imported(store, await exported(source), { target, maxOperationsCount: 100, maxTransactionBytes: 100_000 });
  }

  test('property: of the retention time are the same after a move to Kubernetes, and after the way back', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { maxLength: 20 }),
        fc.integer({ min: 0, max: 12 }),
        async (steps, retentionHours) => {
          removeSegments();
          const time = { nowMs: NOW_MS };
          const embedded = await startOn(new MemoryStore(), time);
          await createPool(embedded.ipam, 'p', '10.0.0.0/29', 30);
          for (const each of steps) {
            time.nowMs += each.gapMs;
            await carryOut(embedded.ipam, each);
          }
          const sinceMs = Math.max(NOW_MS, time.nowMs - retentionHours * HOUR_MS);
          const expected = await answersOf(embedded.ipam, time, sinceMs);
          const replica = await startProcess(new MemoryObjects(keys).connect(), time);
          const { history } = replica.store;
          if (!history) throw new Error('there is no history');
          const destination = { isKept: true, import: history.import.bind(history) };
          const options = { keys, destination, retentionHours, nowMs: time.nowMs };
          await moveInto(replica.store, embedded.store, new ObjectTarget(keys, new HistoryImport(options)));
          if (retentionHours > 0) expect(await answersOf(replica.ipam, time, sinceMs)).toEqual(expected);
          const begins = await beginOf(replica.store);
          const back = await startOn(new MemoryStore(), time);
          await moveInto(back.store, replica.store);
          if (retentionHours > 0) expect(await answersOf(back.ipam, time, sinceMs)).toEqual(expected);
          expect(await beginOf(back.store)).toBe(begins);
          for (const { end } of [embedded, replica, back]) await end();
        },
      ),
      { numRuns: 60, verbose: fc.VerbosityLevel.Verbose },
    );
  });
});

/** When the complete history of a store begins. */
const beginOf = (store: Store): Promise<number> => new HistoryLog(store, keys).keptFromMs(forever);

/** A connection whose writes of blocks get no answer while `areLost`, and are executed or not. */
function losingAnswers(objects: MemoryObjects, moment: 'before' | 'after') {
  const connection = objects.connect();
  const answers = { areLost: false };
  const api: ObjectApi = {
    ...connection,
    write: async (content, base, signal) => {
      const isLost = answers.areLost && /[/](assignment|ippools)[/]/.test(content.id);
      const outcome = isLost && moment === 'before' ? undefined : await connection.write(content, base, signal);
      if (isLost || !outcome) throw new Failure('STORE_UNAVAILABLE', 'the answer was lost');
      return outcome;
    },
  };
  return { api, answers };
}

describe('an entry', () => {
  const allocateDual = async (ipam: Ipam): Promise<void> => {
    await createPool(ipam, 'four', '10.0.0.0/26');
    await createPool(ipam, 'six', 'fd00::/122');
    await ipam.addresses.allocate(request('c1', { families: [4, 6] }), forever);
  };

  const blockOf = (objects: MemoryObjects, family: 4 | 6) => {
    const cidr = family === 4 ? '10.0.0.0/26' : 'fd00::/122';
    const found = objects.get(`records/${keys.block(prefix(cidr))}`);
    if (!found) throw new Error(`there is no block ${cidr}`);
    return found;
  };

  test('of a block that was written before another writer made the transaction lose is kept, once', async () => {
    const time = { nowMs: NOW_MS };
    const objects = new MemoryObjects(keys);
    const connection = objects.connect({ reports: 'late' });
    let isDisturbed = false;
    const disturbed: ObjectApi = {
      ...connection,
      write: async (content, base, signal) => {
        const outcome = await connection.write(content, base, signal);
        // The same content: only its version is another one.
        if (isDisturbed) objects.write(blockOf(objects, 6), blockOf(objects, 6));
        isDisturbed = false;
        return outcome;
      },
    };
    const replica = await startProcess(disturbed, time);
    await allocateDual(replica.ipam);
    time.nowMs += 1000;
    isDisturbed = true;
    await replica.ipam.addresses.release(attachment('c1'), forever);
    expect(await releasesOf(replica.ipam, 'c1')).toEqual([NOW_MS + 1000, NOW_MS + 1000]);
    await replica.stop();
    const next = await startProcess(objects.connect(), time);
    expect(await releasesOf(next.ipam, 'c1')).toEqual([NOW_MS + 1000, NOW_MS + 1000]);
    await next.stop();
  });

  test.each(['before', 'after'] as const)(
    'of a release whose answer is lost %s its execution is kept once, when it has happened',
    async (moment) => {
      const time = { nowMs: NOW_MS };
      const objects = new MemoryObjects(keys);
      const { api, answers } = losingAnswers(objects, moment);
      const replica = await startProcess(api, time);
      await allocateDual(replica.ipam);
      answers.areLost = true;
      time.nowMs += 1000;
      const release = () => replica.ipam.addresses.release(attachment('c1'), forever);
      await expect(release()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
      answers.areLost = false;
      time.nowMs += 1000;
      await release();
      const [first, second] = [NOW_MS + 1000, NOW_MS + 2000];
      const expected = moment === 'after' ? [second, first] : [second, second];
      expect(await releasesOf(replica.ipam, 'c1')).toEqual(expected);
      await replica.stop();
      const next = await startProcess(objects.connect(), time);
      expect(await releasesOf(next.ipam, 'c1')).toEqual(expected);
      await next.stop();
    },
  );

  test('of a release whose answer is lost is kept when the process ends before it repeats the release', async () => {
    const time = { nowMs: NOW_MS };
    const objects = new MemoryObjects(keys);
    const { api, answers } = losingAnswers(objects, 'after');
    const replica = await startProcess(api, time);
    await createPool(replica.ipam, 'four', '10.0.0.0/26');
    await replica.ipam.addresses.allocate(request('c1'), forever);
    answers.areLost = true;
    const releasing = replica.ipam.addresses.release(attachment('c1'), forever);
    await expect(releasing).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    await replica.stop();
    const next = await startProcess(objects.connect(), time);
    expect(await releasesOf(next.ipam, 'c1')).toEqual([NOW_MS]);
    await next.stop();
  });

  test('of the last minute is lost when the process is killed, and nothing else', async () => {
    const time = { nowMs: NOW_MS };
    const objects = new MemoryObjects(keys);
    const first = await startProcess(objects.connect(), time);
    await allocateDual(first.ipam);
    await first.ipam.addresses.release(attachment('c1'), forever);
    await first.stop();
    const killed = await startProcess(objects.connect(), time);
    await killed.ipam.addresses.allocate(request('c2'), forever);
    await killed.ipam.addresses.release(attachment('c2'), forever);
    expect(await releasesOf(killed.ipam, 'c2')).toHaveLength(1);
    await killed.end();
    const next = await startProcess(objects.connect(), time);
    expect(await releasesOf(next.ipam, 'c2')).toEqual([]);
    expect(await releasesOf(next.ipam, 'c1')).toHaveLength(2);
    await next.stop();
  });

  test.each(['before', 'after'] as const)(
    'of a changed object whose answer is lost %s its execution is kept once, when it has happened',
    async (moment) => {
      const time = { nowMs: NOW_MS };
      const objects = new MemoryObjects(keys);
      const { api, answers } = losingAnswers(objects, moment);
      const replica = await startProcess(api, time);
      await createPool(replica.ipam, 'p', '10.0.0.0/26');
      answers.areLost = true;
      const disable = () => replica.ipam.pools.update({ name: 'p', resourceVersion: '', disabled: true }, forever);
      await expect(disable()).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
      answers.areLost = false;
      await disable();
      const expected = ['ippool p created', 'ippool p changed'];
      expect(await changesIn(replica.ipam)).toEqual(expected);
      await replica.stop();
      const next = await startProcess(objects.connect(), time);
      expect(await changesIn(next.ipam)).toEqual(expected);
      await next.stop();
    },
  );

  test('of several objects names only the written ones when another writer makes the transaction lose', async () => {
    const time = { nowMs: NOW_MS };
    const objects = new MemoryObjects(keys);
    const connection = objects.connect({ reports: 'late' });
    let isDisturbed = false;
    const disturbed: ObjectApi = {
      ...connection,
      write: async (content, base, signal) => {
        const outcome = await connection.write(content, base, signal);
        const pool = objects.get(`records/${keys.pool('p')}`);
        if (isDisturbed && pool) objects.write(pool, pool);
        isDisturbed = false;
        return outcome;
      },
    };
    const { ipam, stop } = await startProcess(disturbed, time);
    await createPool(ipam, 'p', '10.0.0.0/24');
    isDisturbed = true;
    await ipam.pools.split({ pool: { by: 'name', name: 'p' }, partsCount: 2, resourceVersion: '' }, forever);
    const changed = await changesIn(ipam);
    expect(changed.toSorted()).toEqual(
      ['ippool p created', 'ippool p deleted', 'ippool split-p-0 created', 'ippool split-p-1 created'].toSorted(),
    );
    await stop();
  });

  test('without its block in the transaction is kept to the byte, as of an import', async () => {
    const time = { nowMs: NOW_MS };
    const objects = new MemoryObjects(keys);
    const puts = ['{"address":"10.0.0.1"}', '[\n]', '=', ''].map((text, index) => ({
      key: `${keys.history}00020687/10.0.0.1/${index}`,
      value: Buffer.from(text),
    }));
    const importing = await startProcess(objects.connect(), time);
    await importing.store.commit({ comparisons: [], puts, deletes: [] }, forever);
    await importing.stop();
    const { store, stop } = await startProcess(objects.connect(), time);
    const { records } = await store.list(keys.history, forever);
    expect(records.map(({ key, value }) => ({ key, value: Buffer.from(value) }))).toEqual(puts);
    await stop();
  });

  test('that an operator exports from this store is in the archive', async () => {
    const time = { nowMs: NOW_MS };
    const objects = new MemoryObjects(keys);
    const replica = await startProcess(objects.connect(), time);
    await allocateDual(replica.ipam);
    await replica.ipam.addresses.release(attachment('c1'), forever);
    await replica.stop();
    const next = await startProcess(objects.connect(), time);
    expect(String(await exported(next.store)).split(`${keys.history}00020687/10.`)).toHaveLength(2);
    expect(String(await exported(next.store)).split(keys.changesOf(0))).toHaveLength(4);
    await next.stop();
  });
});

test('old entries are no longer in the history, which begins after them', async () => {
  const time = { nowMs: NOW_MS };
  const objects = new MemoryObjects(keys);
  for (const id of ['c1', 'c2', 'c3']) {
    const { ipam, stop } = await startProcess(objects.connect(), time);
    if (id === 'c1') await createPool(ipam, 'p', '10.0.0.0/26');
    await ipam.addresses.allocate(request(id), forever);
    time.nowMs += HOUR_MS;
    await ipam.addresses.release(attachment(id), forever);
    await stop();
  }
  const { ipam, store, stop } = await startProcess(objects.connect(), time);
  time.nowMs += HOUR_MS;
  // Two releases, and the creations of the pool and of the node.
  expect(await store.history?.removeOld(2 * HOUR_MS - 1, forever)).toBe(4);
  expect(await Promise.all(['c1', 'c2', 'c3'].map((id) => releasesOf(ipam, id)))).toEqual([
    [],
    [],
    [NOW_MS + 3 * HOUR_MS],
  ]);
  const [address] = (await tenuresOf(ipam, { kind: 'handle', handleId: 'net.c3' })).map((tenure) => tenure.address);
  if (!address) throw new Error('it has no tenure');
  const isCovered = async (atMs: number): Promise<boolean> => (await ipam.history.at(address, atMs, forever)).isCovered;
  expect([await isCovered(NOW_MS + 2 * HOUR_MS - 1), await isCovered(NOW_MS + 2 * HOUR_MS)]).toEqual([false, true]);
  await stop();
});

import { createHash } from 'node:crypto';

import { Failure } from '@podwire/shared/failure/failure';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import { ApiObjects } from '../engine/kubernetes/api-objects.js';
import { HistorySegments } from '../engine/kubernetes/history/history-segments.js';
import { KubernetesStore } from '../engine/kubernetes/kubernetes-store.js';
import { ObjectForms } from '../engine/kubernetes/object-forms.js';
import { DerivedRecords } from '../engine/kubernetes/derived-records.js';
import type { Store } from '../engine/store.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { takeOrdinals } from '../records/block.js';
import type { HistoryEntry, ObjectChange } from '../records/history.js';
import { decodeHistoryEntry, encodeChanges, encodeHistoryEntry } from '../records/json/history.js';
import { RecordKeys } from '../records/json/keys.js';
import { decodeRecord, encodeRecord, serialize } from '../records/json/registry.js';
import type { RecordValue } from '../records/view.js';
import { NAMESPACE } from '../testing/api-server.js';
import { exported, fill, forever, imported } from '../testing/archives.js';
import { ObjectServer } from '../testing/object-server.js';
import { affinity, block, NOW_MS, node, pool, prefix, session } from '../testing/records.js';
import { HistoryImport, type HistoryDestination } from './history-import.js';
import { ObjectTarget } from './import-target.js';
import { requireCompleteImport } from './scope.js';

/** Imports into the objects of Kubernetes, and the way back. */

const keys = new RecordKeys('/calico', { hasLock: true });
const V3 = '/apis/projectcalico.org/v3';
const SEGMENTS = '/apis/podwire.dev/v1alpha1/historysegments';

interface TargetOptions {
  readonly isKept?: boolean;
  readonly retentionHours?: number;
}

/** Options of an import into a store, at a time at which one of the entries is too old. */
function into(store: KubernetesStore, { isKept = true, retentionHours = 24 }: TargetOptions = {}) {
  const destination: HistoryDestination = {
    isKept,
    import: (history, signal) => {
      if (!store.history) throw new Error('the store has no history');
      return store.history.import(history, signal);
    },
  };
  return { target: new ObjectTarget(keys, new HistoryImport({ keys, destination, retentionHours, nowMs: NOW_MS })) };
}

const BLOCK = takeOrdinals({ ...block('10.65.0.0/26', 'n1'), sequenceNumber: 1_795_862_400_123_456_789n }, [1, 2], {
  handleId: 'net.c1',
  owner: {
    node: 'n1',
    network: 'net',
    interface: 'eth0',
    namespace: 'shop',
    pod: 'cart',
    timestamp: '2026-11-20 10:00:00.5 +0000 UTC',
  },
  releasedAtMs: undefined,
});
const NETNS = { bootId: '7c7cd3b0-5d1e-4c3a-9d5b-111111111111', inode: 4026532000n };

const RECORDS: readonly RecordValue[] = [
  { kind: 'block', value: BLOCK },
  { kind: 'affinity', value: affinity('10.65.0.0/26', 'n1') },
  { kind: 'pool', value: { ...pool('web', '10.65.0.0/16', { vxlanMode: 'Always' }), labels: { team: 'x' } } },
  { kind: 'pool', value: pool('leaving', '10.66.0.0/16', { deletionTimeMs: NOW_MS }) },
  { kind: 'reservation', value: { name: 'r', uid: 'u', createTimeMs: NOW_MS, prefixes: [prefix('10.65.9.0/24')] } },
  { kind: 'node', value: node('n1', { ipv4: { address: prefix('192.0.2.1/32'), subnetBits: 24 } }) },
  { kind: 'node', value: node('gone') },
  { kind: 'nodeSession', value: session('n1') },
  { kind: 'storeEpoch', value: { id: 'e1', importId: '', phase: 'first' } },
];

const HOUR_MS = 3_600_000;

/** Six entries, one every five hours, of which two are a segment. */
const ENTRIES = Array.from({ length: 6 }, (_, index): HistoryEntry => ({
  address: prefix(`10.65.0.${index}/32`),
  block: prefix('10.65.0.0/26'),
  handleId: `net.past${index}`,
  owner: { node: 'n1', filler: createHash('shake256', { outputLength: 120_000 }).update(`${index}`).digest('base64') },
  allocatedAtMs: NOW_MS - 30 * HOUR_MS,
  releasedAtMs: NOW_MS - (index + 0.5) * 5 * HOUR_MS,
  sequenceNumber: BigInt(index),
}));

/** Without the Node that Kubernetes does not have, and the entry that is too old. */
const WRITTEN_COUNT = RECORDS.length - 1 + ENTRIES.length - 1 + 1;

const CHANGE: ObjectChange = {
  ...{ atMs: NOW_MS - HOUR_MS, author: 'operator "ann"', kind: 'node', name: 'n1', action: 'deleted', fields: [] },
};

/** Records of an embedded datastore: also handles, endpoints, the history, and another kind. */
function archive(): Map<string, Buffer> {
  const derived = new DerivedRecords({ keys, pools: () => [pool('web', '10.65.0.0/16')] });
  const attachment = 'net/c1/eth0';
  derived.load([
    { cidr: '10.65.0.0/26', block: BLOCK, details: new Map([[attachment, { podUid: 'uid-1', netns: NETNS }]]) },
  ]);
  const files = RECORDS.map((record) => [keys.of(record), serialize(encodeRecord(record, undefined))] as const);
  const followed = [...derived.keys()].map((key) => [key, Buffer.from(derived.value(key) ?? [])] as const);
  return new Map([
    ...files,
    ...followed,
    ...ENTRIES.map((entry) => [keys.historyEntry(entry), serialize(encodeHistoryEntry(entry))] as const),
    [keys.changes(CHANGE.atMs, '000-0'), serialize(encodeChanges([CHANGE]))],
    [`${keys.history}00020687/10.65.0.1/unreadable`, Buffer.from('{"address":"10.65.0.1"}')],
    [keys.historyBegin(0), Buffer.from('{}')],
    [
      '/calico/resources/v3/projectcalico.org/felixconfigurations/default',
      Buffer.from('{"kind":"FelixConfiguration"}'),
    ],
    [keys.handle('orphan'), Buffer.from('{"handleID":"orphan","block":{}}')],
  ]);
}

async function archiveFile(): Promise<Buffer> {
  const store = new MemoryStore();
  await fill(store, archive());
  return exported(store);
}

let server: ObjectServer;
let cleanups: (() => unknown)[] = [];
async function restartServer(): Promise<void> {
  await cleanUp();
  const started = await ObjectServer.start();
  cleanups = [() => started.stop()];
  started.put('/api/v1/nodes', { metadata: { name: 'n1', labels: { zone: 'a' } } });
  server = started;
}

async function cleanUp(): Promise<void> {
  for (const each of cleanups.splice(0).toReversed()) await each();
}

beforeEach(restartServer);
afterEach(cleanUp);

async function openStore(): Promise<KubernetesStore> {
  const api = new KubernetesApi(server.options);
  const forms = new ObjectForms({ keys, group: 'projectcalico.org/v3', namespace: NAMESPACE, ownConditions: 'hidden' });
  const objects = new ApiObjects({
    api,
    forms,
    clock: systemClock,
    random: () => 0,
    report: () => undefined,
    authorizeWrite: () => undefined,
  });
  const store = await KubernetesStore.open({ api: objects, keys }, forever);
  cleanups.push(() => store.close());
  const fail = (error: unknown): never => {
    throw error;
  };
  const reports = { unavailable: fail, unreadable: (_: string, error: unknown) => fail(error), writeFailed: fail };
  const clock = { ...systemClock, nowMs: () => NOW_MS };
  const history = await HistorySegments.open({ api, keys, clock, random: () => 0, reports }, forever);
  if (!history) fail(new Error('there are no segments'));
  else store.keepHistory(history);
  return store;
}

/** The entries of an export, newest first, and the time at which they begin. */
async function historyIn(
  store: Store,
): Promise<{ readonly handleIds: readonly (string | undefined)[]; readonly beginMs: number }> {
  const [entries, begins] = await Promise.all(
    [keys.history, keys.historyBegins].map(async (root) => (await store.list(root, forever)).records),
  );
  const decoded = (entries ?? []).flatMap(({ value }) => decodeHistoryEntry(value) ?? []);
  return {
    handleIds: decoded.sort((a, b) => b.releasedAtMs - a.releasedAtMs).map(({ handleId }) => handleId),
    beginMs: Math.max(0, ...(begins ?? []).map(({ key }) => keys.historyBeginMs(key) ?? 0)),
  };
}

const segmentsCount = (): number => server.list(SEGMENTS).length;

/** Decoded records of an export by key, without the fields that the API server sets. */
function valuesIn(file: Buffer): Map<string, object> {
  const lines = file.toString().trim().split('\n').slice(1, -1);
  return new Map(
    lines.flatMap((line): [string, object][] => {
      const { key, value } = JSON.parse(line);
      const name = keys.parse(key);
      if (!name) return [];
      const { record } = decodeRecord(key, name, Buffer.from(value));
      const served = { uid: '', createTimeMs: 0, ...(record.kind === 'pool' ? { deletionTimeMs: 0 } : {}) };
      const isServed = record.kind === 'pool' || record.kind === 'reservation' || record.kind === 'node';
      return [[key, isServed ? { ...record.value, ...served } : record.value]];
    }),
  );
}

test('an archive goes to Kubernetes and comes back, but for what Kubernetes has no place for', async () => {
  const file = await archiveFile();
  const opened = await openStore();
  const result = await imported(opened, file, into(opened));
  expect([...result.leftOut].map(([reason, left]) => [reason, left.map((key) => key.split('/').at(-1))])).toEqual([
    ['of handles and endpoints without addresses', ['orphan']],
    ['of kinds that this store does not have', ['default']],
    ['of nodes that Kubernetes does not have', ['gone']],
  ]);
  expect([...result.leftOutEntries]).toEqual([
    ['released more than 24 h ago', 1],
    ['unreadable', 1],
  ]);
  expect(segmentsCount()).toBe(3);
  const store = await openStore();
  const back = valuesIn(await exported(store));
  const sent = valuesIn(file);
  for (const key of [keys.handle('orphan'), keys.node('gone')]) sent.delete(key);
  const labelled = Object(back.get(keys.node('n1')));
  expect(labelled.labels).toMatchObject({ zone: 'a' });
  back.set(keys.node('n1'), { ...labelled, labels: Object(sent.get(keys.node('n1'))).labels });
  expect(back).toEqual(sent);
  expect(Object(server.get(`${V3}/ippools/leaving`)?.metadata).deletionTimestamp).toBeDefined();
  // Back into a datastore of any kind.
  const memory = new MemoryStore();
  await imported(memory, await exported(store));
  expect(valuesIn(await exported(memory)).get(keys.pool('web'))).toEqual(sent.get(keys.pool('web')));
  const handleIds = ENTRIES.slice(0, -1).map(({ handleId }) => handleId);
  const kept = { handleIds, beginMs: NOW_MS - 27.5 * HOUR_MS + 1 };
  expect([await historyIn(opened), await historyIn(store), await historyIn(memory)]).toEqual([kept, kept, kept]);
  const { records } = await memory.read([keys.changes(CHANGE.atMs, '000-0')], forever);
  expect(records.map(({ value }) => Buffer.from(value))).toEqual([serialize(encodeChanges([CHANGE]))]);
});

test.each([
  ['without its definition', { isKept: false }, 'the API server has no historysegments.podwire.dev'],
  ['that keeps no history', { retentionHours: 0 }, 'released more than 0 h ago'],
])('a cluster %s gets none of the history', async (_, options, reason) => {
  const store = await openStore();
  const { leftOutEntries } = await imported(store, await archiveFile(), into(store, options));
  expect(leftOutEntries.get(reason)).toBeGreaterThanOrEqual(ENTRIES.length);
  expect((await historyIn(store)).handleIds).toEqual([]);
});

test('a second import changes nothing, and another file is refused', async () => {
  const file = await archiveFile();
  const store = await openStore();
  const first = await imported(store, file, into(store));
  await expect(imported(store, file, into(store))).rejects.toMatchObject({ code: 'IMPORT_REFUSED' });
  expect(await imported(store, file, { ...into(store), merge: true })).toMatchObject({ written: 0 });
  expect(first.written).toBe(WRITTEN_COUNT);
  expect(segmentsCount()).toBe(3);
});

test('a dry run writes nothing', async () => {
  server.requests.length = 0;
  const store = await openStore();
  const result = await imported(store, await archiveFile(), { ...into(store), dryRun: true });
  expect(result.written).toBe(WRITTEN_COUNT);
  expect(result.leftOutEntries.get('released more than 24 h ago')).toBe(1);
  expect(server.requests).toEqual([]);
});

test('a cluster with a pool is refused, and one that podwire-ipam only began to serve is not', async () => {
  server.put(`${V3}/clusterinformations`, { metadata: { name: 'default' }, spec: { datastoreReady: true } });
  const begun = await openStore();
  await imported(begun, await archiveFile(), into(begun));
  await restartServer();
  server.put(`${V3}/ippools`, { metadata: { name: 'own' }, spec: { cidr: '10.9.0.0/16' } });
  const used = await openStore();
  await expect(imported(used, await archiveFile(), into(used))).rejects.toMatchObject({
    message: expect.stringContaining('ippools/own'),
  });
});

test('a record that cannot be read is refused before anything is written', async () => {
  const store = new MemoryStore();
  await fill(store, new Map([...archive(), [keys.pool('broken'), Buffer.from('{')]]));
  server.requests.length = 0;
  const empty = await openStore();
  await expect(imported(empty, await exported(store), into(empty))).rejects.toMatchObject({
    code: 'STORE_CORRUPT',
  });
  expect(server.requests).toEqual([]);
});

test('an import that dies after any request is completed by the next one', { timeout: 120_000 }, async () => {
  const file = await archiveFile();
  const options = (opened: KubernetesStore, rest = {}) => ({ ...into(opened), maxOperationsCount: 3, ...rest });
  server.requests.length = 0;
  const store = await openStore();
  await imported(store, file, options(store));
  const whole = valuesIn(await exported(store));
  const history = await historyIn(store);
  const requestsCount = server.requests.length;
  expect(requestsCount).toBeGreaterThan(15);
  for (let count = 1; count < requestsCount; count++) {
    await restartServer();
    const killed = new AbortController();
    server.carriedOut = () => server.requests.length === count && killed.abort(new Failure('CANCELLED', 'killed'));
    const mortal = await openStore();
    const dying = imported(mortal, file, options(mortal, { signal: killed.signal }));
    await expect(dying).rejects.toMatchObject({ code: 'CANCELLED' });
    server.carriedOut = () => undefined;
    const next = await openStore();
    await expect(requireCompleteImport(next, '/calico', forever)).rejects.toMatchObject({ code: 'IMPORT_INCOMPLETE' });
    await imported(next, file, options(next));
    expect(valuesIn(await exported(next))).toEqual(whole);
    expect(await historyIn(next)).toEqual(history);
    const counts = server.list(SEGMENTS).map(({ spec }) => Number(Object(spec).entries));
    expect(counts.reduce((sum, each) => sum + each)).toBe(history.handleIds.length + 1);
    expect(counts).toHaveLength(3);
  }
});

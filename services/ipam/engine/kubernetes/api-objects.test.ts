import { setTimeout as sleep } from 'node:timers/promises';

import { Failure } from '@podwire/shared/failure/failure';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { KubernetesApi } from '../../api-server/api.js';
import { takeOrdinals } from '../../records/block.js';
import { RecordKeys } from '../../records/json/keys.js';
import { encodeRecord, serialize } from '../../records/json/registry.js';
import type { RecordValue, View } from '../../records/view.js';
import { NAMESPACE } from '../../testing/api-server.js';
import { ObjectServer, type RequestFault } from '../../testing/object-server.js';
import { affinity, block, nodeRecord, poolRecord, prefix, session } from '../../testing/records.js';
import type { CommitResult } from '../store.js';
import { inconsistencies, readAll } from '../testing/consistency.js';
import { forever } from '../testing/stores.js';
import { ApiObjects, discoverGroup } from './api-objects.js';
import { KubernetesStore } from './kubernetes-store.js';
import { ObjectForms } from './object-forms.js';

const keys = new RecordKeys('/calico', { hasLock: true });
const V3 = '/apis/projectcalico.org/v3';
const NODES = '/api/v1/nodes';

let server: ObjectServer;
let store: KubernetesStore;

beforeAll(async () => {
  server = await ObjectServer.start();
});
afterAll(() => server.stop());

beforeEach(async () => {
  for (const name of ['n1', 'n2']) server.put(NODES, { metadata: { name } });
  store = await open();
  server.requests.length = 0;
});
afterEach(() => store.close());

async function open(authorizeWrite = (): void => undefined): Promise<KubernetesStore> {
  const api = new KubernetesApi(server.options);
  const forms = new ObjectForms({ keys, group: 'projectcalico.org/v3', namespace: NAMESPACE, ownConditions: 'marked' });
  const options = { api, forms, clock: systemClock, random: () => 0, report: () => undefined, authorizeWrite };
  const objects = new ApiObjects(options);
  return KubernetesStore.open({ api: objects, keys }, forever);
}

const put = (record: RecordValue) => ({ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) });

const write = (...records: readonly RecordValue[]) =>
  store.commit({ comparisons: [], puts: records.map(put), deletes: [] }, forever);

const remove = (...records: readonly RecordValue[]) =>
  store.commit({ comparisons: [], puts: [], deletes: records.map((record) => keys.of(record)) }, forever);

const blockRecord = (cidr: string, ordinal = 1): RecordValue => ({
  kind: 'block',
  value: takeOrdinals({ ...block(cidr, 'n1'), sequenceNumber: 1_795_862_400_123_456_789n }, [ordinal], {
    handleId: 'net.c1',
    owner: { node: 'n1', network: 'net', interface: 'eth0', timestamp: '2026-11-20 10:00:00.5 +0000 UTC' },
    releasedAtMs: undefined,
  }),
});

/** The allocated ordinals of a block. */
const ordinalsOf = (view: View, cidr: string): number[] =>
  view.block(prefix(cidr))?.allocations.flatMap((index, ordinal) => (index === null ? [] : [ordinal])) ?? [];

const affinityRecord = (cidr: string): RecordValue => ({ kind: 'affinity', value: affinity(cidr, 'n1', 'confirmed') });

test('a block keeps its numbers beyond 2^53 to the digit', async () => {
  await write(blockRecord('10.0.0.0/26'), affinityRecord('10.0.0.0/26'));
  const spec = Object(server.get(`${V3}/ipamblocks/10-0-0-0-26`)).spec;
  expect([spec.sequenceNumber, spec.sequenceNumberForAllocation]).toEqual([
    1_795_862_400_123_456_790n,
    { '1': 1_795_862_400_123_456_789n },
  ]);
  expect(server.requests).toEqual([`POST ${V3}/ipamblocks`, `POST ${V3}/blockaffinities`]);
  await write(blockRecord('10.0.0.0/26'));
  const next = await open();
  const [record] = (await readAll(next, keys)).blocks();
  expect(record?.sequenceNumber).toBe(1_795_862_400_123_456_790n);
  await next.close();
  await remove(blockRecord('10.0.0.0/26'), affinityRecord('10.0.0.0/26'));
  expect(server.get(`${V3}/ipamblocks/10-0-0-0-26`)).toBeUndefined();
  expect(server.requests.slice(-3)).toEqual([
    `PUT ${V3}/blockaffinities/n1-10-0-0-0-26`,
    `DELETE ${V3}/ipamblocks/10-0-0-0-26`,
    `DELETE ${V3}/blockaffinities/n1-10-0-0-0-26`,
  ]);
});

describe.each<RequestFault>(['cut before', 'cut after', 429, 500])('a request that is %s', (fault) => {
  test.each(['POST', 'PUT', 'DELETE'])('%s has its effect once, and the caller learns it', async (method) => {
    const cidr = '10.0.1.0/26';
    if (method === 'POST') server.injectFault('POST', fault);
    expect(await write(blockRecord(cidr))).toMatchObject({ committed: true });
    if (method === 'PUT') server.injectFault('PUT', fault);
    expect(await write(blockRecord(cidr))).toMatchObject({ committed: true });
    if (method === 'DELETE') server.injectFault('DELETE', fault);
    expect(await remove(blockRecord(cidr))).toMatchObject({ committed: true });
    expect(server.get(`${V3}/ipamblocks/10-0-1-0-26`)).toBeUndefined();
    expect((await store.list(keys.root, forever)).records.some(({ key }) => key.includes('10.0.1.0'))).toBe(false);
  });
});

describe('a write of the former leader that is in flight when its lease expires', () => {
  const cidr = '10.0.3.0/26';
  const lost = new Failure('STORE_UNAVAILABLE', 'another podwire-ipam leads');
  let holdsLease: boolean;
  let former: KubernetesStore;
  let late: Promise<CommitResult>;
  let inFlight: { readonly release: () => void };

  const commit = (writer: KubernetesStore, ...records: readonly RecordValue[]) =>
    writer.commit({ comparisons: [], puts: records.map(put), deletes: [] }, forever);

  beforeEach(async () => {
    holdsLease = true;
    former = await open(() => {
      if (!holdsLease) throw lost;
    });
    await commit(former, blockRecord(cidr, 1));
    const held = server.hold('PUT');
    late = commit(former, blockRecord(cidr, 2), affinityRecord(cidr));
    late.catch(() => undefined);
    await held.arrived;
    inFlight = held;
    holdsLease = false;
    await store.refresh(forever);
  });
  afterEach(async () => {
    await former.close();
    await remove(blockRecord(cidr));
  });

  test('is refused if the next leader has written the block', async () => {
    expect(await commit(store, blockRecord(cidr, 3))).toMatchObject({ committed: true });
    inFlight.release();
    expect(await late).toMatchObject({ committed: false });
    await expect(commit(former, blockRecord(cidr, 2))).rejects.toBe(lost);
    expect(ordinalsOf(await readAll(store, keys), cidr)).toEqual([3]);
  });

  test('makes the next leader’s write of the block lose, and its further writes are not sent', async () => {
    server.isSilent = true;
    inFlight.release();
    await expect(late).rejects.toBe(lost);
    server.isSilent = false;
    expect(await commit(store, blockRecord(cidr, 3))).toMatchObject({ committed: false });
    expect(ordinalsOf(await readAll(store, keys), cidr)).toEqual([2]);
    expect(server.list(`${V3}/blockaffinities`)).toEqual([]);
  });
});

test('an object that Calico marked as deleted is deleted, and its name can be used again', async () => {
  const cidr = '10.0.2.0/26';
  server.put(`${V3}/ipamblocks`, { metadata: { name: '10-0-2-0-26' }, spec: { cidr, deleted: true } });
  await expect.poll(async () => (await write(blockRecord(cidr))).committed).toBe(true);
  expect(Object(server.get(`${V3}/ipamblocks/10-0-2-0-26`)).spec.deleted).toBe(false);
  await remove(blockRecord(cidr));
});

test('a block whose CIDR kubectl has changed is neither read nor deleted, and a write of it is refused', async () => {
  const cidr = '10.0.8.0/26';
  await write(blockRecord(cidr));
  const path = `${V3}/ipamblocks/10-0-8-0-26`;
  const before = server.get(path)!;
  server.put(`${V3}/ipamblocks`, { ...before, spec: { ...Object(before.spec), cidr: '10.0.9.0/26' } });
  await expect.poll(async () => ordinalsOf(await readAll(store, keys), cidr)).toEqual([]);
  await expect(write(blockRecord(cidr))).rejects.toThrow('kubectl edit ipamblocks 10-0-8-0-26');
  expect(ordinalsOf(await readAll(store, keys), '10.0.9.0/26')).toEqual([]);
  server.put(`${V3}/ipamblocks`, before);
  await expect.poll(async () => ordinalsOf(await readAll(store, keys), cidr)).toEqual([1]);
  await remove(blockRecord(cidr));
});

test('a pool that kubectl deletes drains, and goes with podwire-ipam’s finalizer', async () => {
  const pool = poolRecord('drained', '10.9.0.0/24');
  await write(pool);
  const path = `${V3}/ippools/drained`;
  expect(Object(server.get(path)).metadata.finalizers).toEqual(['podwire.dev/ippool']);
  server.delete(path);
  await expect
    .poll(async () => (await readAll(store, keys)).pool('drained')?.deletionTimeMs)
    .toBe(Date.parse('2026-11-20T11:00:00Z'));
  await remove(pool);
  expect(server.get(path)).toBeUndefined();
  await sleep(20);
  expect((await readAll(store, keys)).pool('drained')).toBeUndefined();
});

test('a node’s record is annotations of Kubernetes’ Node, of which nothing else changes', async () => {
  server.put(NODES, { metadata: { name: 'n1', labels: { zone: 'a' }, annotations: { other: 'kept' } } });
  await expect.poll(async () => (await readAll(store, keys)).node('n1')?.labels).toEqual({ zone: 'a' });
  const node = nodeRecord('n1', { ipv4: { address: block('192.0.2.7/32', 'n1').prefix, subnetBits: 24 } });
  await write(node);
  expect(Object(server.get(`${NODES}/n1`)).metadata).toMatchObject({
    labels: { zone: 'a' },
    annotations: { other: 'kept', 'projectcalico.org/IPv4Address': '192.0.2.7/24' },
  });
  await expect.poll(async () => (await readAll(store, keys)).node('n1')?.ipv4?.subnetBits).toBe(24);
  await remove(node);
  expect(Object(server.get(`${NODES}/n1`)).metadata.annotations).toEqual({ other: 'kept' });
});

test('a node that Kubernetes does not have is refused', async () => {
  await expect(write(nodeRecord('n9'))).rejects.toMatchObject({ code: 'NODE_NOT_FOUND' });
});

test('all kinds of records are there after a start', async () => {
  const records: readonly RecordValue[] = [
    poolRecord('p', '10.5.0.0/24', { blockSizeBits: 26 }),
    blockRecord('10.5.0.0/26'),
    affinityRecord('10.5.0.0/26'),
    { kind: 'nodeSession', value: session('n1') },
    { kind: 'storeEpoch', value: { id: 'e1', importId: '', phase: 'first' } },
  ];
  await write(...records);
  const next = await open();
  const view = await readAll(next, keys);
  expect(inconsistencies(view, Date.now())).toEqual([]);
  expect([view.session('n1')?.name, view.epoch()?.id, view.pool('p')?.name]).toEqual(['n1', 'e1', 'p']);
  expect(view.endpoints()).toHaveLength(1);
  await next.close();
});

const V1_GROUP = 'crd.projectcalico.org/v1';
const V3_GROUP = 'projectcalico.org/v3';

test.each([
  { served: [V1_GROUP, V3_GROUP], phase: undefined, group: V1_GROUP },
  { served: [V1_GROUP, V3_GROUP], phase: 'Migrating', group: V1_GROUP },
  { served: [V1_GROUP, V3_GROUP], phase: 'Converged', group: V3_GROUP },
  { served: [V1_GROUP, V3_GROUP], phase: 'Complete', group: V3_GROUP },
  { served: [V3_GROUP], phase: undefined, group: V3_GROUP },
  { served: [], phase: undefined, group: undefined },
])('of the groups $served with a migration $phase, $group is used', async ({ served, phase, group }) => {
  server.groups.clear();
  for (const name of served) server.groups.set(`/apis/${name}`, ['ippools', 'ipamblocks']);
  if (phase !== undefined) server.putMigration(phase);
  const api = new KubernetesApi(server.options);
  expect(await discoverGroup(api, forever)).toBe(group);
  api.close();
});

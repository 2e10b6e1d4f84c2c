import { once } from 'node:events';
import { connect, createServer } from 'node:net';

import { GetAddressHistoryRequest, HistoryServiceService } from '@podwire/proto/podwire/ipam/v1/history';
import { WatchKind, WatchRequest, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import type { Failure } from '@podwire/shared/failure/failure';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { systemClock, type Clock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import { forever } from '../engine/testing/stores.js';
import { RecordKeys } from '../records/json/keys.js';
import type { RunningService } from '../service.js';
import { NAMESPACE } from '../testing/api-server.js';
import { ObjectServer } from '../testing/object-server.js';
import { Caller, clientLimits, failureOf, Place } from '../testing/service.js';
import { KubernetesDatastore } from './kubernetes-datastore.js';

/** podwire-ipam on Calico's custom resources, as one of several. */

const V3 = '/apis/projectcalico.org/v3';
const SEGMENTS = '/apis/podwire.dev/v1alpha1/historysegments';
const LEASES = `/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases`;
const PODS = `/api/v1/namespaces/${NAMESPACE}/pods`;
const SERVING = 1;
const NOT_SERVING = 2;
const PATIENCE = { timeout: 30_000 };

const ignore = (): void => undefined;

let server: ObjectServer;
let cleanups: (() => unknown)[];

beforeEach(async () => {
  server = await ObjectServer.start();
  cleanups = [() => server.stop()];
  server.groups.set(V3, ['ippools', 'ipamblocks']);
  server.put('/api/v1/nodes', { metadata: { name: 'node-1' } });
});

afterEach(async () => {
  for (const cleanUp of cleanups.toReversed()) await cleanUp();
});

interface Replica {
  readonly place: Place;
  readonly caller: Caller;
  /** Resolves when it leads. */
  readonly started: Promise<RunningService>;
}

function start(podName = '', rest: Readonly<Record<string, string>> = {}): Replica {
  const place = new Place();
  const { port, ...settings } = rest;
  const network = port === undefined ? {} : { PODWIRE_IPAM_LISTEN: `${place.address},127.0.0.1:${port}` };
  const plaintext = { PODWIRE_IPAM_PLAINTEXT_LOOPBACK: 'true' };
  const names = { PODWIRE_IPAM_STORE: 'kubernetes', PODWIRE_IPAM_POD_NAME: podName };
  const env = { ...names, ...settings, ...network, ...(port === undefined ? {} : plaintext) };
  const started = place.start(env, undefined, () => new KubernetesApi(server.options));
  started.catch(() => undefined);
  const caller = new Caller(place.address);
  cleanups.push(
    () => place.remove(),
    () => started.then((service) => service.stop(), ignore),
    () => caller.close(),
  );
  return { place, caller, started };
}

/** A port that no process listens on. */
async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const address = probe.address();
  probe.close();
  await once(probe, 'close');
  if (address === null || typeof address === 'string') throw new Error('no port');
  return address.port;
}

async function isOpen(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1');
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}

/** Pods with the label by which the Service finds podwire-ipam. */
const labelled = () =>
  server.list(PODS).flatMap(({ metadata }) => {
    const { name, labels } = Object(metadata);
    return labels['podwire.dev/leader'] === 'true' && labels.app === 'ipam' ? [name] : [];
  });

/** Handles that had addresses of a container, with whether each is released. */
async function historyOf({ peer }: Caller, id: string): Promise<(readonly [string, boolean])[]> {
  const request = {
    ...GetAddressHistoryRequest.fromPartial({}),
    subject: { $case: 'handleId', value: `net.${id}` } as const,
  };
  const { tenures } = await peer.call(HistoryServiceService.getAddressHistory, request, clientLimits());
  return tenures.map(({ handleId, releaseTime }) => [handleId, releaseTime !== undefined]);
}

/** Makes a call whose changes no watch reports. */
async function watchless<Result>(call: () => Promise<Result>): Promise<Result> {
  server.isSilent = true;
  try {
    return await call();
  } finally {
    server.isSilent = false;
  }
}

const specOf = (path: string) => Object(server.get(path)?.spec);

test('pools, blocks and affinities are Calico’s objects, and stay when podwire-ipam starts again', async () => {
  const first = start();
  const service = await first.started;
  const address = await first.caller.allocateAddress('c1');
  expect(specOf(`${V3}/ippools/default`).cidr).toBe('10.65.0.0/24');
  const [block] = server.list(`${V3}/ipamblocks`);
  expect(Object(block?.spec)).toMatchObject({
    affinity: 'host:node-1',
    attributes: [{ handle_id: 'net.c1', secondary: { node: 'node-1', interface: 'eth0' } }],
  });
  expect(server.list(`${V3}/blockaffinities`).map(({ spec }) => Object(spec).state)).toEqual(['confirmed']);
  await service.stop();
  const next = start();
  await next.started;
  expect(await next.caller.allocateAddress('c1')).toBe(address);
  expect((await next.caller.getEndpoint('c1')).endpoint?.addresses[0]?.address).toBe(address);
  await next.caller.release('c1');
  expect(server.list(`${V3}/ipamblocks`).map(({ spec }) => Object(spec).attributes)).toEqual([[]]);
});

test('past allocations stay when podwire-ipam starts again', async () => {
  const first = start();
  const service = await first.started;
  for (const id of ['c1', 'c2']) await first.caller.allocate(id);
  await first.caller.release('c1');
  expect(await historyOf(first.caller, 'c1')).toEqual([['net.c1', true]]);
  expect(server.list(SEGMENTS)).toEqual([]);
  await service.stop();
  expect(server.list(SEGMENTS).map(({ spec }) => Object(spec).entries)).toEqual([1]);
  const next = start();
  await next.started;
  expect(await historyOf(next.caller, 'c1')).toEqual([['net.c1', true]]);
  expect(await historyOf(next.caller, 'c2')).toEqual([['net.c2', false]]);
});

test('without the definition of its segments there is no history, and the command is logged', async () => {
  server.undefinedCollections.add(SEGMENTS);
  const { place, caller, started } = start();
  await started;
  expect(place.log).toContain('helm upgrade --install podwire-crds');
  await caller.allocate('c1');
  await caller.release('c1');
  await expect(historyOf(caller, 'c1')).rejects.toMatchObject({ code: 'HISTORY_NOT_KEPT' });
});

test('of two, the second one serves as soon as the first one ends', async () => {
  for (const name of ['ipam-1', 'ipam-2']) server.put(PODS, { metadata: { name, labels: { app: 'ipam' } } });
  // Its node is lost.
  server.put(PODS, { metadata: { name: 'ipam-0', labels: { app: 'ipam', 'podwire.dev/leader': 'true' } } });
  const first = start('ipam-1');
  const service = await first.started;
  const second = start('ipam-2');
  await expect.poll(() => second.caller.health(), PATIENCE).toBe(NOT_SERVING);
  const address = await first.caller.allocateAddress('c1');
  expect(await first.caller.health()).toBe(SERVING);
  expect(labelled()).toEqual(['ipam-1']);
  await service.stop();
  await second.started;
  expect(labelled()).toEqual(['ipam-2']);
  expect(await second.caller.health()).toBe(SERVING);
  expect(await second.caller.allocateAddress('c1')).toBe(address);
});

test('a waiting one follows all objects, and shows the former leader’s last write when it leads', async () => {
  const first = start();
  const service = await first.started;
  const second = start();
  await expect.poll(() => second.caller.health(), PATIENCE).toBe(NOT_SERVING);
  const [known, unseen] = [
    await first.caller.allocateAddress('c1'),
    await watchless(() => first.caller.allocateAddress('c2')),
  ];
  await service.stop();
  await second.started;
  const found = await Promise.all(['c1', 'c2'].map((id) => second.caller.getEndpoint(id)));
  expect(found.map(({ endpoint }) => endpoint?.addresses[0]?.address)).toEqual([known, unseen]);
});

test('one whose lease another process took refuses everything', async () => {
  const gauges = new ReadMetrics('podwire.ipam.');
  const { caller, started } = start();
  const service = await started;
  expect(await gauges.read()).toEqual(
    expect.arrayContaining(['leader 1', expect.stringMatching(/^kubernetes.watch.age 0\./)]),
  );
  await caller.allocate('c0');
  await caller.release('c0');
  const lease = server.get(`${LEASES}/podwire-ipam`);
  server.put(LEASES, { ...lease, spec: { holderIdentity: 'other' } });
  await expect.poll(() => caller.health(), PATIENCE).toBe(NOT_SERVING);
  await expect(caller.allocate('c1')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  expect(server.list(`${V3}/ipamblocks`).map(({ spec }) => Object(spec).attributes)).toEqual([[]]);
  expect(await gauges.read()).toContain('leader 0');
  await service.stop();
  expect(server.list(SEGMENTS)).toHaveLength(1);
});

function setReady(group: string, datastoreReady: boolean): void {
  const [information] = server.list(`${group}/clusterinformations`);
  server.put(`${group}/clusterinformations`, {
    ...information,
    metadata: { name: 'default' },
    spec: { ...Object(information?.spec), datastoreReady },
  });
}

test('a migration to the other group: locked, copied, the former definitions deleted, and used from there', async () => {
  const V1 = '/apis/crd.projectcalico.org/v1';
  server.groups.set(V1, ['ippools', 'ipamblocks']);
  const first = start();
  const service = await first.started;
  const address = await first.caller.allocateAddress('c1');
  const messages = first.caller.peer.stream(
    WatchServiceService.watch,
    WatchRequest.fromPartial({ kinds: [WatchKind.WATCH_KIND_ROUTES] }),
    new AbortController().signal,
  );
  let isLocked: boolean | undefined;
  const watching = (async () => {
    for await (const { datastoreLocked } of messages) isLocked = datastoreLocked;
  })();
  watching.catch(() => undefined);
  setReady(V1, false);
  await expect.poll(() => failureOf(first.caller.allocate('c2')), PATIENCE).toMatchObject({ code: 'STORE_LOCKED' });
  await expect.poll(() => isLocked, PATIENCE).toBe(true);
  for (const plural of ['ippools', 'ipamblocks', 'blockaffinities', 'clusterinformations'])
    for (const { metadata, spec } of server.list(`${V1}/${plural}`))
      server.put(`${V3}/${plural}`, { metadata: { name: Object(metadata).name }, spec: spec ?? {} });
  setReady(V3, true);
  server.removeGroup(V1);
  await expect.poll(() => first.caller.health(), PATIENCE).toBe(NOT_SERVING);
  expect(first.place.log).toContain('have moved from crd.projectcalico.org/v1 to projectcalico.org/v3');
  // Nodes keep their routes and the lock until another podwire-ipam has read the new blocks.
  expect([(await first.caller.allBlocks()).length, isLocked]).toEqual([1, true]);
  await expect(watching).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  await service.stop();
  const next = start();
  await next.started;
  expect(await next.caller.allocateAddress('c1')).toBe(address);
  expect(await next.caller.allocateAddress('c2')).not.toBe(address);
});

test('after a migration, the former definition of pools can be deleted', async () => {
  const pools = '/apis/crd.projectcalico.org/v1/ippools';
  const finalizers = ['podwire.dev/ippool', 'example.org/other'];
  server.put(pools, { metadata: { name: 'p', finalizers, deletionTimestamp: '2026-11-30T00:00:00Z' }, spec: {} });
  await start().started;
  expect(Object(server.get(`${pools}/p`)?.metadata).finalizers).toEqual(['example.org/other']);
});

test('without Calico’s definitions it waits, and says what to install', async () => {
  server.groups.clear();
  const { place, started } = start();
  await expect.poll(() => place.log, PATIENCE).toContain('helm install podwire-crds');
  server.groups.set(V3, ['ippools', 'ipamblocks']);
  await started;
});

test('the leader corrects handles, unless it is to write none', async () => {
  const handles = `${V3}/ipamhandles`;
  const own = { name: 'net.gone', annotations: { 'podwire.dev/handle': 'written' } };
  server.put(handles, { metadata: own, spec: { handleID: 'net.gone', block: { '10.65.0.0/26': 1 } } });
  const first = await start('', { PODWIRE_IPAM_KUBERNETES_HANDLES: 'none' }).started;
  await first.stop();
  expect(server.list(handles)).toHaveLength(1);
  await start().started;
  await expect.poll(() => server.list(handles), PATIENCE).toEqual([]);
});

const conditionOf = (name: string) => Object(Object(server.get(`${V3}/ippools/${name}`)?.status).conditions?.[0]);
const kubectl = (name: string, spec: object) => server.put(`${V3}/ippools`, { metadata: { name }, spec: { ...spec } });

test('pools that kubectl creates serve, with the refusals of podwirectl, and drain when kubectl deletes them', async () => {
  kubectl('default', { cidr: '10.70.0.0/24' });
  const { caller, started } = start();
  await started;
  kubectl('overlapping', { cidr: '10.70.0.0/26' });
  kubectl('broken', { cidr: '10.71.0.1/24' });
  await expect.poll(() => conditionOf('overlapping').reason, PATIENCE).toBe('CIDROverlap');
  expect(conditionOf('overlapping').message).toContain('overlaps pool "default" 10.70.0.0/24');
  await expect.poll(() => conditionOf('broken').reason, PATIENCE).toBe('Unreadable');
  expect((await caller.getPool('overlapping')).pool?.stateReason).toContain('overlaps pool "default"');
  await expect(caller.allocate('c1', { pools: ['overlapping'] })).rejects.toMatchObject({ code: 'NO_POOL_SERVES' });
  expect(await caller.allocateAddress('c1')).toMatch(/^10\.70\.0\./);
  server.delete(`${V3}/ippools/default`);
  await expect.poll(() => conditionOf('default').reason, PATIENCE).toBe('Terminating');
  await caller.release('c1');
  expect(server.get(`${V3}/ippools/default`)).toBeUndefined();
  await expect.poll(() => conditionOf('overlapping').reason, PATIENCE).toBe('OK');
  const finalizers = () => Object(server.get(`${V3}/ippools/overlapping`)?.metadata).finalizers;
  await expect.poll(finalizers, PATIENCE).toEqual(['podwire.dev/ippool']);
  expect(specOf(`${V3}/ippools/overlapping`)).toEqual({ cidr: '10.70.0.0/26' });
  server.delete(`${V3}/ippools/overlapping`);
  await expect.poll(() => server.get(`${V3}/ippools/overlapping`), PATIENCE).toBeUndefined();
});

test('pools get their conditions and finalizers after a lock', async () => {
  const { caller, started } = start();
  await started;
  await expect.poll(() => conditionOf('default').reason, PATIENCE).toBe('OK');
  setReady(V3, false);
  await expect.poll(() => failureOf(caller.allocate('c1')), PATIENCE).toMatchObject({ code: 'STORE_LOCKED' });
  kubectl('coming', { cidr: '10.72.0.0/24' });
  await expect.poll(() => caller.getPool('coming').then(() => 'known', ignore), PATIENCE).toBe('known');
  await new Promise((resolve) => setTimeout(resolve, 500));
  expect(Object(server.get(`${V3}/ippools/coming`))).not.toHaveProperty('status');
  expect(Object(server.get(`${V3}/ippools/coming`)?.metadata)).not.toHaveProperty('finalizers');
  setReady(V3, true);
  await expect.poll(() => conditionOf('coming').reason, PATIENCE).toBe('OK');
  expect(Object(server.get(`${V3}/ippools/coming`)?.metadata).finalizers).toEqual(['podwire.dev/ippool']);
});

test('one that waits leaves the conditions of pools to the leader', async () => {
  const first = start();
  await first.started;
  const second = start();
  await expect.poll(() => second.caller.health(), PATIENCE).toBe(NOT_SERVING);
  await expect.poll(() => conditionOf('default').reason, PATIENCE).toBe('OK');
  server.put(LEASES, { metadata: { name: 'podwire-ipam' }, spec: { holderIdentity: 'other' } });
  await expect.poll(() => first.caller.health(), PATIENCE).toBe(NOT_SERVING);
  kubectl('late', { cidr: '10.72.0.0/24' });
  await new Promise((resolve) => setTimeout(resolve, 1000));
  expect(Object(server.get(`${V3}/ippools/late`))).not.toHaveProperty('status');
});

function setImportMark(state: 'running' | 'complete'): void {
  const maps = `/api/v1/namespaces/${NAMESPACE}/configmaps`;
  const map = server.get(`${maps}/podwire-datastore`);
  const mark = JSON.stringify({ state, uid: 'import-1', sha256: 'a', records: 1 });
  server.put(maps, { ...map, data: { ...Object(map?.data), _podwire_calico_import: mark } });
}

test('one that waited while an import was interrupted does not serve', async () => {
  const first = start();
  const service = await first.started;
  const second = start();
  await expect.poll(() => second.caller.health(), PATIENCE).toBe(NOT_SERVING);
  setImportMark('running');
  await service.stop();
  await expect(second.started).rejects.toMatchObject({ code: 'IMPORT_INCOMPLETE' });
});

test('one that waited during a whole import reads the datastore again, and leads once', async () => {
  const first = start();
  const service = await first.started;
  const second = start();
  await expect.poll(() => second.caller.health(), PATIENCE).toBe(NOT_SERVING);
  setImportMark('complete');
  await service.stop();
  await second.started;
  expect(second.place.log).toContain('was imported while podwire-ipam waited');
  expect(await second.caller.health()).toBe(SERVING);
});

interface OpenOptions {
  readonly startsWriters?: () => void;
  readonly lost?: (failure: Failure) => void;
}

function open(
  identity: string | undefined,
  { startsWriters = ignore, lost = ignore }: OpenOptions = {},
): Promise<KubernetesDatastore> {
  const api = new KubernetesApi(server.options);
  const startWriters = () => {
    startsWriters();
    return [];
  };
  const history = { unavailable: ignore, unreadable: ignore, writeFailed: ignore };
  const keys = new RecordKeys('/calico', { hasLock: true });
  const clock: Clock = { ...systemClock, sleep: (ms, signal) => systemClock.sleep(Math.min(ms, 100), signal) };
  const rest = { clock, random: Math.random, podName: '', report: ignore, leaderObserved: ignore, lost };
  return KubernetesDatastore.open({ api, keys, identity, history, startWriters, ...rest }, forever);
}

test('an export reads one moment while the leader writes', async () => {
  for (const name of ['a', 'b']) kubectl(name, { cidr: '10.73.0.0/24' });
  const datastore = await open(undefined);
  await datastore.lead(forever);
  const revision = await datastore.store.revision(forever);
  kubectl('c', { cidr: '10.73.0.0/24' });
  await new Promise((resolve) => setTimeout(resolve, 200));
  const { records } = await datastore.store.scan(
    { prefix: '/calico/', after: undefined, limit: 100, revision },
    forever,
  );
  expect(records.filter(({ key }) => key.includes('ippools'))).toHaveLength(2);
  await datastore.close();
});

test('the election repeated after a failure starts one writer', async () => {
  let count = 0;
  const datastore = await open('a', { startsWriters: () => count++ });
  await datastore.lead(forever);
  await datastore.lead(forever);
  await datastore.close();
  expect(count).toBe(1);
});

test('a migration that has copied all objects ends a process of the former group, whose definitions are kept', async () => {
  server.groups.set('/apis/crd.projectcalico.org/v1', ['ippools', 'ipamblocks']);
  const failures: Failure[] = [];
  const datastore = await open('a', { lost: (failure) => failures.push(failure) });
  server.putMigration('Migrating');
  await datastore.lead(forever);
  expect(failures).toEqual([]);
  server.putMigration('Converged');
  await expect.poll(() => failures[0]?.message, PATIENCE).toContain('have moved from crd.projectcalico.org/v1');
  await datastore.close();
});

test('a process that waits to lead has no port, so that a node looks for the leader', async () => {
  const first = start();
  const leader = await first.started;
  const port = await freePort();
  const second = start('', { port: String(port) });
  await expect.poll(() => second.caller.health(), PATIENCE).toBe(NOT_SERVING);
  expect(await isOpen(port)).toBe(false);
  await leader.stop();
  await second.started;
  expect(await isOpen(port)).toBe(true);
});

import { afterEach, beforeEach, expect, test } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import type { RunningService } from '../service.js';
import { NAMESPACE } from '../testing/api-server.js';
import { ObjectServer } from '../testing/object-server.js';
import { Caller, Place } from '../testing/service.js';

/** podwire-ipam on Calico's custom resources, as one of several. */

const V3 = '/apis/projectcalico.org/v3';
const LEASES = `/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases`;
const PODS = `/api/v1/namespaces/${NAMESPACE}/pods`;
const SERVING = 1;
const NOT_SERVING = 2;
const PATIENCE = { timeout: 30_000 };

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

function start(podName = ''): Replica {
  const place = new Place();
  const env = { PODWIRE_IPAM_STORE: 'kubernetes', PODWIRE_IPAM_POD_NAME: podName };
  const started = place.start(env, undefined, () => new KubernetesApi(server.options));
  started.catch(() => undefined);
  const caller = new Caller(place.address);
  cleanups.push(
    () => place.remove(),
    () => started.then((service) => service.stop()),
    () => caller.close(),
  );
  return { place, caller, started };
}

/** Pods with the label by which the Service finds podwire-ipam. */
const labelled = () =>
  server.list(PODS).flatMap(({ metadata }) => {
    const { name, labels } = Object(metadata);
    return labels['podwire.dev/leader'] === 'true' && labels.app === 'ipam' ? [name] : [];
  });

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

test('one whose lease another process took refuses everything', async () => {
  const { caller, started } = start();
  await started;
  const lease = server.get(`${LEASES}/podwire-ipam`);
  server.put(LEASES, { ...lease, spec: { holderIdentity: 'other' } });
  await expect.poll(() => caller.health(), PATIENCE).toBe(NOT_SERVING);
  await expect(caller.allocate('c1')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  expect(server.list(`${V3}/ipamblocks`)).toEqual([]);
});

test('without Calico’s definitions it waits, and says what to install', async () => {
  server.groups.clear();
  const { place, started } = start();
  await expect.poll(() => place.log, PATIENCE).toContain('helm install podwire-crds');
  server.groups.set(V3, ['ippools', 'ipamblocks']);
  await started;
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

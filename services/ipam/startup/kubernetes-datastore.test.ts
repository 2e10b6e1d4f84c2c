import { GetAddressHistoryRequest, HistoryServiceService } from '@podwire/proto/podwire/ipam/v1/history';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import type { RunningService } from '../service.js';
import { NAMESPACE } from '../testing/api-server.js';
import { ObjectServer } from '../testing/object-server.js';
import { Caller, clientLimits, Place } from '../testing/service.js';

/** podwire-ipam on Calico's custom resources, as one of several. */

const V3 = '/apis/projectcalico.org/v3';
const SEGMENTS = '/apis/podwire.dev/v1alpha1/historysegments';
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

/** Handles that had addresses of a container, with whether each is released. */
async function historyOf({ peer }: Caller, id: string): Promise<(readonly [string, boolean])[]> {
  const request = {
    ...GetAddressHistoryRequest.fromPartial({}),
    subject: { $case: 'handleId', value: `net.${id}` } as const,
  };
  const { tenures } = await peer.call(HistoryServiceService.getAddressHistory, request, clientLimits());
  return tenures.map(({ handleId, releaseTime }) => [handleId, releaseTime !== undefined]);
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

test('one whose lease another process took refuses everything', async () => {
  const { caller, started } = start();
  const service = await started;
  await caller.allocate('c0');
  await caller.release('c0');
  const lease = server.get(`${LEASES}/podwire-ipam`);
  server.put(LEASES, { ...lease, spec: { holderIdentity: 'other' } });
  await expect.poll(() => caller.health(), PATIENCE).toBe(NOT_SERVING);
  await expect(caller.allocate('c1')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  expect(server.list(`${V3}/ipamblocks`).map(({ spec }) => Object(spec).attributes)).toEqual([[]]);
  await service.stop();
  expect(server.list(SEGMENTS)).toHaveLength(1);
});

test('without Calico’s definitions it waits, and says what to install', async () => {
  server.groups.clear();
  const { place, started } = start();
  await expect.poll(() => place.log, PATIENCE).toContain('helm install podwire-crds');
  server.groups.set(V3, ['ippools', 'ipamblocks']);
  await started;
});

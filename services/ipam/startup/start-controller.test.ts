import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import { STARTUP_TAINT } from '../node-controller/readiness.js';
import type { RunningService } from '../service.js';
import { FakeApiServer, nodeObject, nodePod, NODES, OWN_PODS, podObject, podsOf } from '../testing/api-server.js';
import { Caller, failureOf, Place } from '../testing/service.js';

/** podwire-ipam with its node controller, in front of an API server. */

const WAIT = { timeout: 60_000, interval: 20 };
const UID = '0a1b2c3d-0000-4000-8000-00000000000f';
const ENV = {
  PODWIRE_IPAM_NODE_CONTROLLER: 'true',
  PODWIRE_IPAM_NODE_GRACE_SECONDS: '1',
  PODWIRE_IPAM_NETWORK_POLICIES: 'false',
};
const PODS = podsOf('default');

let server: FakeApiServer;
let place: Place;
let caller: Caller;
let service: RunningService | undefined;

beforeEach(async () => {
  server = await FakeApiServer.start();
  place = new Place();
  caller = new Caller(place.address);
});

afterEach(async () => {
  caller.close();
  await service?.stop();
  service = undefined;
  place.remove();
  await server.stop();
});

async function start(env: Readonly<Record<string, string>> = {}): Promise<void> {
  service = await place.start({ ...ENV, ...env }, undefined, () => new KubernetesApi(server.options));
}

/** A node with a pod that has an address; the pool's blocks are of 4 addresses. */
async function join(nodeName: string): Promise<void> {
  server.put(NODES, nodeObject(nodeName));
  server.put(OWN_PODS, nodePod(nodeName));
  server.put(PODS, podObject('default', `on-${nodeName}`));
  await caller.allocate(`c-${nodeName}`, { nodeName, pod: { namespace: 'default', name: `on-${nodeName}`, uid: UID } });
}

const owners = async (): Promise<string[]> =>
  [...new Set((await caller.allBlocks()).map(({ nodeName }) => nodeName))].sort();
const until = (check: () => unknown): Promise<unknown> =>
  vi.waitFor(async () => expect(await check()).toBe(true), WAIT);
const messages = (): string[] => place.log.split('\n').flatMap((line) => (line === '' ? [] : [JSON.parse(line).msg]));
const logged = (text: string): number => messages().filter((line) => line.includes(text)).length;

describe('the node controller', () => {
  test('releases what a deleted Node and a deleted pod held', async () => {
    await start({ PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '30' });
    for (const name of ['n1', 'n2', 'n3']) await join(name);
    await until(async () => (await owners()).join() === 'n1,n2,n3');
    // The nodes are recorded as nodes of this cluster.
    await until(() => server.requests.filter((line) => line.includes('kube-system')).length > 3);
    server.delete(NODES, 'n1');
    server.delete(PODS, 'on-n2');
    await until(async () => (await owners()).join() === 'n2,n3');
    await until(() => logged('pod default/on-n2 was deleted from Kubernetes: released 10.65.0.') === 1);
    await expect(caller.getEndpoint('c-n3')).resolves.toMatchObject({ endpoint: { nodeName: 'n3' } });
    expect((await failureOf(caller.getEndpoint('c-n2'))).code).toBe('ENDPOINT_NOT_FOUND');
    await until(() => logged('deleted node n1 and released 1 address and 1 block') === 1);
  });

  test('is beside one Event for a pod that is refused again and again, and none for a malformed request', async () => {
    await start();
    const pod = { namespace: 'default', name: 'web-0', uid: UID };
    const events = () => server.requests.filter((line) => line.includes('/events'));
    for (let count = 0; count < 3; count++)
      expect((await failureOf(caller.allocate(`c${count}`, { pod, pools: ['none'] }))).code).toBe('INVALID_REQUEST');
    expect((await failureOf(caller.allocate('c9', { pod, nodeName: '-' }))).code).toBe('INVALID_REQUEST');
    await until(() => events().length === 1);
    expect(events()).toEqual(['POST /apis/events.k8s.io/v1/namespaces/default/events']);
  });

  test('shows in a Node that its network works, once it does', async () => {
    const taints = [
      { key: STARTUP_TAINT, effect: 'NoSchedule' },
      { key: 'other', effect: 'NoSchedule' },
    ];
    server.put(NODES, nodeObject('n1', { spec: { taints }, status: { conditions: [] } }));
    server.put(NODES, nodeObject('n2', { status: { conditions: [{ type: 'NetworkUnavailable', status: 'True' }] } }));
    await start();
    const conditions = (name: string) =>
      Object.fromEntries(
        (server.object(NODES, name)?.status?.conditions ?? []).map(({ type, status }) => [type, status]),
      );
    await until(() => server.watchersCount === 2);
    server.put(OWN_PODS, nodePod('n1'));
    server.put(OWN_PODS, nodePod('n2', false));
    await until(() => server.requests.some((line) => line.includes('kube-system')));
    expect(conditions('n1')).toEqual({});
    server.put(NODES, nodeObject('n1', { spec: { taints } }));
    await until(() => conditions('n1').NetworkUnavailable === 'False');
    await until(() => server.object(NODES, 'n1')?.spec?.taints?.length === 1);
    expect(server.object(NODES, 'n1')).toMatchObject({
      spec: { taints: [{ key: 'other' }] },
      status: {
        conditions: [
          { type: 'Ready', status: 'True' },
          { type: 'NetworkUnavailable', reason: 'PodwireIsUp' },
        ],
      },
    });
    expect(conditions('n2')).toEqual({ NetworkUnavailable: 'True' });
    await until(() => logged('node n1: set the condition NetworkUnavailable to False') === 1);
    const patches = server.requests.filter((line) => line.startsWith('PATCH'));
    expect(patches.every((line) => line.includes('/n1'))).toBe(true);
  });

  test('shows it also if it became so while the API server was unreachable', async () => {
    server.put(NODES, nodeObject('n1'));
    await start();
    await until(() => server.watchersCount === 2);
    server.refusal = 503;
    server.disconnect();
    server.put(OWN_PODS, nodePod('n1'));
    await until(() => logged('the node controller cannot watch') === 1);
    server.refusal = undefined;
    await until(() => logged('node n1: set the condition NetworkUnavailable to False') === 1);
  });

  test('serves allocations while the API server is down, and logs the outage once', async () => {
    server.refusal = 503;
    await start();
    await caller.allocate('c1', { nodeName: 'n1' });
    await until(() => server.requests.length >= 4);
    expect(await caller.health()).toBe(1);
    expect(logged('the node controller cannot watch')).toBe(1);
    server.refusal = undefined;
    await until(() => logged('the API server answers the node controller again') === 1);
    server.disconnect();
    await until(() => logged('the node controller cannot watch') === 2);
    await until(() => logged('the API server answers the node controller again') === 2);
    await caller.allocate('c2', { nodeName: 'n1' });
    expect(place.log).not.toContain('"level":50');
  });

  test('ends in the middle of a request that is not answered', async () => {
    server.gate = new Promise(() => undefined);
    await start();
    await until(() => server.requests.length >= 2);
    await service?.stop();
    expect(logged('the node controller cannot')).toBe(0);
  });

  test('keeps pools from the address of the API server', async () => {
    const api = new KubernetesApi({ ...server.options, host: '198.18.0.1' });
    service = await place.start(ENV, undefined, () => api);
    const failure = await failureOf(caller.createPool({ name: 'services', cidr: '198.18.0.0/24' }));
    expect(failure).toMatchObject({ code: 'POOL_OVERLAP', message: expect.stringContaining('of the API server') });
  });

  test('is refused outside of a cluster, and off by default', async () => {
    expect(await failureOf(place.start(ENV))).toMatchObject({
      code: 'INVALID_SETTINGS',
      message: expect.stringContaining('PODWIRE_IPAM_NODE_CONTROLLER'),
    });
    service = await place.start({}, undefined, () => new KubernetesApi(server.options));
    await caller.allocate('c1', { nodeName: 'n1' });
    expect(server.requests).toEqual([]);
  });
});

import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { endpointKey, makeEndpoint, type Endpoint } from '../../../records/endpoint.js';
import { RecordKeys } from '../../../records/json/keys.js';
import { writeRecord } from '../../../records/json/registry.js';
import { CountingApi } from '../../../testing/counting-api.js';
import { ObjectServer } from '../../../testing/object-server.js';
import { MemoryStore } from '../../testing/memory-store.js';
import { forever, prefix } from '../../testing/stores.js';
import { PodAnnotations } from './pod-annotations.js';

const PODS = '/api/v1/namespaces/default/pods';

const keys = new RecordKeys('/calico', { hasLock: true });
let server: ObjectServer;
let store: MemoryStore;
let clock: ManualClock;
let api: CountingApi;
let running: PodAnnotations | undefined;
let failures: string[];

beforeEach(async () => {
  server = await ObjectServer.start();
  store = new MemoryStore();
  clock = new ManualClock();
  api = new CountingApi(server.options);
  failures = [];
});
afterEach(async () => {
  await running?.stop();
  running = undefined;
  api.close();
  await server.stop();
});

const pass = (ms: number) => api.pass(clock, ms);

async function start(authorizeWrite = (): void => undefined): Promise<void> {
  const report = ({ code }: { readonly code: string }) => void failures.push(code);
  running = new PodAnnotations({ api, store, keys, clock, random: () => 0, report, authorizeWrite });
  await pass(0);
}

interface PodEndpoint {
  readonly containerId?: string;
  readonly interfaceName?: string;
  readonly uid?: string;
}

function endpoint(name: string, { containerId = `${name}-1`, interfaceName = 'eth0', uid = '' }: PodEndpoint = {}) {
  const attachment = { network: 'net', containerId, interfaceName };
  const pod = { namespace: 'default', name, uid };
  const addresses = ['10.0.0.1/32', 'fd00::1/128'].map((text) => {
    return { address: prefix(text), block: prefix(text), poolName: '', sequenceNumber: 1n };
  });
  return makeEndpoint({ attachment, nodeName: 'node-1', pod, netns: undefined, createdAtMs: 0 }, addresses);
}

const commit = (value: Endpoint, type: 'put' | 'delete') => {
  const key = keys.endpoint(endpointKey(value));
  const { bytes } = writeRecord({ kind: 'endpoint', key: endpointKey(value), value }, undefined);
  const change = type === 'put' ? { puts: [{ key, value: bytes }], deletes: [] } : { puts: [], deletes: [key] };
  return store.commit({ comparisons: [], ...change }, forever);
};

const putPod = (name: string, annotations: Record<string, string> = {}) =>
  String(Object(server.put(PODS, { metadata: { namespace: 'default', name, annotations } }).metadata).uid);

const annotationsOf = (name: string) => Object(server.get(`${PODS}/${name}`)?.metadata).annotations;
const patches = () => server.requests.filter((line) => line.startsWith('PATCH'));

const annotations = (containerId: string, isEnded = false) => ({
  'cni.projectcalico.org/podIP': isEnded ? '' : '10.0.0.1/32',
  'cni.projectcalico.org/podIPs': isEnded ? '' : '10.0.0.1/32,fd00::1/128',
  'cni.projectcalico.org/containerID': containerId,
});

test('a pod shows its addresses, and none once they are released', async () => {
  const metrics = new ReadMetrics('podwire.ipam.kubernetes.');
  await start();
  const uid = putPod('web', { own: 'kept' });
  await commit(endpoint('web', { uid }), 'put');
  await commit(endpoint('web', { uid, interfaceName: 'net1' }), 'put');
  await pass(200);
  expect(annotationsOf('web')).toEqual({ own: 'kept', ...annotations('web-1') });
  expect(patches()).toEqual([`PATCH ${PODS}/web/status`]);
  await commit(endpoint('web', { uid }), 'delete');
  await pass(200);
  expect(annotationsOf('web')).toEqual({ own: 'kept', ...annotations('web-1', true) });
  expect(await metrics.read()).toContain('annotations 0');
});

test('the annotations of another container, and of another pod of the name, stay', async () => {
  await start();
  const uid = putPod('web');
  await commit(endpoint('web', { uid: 'earlier' }), 'put');
  await pass(200);
  expect(annotationsOf('web')).toEqual({});
  await commit(endpoint('web', { uid }), 'put');
  await pass(200);
  await commit(endpoint('web', { uid, containerId: 'web-2' }), 'put');
  await pass(200);
  expect(annotationsOf('web')).toEqual(annotations('web-2'));
  // Calico's plugin has added the pod's third container.
  server.put(PODS, { metadata: { namespace: 'default', name: 'web', annotations: annotations('web-3') } });
  await commit(endpoint('web', { uid, containerId: 'web-2' }), 'delete');
  await pass(200);
  expect(annotationsOf('web')).toEqual(annotations('web-3'));
  expect(failures).toEqual([]);
});

test('a pod that is gone needs nothing', async () => {
  await start();
  await commit(endpoint('gone', { uid: 'u' }), 'put');
  await pass(200);
  await commit(endpoint('gone', { uid: 'u' }), 'delete');
  await pass(20_000);
  expect(patches()).toHaveLength(1);
  expect(failures).toEqual([]);
});

test('a start writes only what differs', async () => {
  const uids = ['same', 'old'].map((name) => putPod(name, name === 'same' ? annotations('same-1') : {}));
  putPod('calico', annotations('calico-1'));
  for (const [index, name] of ['same', 'old'].entries()) await commit(endpoint(name, { uid: uids[index]! }), 'put');
  await start();
  await pass(400);
  expect(patches()).toEqual([`PATCH ${PODS}/old/status`]);
  expect(annotationsOf('calico')).toEqual(annotations('calico-1'));
});

test('a failed request is repeated, and does not hold up the rest for long', async () => {
  await start();
  const uids = ['a', 'b'].map((name) => putPod(name));
  server.injectFault('PATCH', 500);
  for (const [index, name] of ['a', 'b'].entries()) await commit(endpoint(name, { uid: uids[index]! }), 'put');
  await pass(1000);
  expect(annotationsOf('b')).toEqual(annotations('b-1'));
  await pass(10_000);
  expect(annotationsOf('a')).toEqual(annotations('a-1'));
  expect(failures).toEqual(['UNREACHABLE']);
});

test('a podwire-ipam that has lost the lease writes nothing', async () => {
  const uid = putPod('web');
  await start(() => {
    throw new Failure('STORE_UNAVAILABLE', 'another podwire-ipam leads');
  });
  await commit(endpoint('web', { uid }), 'put');
  await pass(200);
  expect([patches(), failures]).toEqual([[], ['STORE_UNAVAILABLE']]);
});

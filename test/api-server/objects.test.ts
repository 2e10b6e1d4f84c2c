import { randomBytes } from 'node:crypto';

import { systemClock } from '@podwire/shared/runtime/clock';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { KubernetesApi } from '@podwire/ipam/api-server/api';
import { PodAnnotations } from '@podwire/ipam/engine/kubernetes/followers/pod-annotations';
import { HistorySegments } from '@podwire/ipam/engine/kubernetes/history/history-segments';
import { MemoryStore } from '@podwire/ipam/engine/testing/memory-store';
import { forever, keys, prefix } from '@podwire/ipam/engine/testing/stores';
import { endpointKey, makeEndpoint } from '@podwire/ipam/records/endpoint';
import { writeRecord } from '@podwire/ipam/records/json/registry';

import { KubeApiServer, PORT } from './kube-apiserver.js';

/** Objects besides Calico's on a real API server, which validates them and counts requests. */

const PATIENCE = { timeout: 60_000 };

let server: KubeApiServer;
let api: KubernetesApi;
beforeAll(async () => {
  server = await KubeApiServer.start(['n1']);
  api = server.connect();
});
afterAll(async () => {
  api.close();
  await server.stop();
});

function fail(error: unknown): never {
  throw error;
}

async function openHistory() {
  const reports = { unavailable: fail, unreadable: (_: string, error: unknown) => fail(error), writeFailed: fail };
  const opened = await HistorySegments.open({ api, keys, clock: systemClock, random: Math.random, reports }, forever);
  return opened ?? fail(new Error('the API server has no segments'));
}

test('an imported history is full segments, which the definition accepts, and a later begin', async () => {
  const records = Array.from({ length: 40 }, (_, index) => ({
    key: `${keys.history}00020687/10.0.0.${index}/1`,
    value: Buffer.from(randomBytes(index === 0 ? 1000 : 20_000).toString('hex')),
    releasedAtMs: index * 1000,
  }));
  const { segments } = await openHistory();
  await segments.import({ records, beginMs: 0, dryRun: false }, forever);
  await segments.import({ records: [], beginMs: 1_000_000, dryRun: false }, forever);
  const found = await openHistory();
  expect([...found.records].map(([key, value]) => [key, String(value)]).sort()).toEqual(
    records.map(({ key, value }) => [key, String(value)]).sort(),
  );
  expect(found.segments.beginKey).toBe(keys.historyBegin(1_000_000));
  expect(server.kubectl('get', 'historysegments', '-o', 'name').trim().split('\n')).toHaveLength(5);
});

/** Requests that the API server has begun to answer, by priority level, of one FlowSchema. */
function dispatched(flowSchema: string): ReadonlyMap<string, number> {
  const metrics = server.kubectl('get', '--raw', '/metrics').split('\n');
  const counts = new Map<string, number>();
  for (const line of metrics) {
    if (!line.startsWith('apiserver_flowcontrol_dispatched_requests_total{')) continue;
    const label = (name: string): string => new RegExp(`${name}="([^"]*)"`).exec(line)?.[1] ?? '';
    if (label('flow_schema') === flowSchema)
      counts.set(label('priority_level'), Number(line.slice(line.lastIndexOf(' '))));
  }
  return counts;
}

test('requests of podwire-ipam have the priority level of its FlowSchema, and requests of other accounts have not', async () => {
  const metadata = { name: 'other', namespace: 'podwire-system' };
  server.kubectl('create', 'namespace', metadata.namespace);
  server.apply(JSON.stringify({ apiVersion: 'v1', kind: 'ServiceAccount', metadata }));
  const flags = ['--set', 'ipam.store=kubernetes', '--set', 'ipam.authoritySecretName=authority'];
  server.apply(server.render('chart', ...flags, '--show-only', 'templates/access.yaml'));
  const connect = (account: string): KubernetesApi =>
    new KubernetesApi({ host: '127.0.0.1', port: String(PORT), directory: server.mountToken(account) });
  const [own, other] = [connect('podwire-ipam'), connect('other')];
  const request = { method: 'GET', path: '/api/v1/nodes', signal: forever } as const;
  const count = (): number => dispatched('podwire-ipam').get('workload-high') ?? 0;
  const isClassified = async (): Promise<boolean> => {
    await own.send(request);
    return count() > 0;
  };
  await expect.poll(isClassified, PATIENCE).toBe(true);
  const before = count();
  for (let sent = 0; sent < 20; sent++) await own.send(request);
  await expect(other.send(request)).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  expect([...dispatched('podwire-ipam')]).toEqual([['workload-high', before + 20]]);
  expect(dispatched('service-accounts').get('workload-low')).toBeGreaterThan(0);
  own.close();
  other.close();
});

/** @returns the UID */
function createPod(name: string): string {
  const spec = { nodeName: 'n1', containers: [{ name: 'a', image: 'a' }] };
  server.apply(JSON.stringify({ apiVersion: 'v1', kind: 'Pod', metadata: { name, namespace: 'podwire' }, spec }));
  return server.kubectl('get', 'pod', name, '--namespace', 'podwire', '-o', 'jsonpath={.metadata.uid}');
}

const POD_IP = '.cni\\.projectcalico\\.org/podIP';

/** All annotations of a pod, or one. */
const annotationOf = (pod: string, path = ''): string =>
  server.kubectl('get', 'pod', pod, '--namespace', 'podwire', '-o', `jsonpath={.metadata.annotations${path}}`);

test('a pod does not get the annotations of a former pod with its name', async () => {
  server.kubectl('create', 'serviceaccount', 'default', '--namespace', 'podwire');
  const store = new MemoryStore();
  const annotations = new PodAnnotations({ api, store, keys, clock: systemClock, random: () => 0, report: fail });
  const commit = async (type: 'put' | 'delete', name: string, uid: string, address = '10.0.0.99/32') => {
    const attachment = { network: 'net', containerId: `${name}-${uid}`, interfaceName: 'eth0' };
    const pod = { namespace: 'podwire', name, uid };
    const held = { address: prefix(address), block: prefix(address), poolName: '', sequenceNumber: 1n };
    const value = makeEndpoint({ attachment, nodeName: 'n1', pod, netns: undefined, createdAtMs: 0 }, [held]);
    const key = keys.endpoint(endpointKey(value));
    const put = { key, value: writeRecord({ kind: 'endpoint', key: endpointKey(value), value }, undefined).bytes };
    const changes = type === 'put' ? { puts: [put], deletes: [] } : { puts: [], deletes: [key] };
    await store.commit({ comparisons: [], ...changes }, forever);
  };
  /** Waits until earlier changes are written: pods are written in the order of their changes. */
  const settle = async (name: string): Promise<void> => {
    await commit('put', name, createPod(name));
    await expect.poll(() => annotationOf(name, POD_IP), PATIENCE).toBe('10.0.0.99/32');
  };
  const former = createPod('web-0');
  await commit('put', 'web-0', former, '10.0.0.1/32');
  await expect.poll(() => annotationOf('web-0', POD_IP), PATIENCE).toBe('10.0.0.1/32');
  server.kubectl('delete', 'pod', 'web-0', '--namespace', 'podwire', '--grace-period=0', '--force');
  const next = createPod('web-0');
  expect(next).not.toBe(former);
  await commit('put', 'web-0', former, '10.0.0.2/32');
  await settle('after-change');
  expect(annotationOf('web-0')).toBe('');
  await commit('delete', 'web-0', former, '10.0.0.2/32');
  await settle('after-release');
  expect(annotationOf('web-0')).toBe('');
  await commit('put', 'web-0', next, '10.0.0.3/32');
  await expect.poll(() => annotationOf('web-0', POD_IP), PATIENCE).toBe('10.0.0.3/32');
  await annotations.stop();
});

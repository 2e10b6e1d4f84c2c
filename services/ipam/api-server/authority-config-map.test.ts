import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { TokenApi, NAMESPACE } from '../testing/token-api.js';
import { KubernetesApi } from './api.js';
import { AuthorityConfigMap } from './authority-config-map.js';

let directory: string;
let server: TokenApi;
let api: KubernetesApi;

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'podwire-kubernetes-'));
  server = await TokenApi.start(join(directory, 'account'));
  api = server.connect();
});

afterEach(async () => {
  api.close();
  await server.stop();
  rmSync(directory, { recursive: true });
});

const { signal } = new AbortController();
const get = { method: 'GET', path: '/api/v1/nodes' } as const;

test('the namespace is the service account’s', () => {
  expect(api.namespace).toBe(NAMESPACE);
});

test.each([500, 503, 429])('status %i is temporary, and names the request', async (status) => {
  server.answer = () => ({ status, body: { message: 'etcd is slow' } });

  await expect(api.send(get)).rejects.toMatchObject({
    code: 'UNREACHABLE',
    message: expect.stringContaining(`${api.subject}: GET /api/v1/nodes: answered ${status}: etcd is slow`),
  });
});

test('status 422 is an object that its definition does not allow', async () => {
  server.answer = () => ({ status: 422, body: { message: 'spec.cidr: Required value' } });
  await expect(api.send(get)).rejects.toMatchObject({
    code: 'INVALID_REQUEST',
    message: `${api.subject}: GET /api/v1/nodes: answered 422: spec.cidr: Required value`,
  });
});

test.each([401, 403])('status %i says what to apply', async (status) => {
  server.answer = ({ path }) => ({ status: path === '/readyz' ? 200 : status, body: { message: 'no' } });

  await expect(api.send(get)).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  await expect(api.send(get)).rejects.toThrow('apply the role of podwire-ipam');
});

test('an answer that is not JSON has no body', async () => {
  server.answer = () => ({ status: 404 });

  await expect(api.send(get)).resolves.toEqual({ status: 404, body: {} });
});

test('a server that has ended is unreachable, and a cancelled request is cancelled', async () => {
  const cancelled = AbortSignal.abort();
  await expect(api.send({ ...get, signal: cancelled })).rejects.toMatchObject({ code: 'CANCELLED' });

  const other = await TokenApi.start(join(directory, 'other'));
  const client = other.connect();
  await other.stop();
  await expect(client.send(get)).rejects.toMatchObject({ code: 'UNREACHABLE' });
  client.close();
});

test('a service account that is not mounted is refused with its path', () => {
  const options = { host: '127.0.0.1', port: '1', directory: join(directory, 'missing') };

  expect(() => new KubernetesApi(options)).toThrow(/missing\/namespace: ENOENT.*; mount the service account/);
  expect(() => KubernetesApi.inCluster({})).toThrow(
    /^KUBERNETES_SERVICE_HOST: is empty, and .* need the API server; run podwire-ipam in a pod/,
  );
});

test('the ConfigMap of the authority is replaced only as it was read', async () => {
  const map = new AuthorityConfigMap(api);
  const first = await map.read(signal);
  expect(first.certificates).toBe('');

  await expect(map.replace({ ...first, certificates: 'one' }, signal)).resolves.toBe(true);
  await expect(map.replace({ ...first, certificates: 'two' }, signal)).resolves.toBe(false);
  expect(server.published).toBe('one');
  await expect(map.read(signal)).resolves.toMatchObject({ certificates: 'one' });
});

test('a missing ConfigMap is awaited: the manifests make it', async () => {
  server.answer = () => ({ status: 404, body: { message: 'not found' } });
  const map = new AuthorityConfigMap(api);

  const missing = {
    code: 'UNREACHABLE',
    message: `ConfigMap ${NAMESPACE}/podwire-authority: is missing; create it, empty, as deploy/kubernetes does`,
  };
  await expect(map.read(signal)).rejects.toMatchObject(missing);
  await expect(map.replace({ certificates: 'one', version: '1' }, signal)).rejects.toMatchObject(missing);
});

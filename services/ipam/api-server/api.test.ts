import { createServer, type Server } from 'node:https';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';

import { CertificateAuthority } from '../engine/testing/etcd-server.js';
import { failureOf } from '../testing/service.js';
import { KubernetesApi, pauseMs, type WatchEvent } from './api.js';

/** Raw answers, so that a test decides on every byte. */
const directory = mkdtempSync(join(tmpdir(), 'podwire-kubernetes-api-'));
const account = join(directory, 'account');
let server: Server;
let port = '';
let api: KubernetesApi;
let answer: (response: ServerResponse, path: string) => void;
const counted = new ReadMetrics('podwire.ipam.kubernetes.requests');
const seen: { readonly headers: Record<string, unknown>; readonly body: string }[] = [];

beforeAll(async () => {
  const { ca, cert, key } = new CertificateAuthority(join(directory, 'tls')).issue('kube-apiserver');
  mkdirSync(account);
  writeFileSync(join(account, 'ca.crt'), readFileSync(ca));
  writeFileSync(join(account, 'token'), 'first\n');
  writeFileSync(join(account, 'namespace'), 'podwire-system\n');
  server = createServer({ cert: readFileSync(cert), key: readFileSync(key) }, (request, response) => {
    let body = '';
    request.on('data', (chunk: Buffer) => (body += chunk.toString()));
    request.on('end', () => {
      seen.push({ headers: request.headers, body });
      answer(response, request.url ?? '');
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no port');
  port = String(address.port);
  api = new KubernetesApi({ host: '127.0.0.1', port, directory: account, watchIdleMs: 300 });
});

afterEach(() => void seen.splice(0));

afterAll(async () => {
  api.close();
  server.closeAllConnections();
  server.close();
  await once(server, 'close');
  rmSync(directory, { recursive: true, force: true });
});

const json = (status: number, body: unknown) => (response: ServerResponse) => {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
};

const get = (path = '/api/v1/nodes') => api.send({ method: 'GET', path });

describe('a request', () => {
  test('shows the token of the moment, and returns status and JSON', async () => {
    answer = json(200, { items: [] });
    expect(await get()).toEqual({ status: 200, body: { items: [] } });
    writeFileSync(join(account, 'token'), 'second\n');
    await api.send({ method: 'PATCH', path: '/x', contentType: 'application/merge-patch+json', body: { a: 'ü' } });
    expect(seen.map(({ headers }) => headers.authorization)).toEqual(['Bearer first', 'Bearer second']);
    expect(seen[1]!.headers['content-type']).toBe('application/merge-patch+json');
    expect(seen[1]!.body).toBe('{"a":"ü"}');
  });

  test.each([404, 409])('returns the status %d, which the caller decides on', async (status) => {
    answer = json(status, { message: 'no' });
    expect(await get()).toEqual({ status, body: { message: 'no' } });
  });

  test.each([
    [403, 'ACCESS_DENIED', /nodes is forbidden; apply the role/],
    [401, 'ACCESS_DENIED', /answered 401/],
    [410, 'UNREACHABLE', /answered 410/],
    [429, 'UNREACHABLE', /answered 429/],
    [503, 'UNREACHABLE', /answered 503/],
  ])('fails with the status %d as %s', async (status, code, text) => {
    answer = (response, path) => json(path === '/readyz' ? 200 : status, { message: 'nodes is forbidden' })(response);
    const failure = await failureOf(get());
    expect(failure.code).toBe(code);
    expect(failure.message).toMatch(text);
    expect(failure.message).toContain(`API server at 127.0.0.1:${port}: GET /api/v1/nodes`);
  });

  test.each([403, 500])('can be retried while the API server answers %d to /readyz, as it starts', async (status) => {
    answer = (response, path) => json(path === '/readyz' ? status : 403, { message: 'role not found' })(response);
    expect(await failureOf(get())).toMatchObject({
      code: 'UNREACHABLE',
      retryable: true,
      details: { executed: 'no' },
    });
  });

  test('is repeated when an overloaded API server asks for it, within bounds', async () => {
    const pauseAfter = async (retryAfter: string): Promise<number> => {
      answer = (response) => response.writeHead(429, { 'retry-after': retryAfter }).end();
      return pauseMs(await failureOf(get()), 50);
    };
    expect([await pauseAfter('2'), await pauseAfter('3600'), await pauseAfter('0')]).toEqual([2000, 10_000, 50]);
    expect(pauseMs(new Error('no failure'), 50)).toBe(50);
  });

  test('is counted by verb, kind and status', async () => {
    await counted.read();
    answer = (response, path) => json(path.includes('a1') ? 409 : 200, {})(response);
    for (const path of ['/api/v1/nodes/a1', '/api/v1/nodes?limit=5', '/apis/projectcalico.org/v3']) await get(path);
    const pods = '/api/v1/namespaces/podwire-system/pods';
    for (const method of ['POST', 'PUT', 'PATCH', 'DELETE'] as const) await api.send({ method, path: `${pods}/p` });
    answer = (response) => response.destroy();
    await failureOf(get(pods));
    expect(await counted.read()).toEqual([
      ' verb=create kind=pods code=200 1',
      ' verb=delete kind=pods code=200 1',
      ' verb=get kind=discovery code=200 1',
      ' verb=get kind=nodes code=409 1',
      ' verb=get kind=pods code=none 1',
      ' verb=list kind=nodes code=200 1',
      ' verb=patch kind=pods code=200 1',
      ' verb=update kind=pods code=200 1',
    ]);
  });

  test('fails when its answer is cut off', async () => {
    answer = (response) => {
      response.writeHead(200, { 'content-length': '100' });
      response.write('{"items":');
      response.socket?.destroySoon();
    };
    expect((await failureOf(get())).code).toBe('UNREACHABLE');
  });

  test('trusts the mounted authority only', async () => {
    const other = join(directory, 'other');
    new CertificateAuthority(join(directory, 'other-tls'));
    mkdirSync(other);
    for (const name of ['token', 'namespace']) writeFileSync(join(other, name), 'x');
    writeFileSync(join(other, 'ca.crt'), readFileSync(join(directory, 'other-tls', 'ca.crt')));
    const stranger = new KubernetesApi({ host: '127.0.0.1', port, directory: other });
    const failure = await failureOf(stranger.send({ method: 'GET', path: '/' }));
    expect(failure).toMatchObject({ code: 'UNREACHABLE', message: expect.stringMatching(/certificate/) });
    stranger.close();
    expect(seen).toEqual([]);
  });

  test('names the end of the timeout of its caller', async () => {
    answer = () => undefined;
    const signal = AbortSignal.timeout(50);
    expect((await failureOf(api.send({ method: 'GET', path: '/x', signal }))).message).toMatch(/no answer in time$/);
  });

  test('can be cancelled', async () => {
    const controller = new AbortController();
    answer = () => controller.abort();
    const failure = await failureOf(api.send({ method: 'GET', path: '/', signal: controller.signal }));
    expect(failure.code).toBe('CANCELLED');
  });
});

test('outside of a cluster there is no API server', () => {
  expect(() => KubernetesApi.inCluster({})).toThrow('KUBERNETES_SERVICE_HOST');
  expect(() => new KubernetesApi({ host: 'h', port: '1', directory: '/nowhere' })).toThrow('mount the service account');
});

const controller = new AbortController();

async function watched(signal = controller.signal): Promise<WatchEvent[]> {
  const events: WatchEvent[] = [];
  for await (const event of api.watch({ path: '/api/v1/nodes?watch=1', signal, opened: () => opened++ }))
    events.push(event);
  return events;
}

let opened = 0;

describe('a watch', () => {
  test('has each line as an event, however the bytes are cut', async () => {
    const events = [
      { type: 'ADDED', object: { metadata: { name: 'ä€😀' } } },
      { type: 'BOOKMARK', object: { metadata: { resourceVersion: '9' } } },
    ];
    const bytes = Buffer.from(events.map((event) => `${JSON.stringify(event)}\n`).join(''));
    answer = (response) => {
      response.writeHead(200);
      const writeFrom = (offset: number): void => {
        if (offset === bytes.length) response.end();
        else response.write(bytes.subarray(offset, offset + 1), () => setImmediate(writeFrom, offset + 1));
      };
      writeFrom(0);
    };
    opened = 0;
    expect(await watched()).toEqual(events);
    expect(opened).toBe(1);
  });

  test('reports an expired version as an event, whether by status or in the stream', async () => {
    answer = json(410, { message: 'too old resource version' });
    expect(await watched()).toEqual([{ type: 'ERROR', object: { code: 410 } }]);
    answer = (response) => response.end('{"type":"ERROR","object":{"code":410}}\n');
    expect(await watched()).toEqual([{ type: 'ERROR', object: { code: 410 } }]);
  });

  test('fails when it is refused', async () => {
    answer = (response, path) => json(path === '/readyz' ? 200 : 403, { message: 'nodes is forbidden' })(response);
    opened = 0;
    expect(await failureOf(watched())).toMatchObject({ code: 'ACCESS_DENIED' });
    expect(opened).toBe(0);
  });

  test('fails when its connection is cut, and does not report half an event', async () => {
    answer = (response) => {
      response.writeHead(200);
      response.write('{"type":"ADDED","object":{}}\n{"type":"ADDED"', () => response.socket?.destroy());
    };
    const events: WatchEvent[] = [];
    const reading = (async () => {
      for await (const event of api.watch({ path: '/', signal: controller.signal })) events.push(event);
    })();
    expect(await failureOf(reading)).toMatchObject({ code: 'UNREACHABLE' });
    expect(events.length).toBeLessThanOrEqual(1);
  });

  test('fails when it is silent for too long', async () => {
    answer = (response) => response.writeHead(200).flushHeaders();
    expect(await failureOf(watched())).toMatchObject({
      code: 'UNREACHABLE',
      message: expect.stringContaining('sent nothing for too long'),
    });
  });

  test('fails on lines that are no events', async () => {
    answer = (response) => response.end('<html>\n');
    expect(await failureOf(watched())).toMatchObject({ code: 'UNREACHABLE' });
  });

  test('ends its request when its reader stops or its signal fires', async () => {
    const closed: Promise<unknown>[] = [];
    answer = (response) => {
      closed.push(once(response, 'close'));
      response.write('{"type":"ADDED","object":{}}\n');
    };
    for await (const event of api.watch({ path: '/', signal: controller.signal })) {
      expect(event.type).toBe('ADDED');
      break;
    }
    const stop = new AbortController();
    const second = (async () => {
      for await (const { type } of api.watch({ path: '/', signal: stop.signal })) if (type === 'ADDED') stop.abort();
    })();
    expect(await failureOf(second)).toMatchObject({ code: 'CANCELLED' });
    await Promise.all(closed);
    expect(closed).toHaveLength(2);
  });
});

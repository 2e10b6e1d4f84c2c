import { once } from 'node:events';
import { request, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';

import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, describe, expect, test } from 'vitest';

import type { PageData } from '../../page/data.js';
import { addOf } from '../../testing/recent-commands.js';
import { summarizeAdds } from '../node/add-summary.js';
import { pageServer, type PageServerOptions } from './page-server.js';

const closing: (() => void)[] = [];
afterEach(() => closing.splice(0).forEach((close) => close()));

interface Answer {
  readonly status: number | undefined;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

const EMPTY: PageData = {
  ...{ scope: 'Node node-1', adds: summarizeAdds([{ node: 'node-1', commands: [addOf(1)] }]) },
  ...{ problems: [], tables: [], faults: [], actions: [] },
};

/** Serves the page, and gives a function that requests a path. `PORT` in the host and the origin stands for the server's. */
async function served(changes: Partial<PageServerOptions> = {}) {
  const server = pageServer({ read: () => Promise.resolve(EMPTY), ...changes });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  closing.push(() => server.close());
  const address: AddressInfo | string | null = server.address();
  const port = typeof address === 'object' ? address!.port : 0;
  return (path: string, { method = 'GET', host = 'localhost:PORT', origin = '' } = {}): Promise<Answer> =>
    new Promise((resolve, reject) => {
      const withPort = (text: string): string => text.replace('PORT', String(port));
      const headers = { host: withPort(host), ...(origin === '' ? {} : { origin: withPort(origin) }) };
      const call = request({ host: '127.0.0.1', port, path, method, headers, agent: false }, (response) => {
        let body = '';
        response.setEncoding('utf8').on('data', (chunk: string) => (body += chunk));
        response.once('end', () => resolve({ status: response.statusCode, headers: response.headers, body }));
      });
      call.once('error', reject).end();
    });
}

test.each([
  ['/', 'text/html', '<h1>Pod setup latency</h1>'],
  ['/page.css', 'text/css', 'prefers-color-scheme'],
  ['/view.js', 'text/javascript', './layout.js'],
  ['/layout.js', 'text/javascript', 'export function'],
  ['/data.json', 'application/json', '"pod":"default/web-1"'],
])('%s is served as %s', async (path, type, content) => {
  const { status, headers, body } = await (await served())(path);
  expect({ status, type: headers['content-type'] }).toEqual({ status: 200, type: `${type}; charset=utf-8` });
  expect(body).toContain(content);
  expect(headers['content-security-policy']).toMatch(/^default-src 'none'; script-src 'self';/);
  expect(headers['x-content-type-options']).toBe('nosniff');
  expect(headers['access-control-allow-origin']).toBeUndefined();
});

test.each(['/data.ts', '/../package.json', '/page/../../package.json', '/data', '/actions/stop'])(
  '%s is not found',
  async (path) => {
    expect((await (await served())(path)).status).toBe(404);
  },
);

test.each(['127.0.0.1:PORT', 'localhost:PORT', '[::1]:PORT', 'localhost:1', '127.0.0.1'])(
  'the host %s is served',
  async (host) => {
    expect((await (await served())('/data.json', { host })).status).toBe(200);
  },
);

test.each(['rebound.example:PORT', 'rebound.example', 'localhost.example', '127.0.0.1.example:PORT'])(
  'the host %s is refused',
  async (host) => {
    let isRead = false;
    const read = () => {
      isRead = true;
      return Promise.resolve(EMPTY);
    };
    const { status, body } = await (await served({ read }))('/data.json', { host });
    expect({ status, body }).toEqual({ status: 403, body: expect.stringContaining('is not this machine') });
    expect(isRead).toBe(false);
  },
);

test.each(['POST', 'PUT', 'DELETE', 'OPTIONS'])('%s is refused', async (method) => {
  const { status, headers } = await (await served())('/data.json', { method });
  expect({ status, allow: headers.allow }).toEqual({ status: 405, allow: 'GET, HEAD' });
});

test('a podwire-node that does not answer is reported', async () => {
  const get = await served({ read: () => Promise.reject(new Error('podwire-node: no answer')) });
  expect(await get('/data.json')).toMatchObject({ status: 503, body: 'podwire-node: no answer' });
});

test('a failure is reported with the trace that its message refers to', async () => {
  const late = new Failure('DEADLINE_EXCEEDED', 'no answer in time; see its log under this trace', { traceId: 'abc' });
  const get = await served({ read: () => Promise.reject(late) });
  const body = 'no answer in time; see its log under trace abc (DEADLINE_EXCEEDED)';
  expect(await get('/data.json')).toMatchObject({ status: 503, body });
});

describe('actions', () => {
  const counted = async () => {
    const executed: string[] = [];
    const stop = () => Promise.resolve(void executed.push('stop'));
    const fail = () => Promise.reject(new Error('podwire-ipam has ended'));
    return { executed, request: await served({ actions: { stop, fail } }) };
  };

  test('a button of the page is executed', async () => {
    const { executed, request } = await counted();
    const answer = await request('/actions/stop', { method: 'POST', origin: 'http://localhost:PORT' });
    expect([answer.status, executed]).toEqual([200, ['stop']]);
    const failed = await request('/actions/fail', { method: 'POST', origin: 'http://localhost:PORT' });
    expect(failed).toMatchObject({ status: 503, body: 'podwire-ipam has ended' });
  });

  test.each([
    ['GET', 'http://localhost:PORT', 405],
    ['POST', '', 403],
    ['POST', 'null', 403],
    ['POST', 'http://localhost:1', 403],
    ['POST', 'http://127.0.0.1:PORT', 403],
    ['POST', 'https://localhost:PORT', 403],
    ['POST', 'http://foreign.example', 403],
  ])('%s with the origin "%s" is refused', async (method, origin, status) => {
    const { executed, request } = await counted();
    expect((await request('/actions/stop', { method, origin })).status).toBe(status);
    expect(executed).toEqual([]);
  });
});

import { once } from 'node:events';
import { request, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';

import { afterEach, expect, test } from 'vitest';

import { pageServer, type PageServerOptions } from './page-server.js';
import { addOf } from './testing/commands.js';

const closing: (() => void)[] = [];
afterEach(() => closing.splice(0).forEach((close) => close()));

interface Answer {
  readonly status: number | undefined;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

/** Serves the page, and gives a function that requests a path. `PORT` in the host stands for the server's. */
async function served(changes: Partial<PageServerOptions> = {}) {
  const server = pageServer({
    folder: join(import.meta.dirname),
    readCommands: () => Promise.resolve({ node: 'node-1', commands: [addOf(1)] }),
    onViewed: () => undefined,
    ...changes,
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  closing.push(() => server.close());
  const address: AddressInfo | string | null = server.address();
  const port = typeof address === 'object' ? address!.port : 0;
  return (path: string, { method = 'GET', host = 'localhost:PORT' } = {}): Promise<Answer> =>
    new Promise((resolve, reject) => {
      const headers = { host: host.replace('PORT', String(port)) };
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

test.each(['/page-server.js', '/../package.json', '/page/../../package.json', '/data'])(
  '%s is not found',
  async (path) => {
    expect((await (await served())(path)).status).toBe(404);
  },
);

test.each(['127.0.0.1:PORT', 'localhost:PORT'])('the host %s is served', async (host) => {
  expect((await (await served())('/data.json', { host })).status).toBe(200);
});

test.each(['rebound.example:PORT', 'rebound.example', '127.0.0.1', 'localhost:1'])(
  'the host %s is refused',
  async (host) => {
    let viewed = false;
    const get = await served({ onViewed: () => (viewed = true) });
    const { status, body } = await get('/data.json', { host });
    expect(status).toBe(403);
    expect(body).toMatch(/^use http:\/\/127\.0\.0\.1:\d+\/$/);
    expect(viewed).toBe(false);
  },
);

test.each(['POST', 'PUT', 'DELETE', 'OPTIONS'])('%s is refused', async (method) => {
  const { status, headers } = await (await served())('/data.json', { method });
  expect({ status, allow: headers.allow }).toEqual({ status: 405, allow: 'GET, HEAD' });
});

test('a podwire-node that does not answer is reported', async () => {
  const get = await served({ readCommands: () => Promise.reject(new Error('podwire-node: no answer')) });
  expect(await get('/data.json')).toMatchObject({ status: 503, body: 'podwire-node: no answer' });
});

test('only a request for the data counts as a view', async () => {
  let views = 0;
  const get = await served({ onViewed: () => views++ });
  await get('/');
  expect(views).toBe(0);
  await get('/data.json?again');
  expect(views).toBe(1);
});

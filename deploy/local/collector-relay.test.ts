import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';

import { afterEach, expect, test } from 'vitest';

import { collectorRelay } from './collector-relay.js';

const servers: Server[] = [];
afterEach(() => servers.splice(0).forEach((server) => server.close()));

async function urlOf(server: Server): Promise<string> {
  servers.push(server);
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const address: AddressInfo | string | null = server.address();
  return `http://127.0.0.1:${typeof address === 'object' ? address!.port : 0}`;
}

/** A collector with a prefix in its URL, and the relay to it. */
async function relayed() {
  const received: unknown[] = [];
  const reports: string[] = [];
  const state = { status: 200 };
  const collector = createServer((request, response) => {
    void text(request).then((body) => {
      const { 'content-type': type, 'content-encoding': encoding } = request.headers;
      received.push({ method: request.method, path: request.url, type, encoding, body });
      response.writeHead(state.status, { 'content-type': 'application/json' }).end('{"partialSuccess":{}}');
    });
  });
  const collectorUrl = new URL('/prefix/', await urlOf(collector));
  const relay = await urlOf(collectorRelay({ url: collectorUrl, report: (report) => reports.push(report) }));
  const send = (path: string) =>
    fetch(`${relay}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/x-protobuf', 'content-encoding': 'gzip' },
      body: 'spans',
    });
  return { collector, collectorUrl, received, reports, state, send };
}

test('requests reach the collector as they are, and its answer comes back', async () => {
  const { received, send } = await relayed();
  const answer = await send('/v1/traces');
  expect([answer.status, answer.headers.get('content-type'), await answer.text()]).toEqual([
    200,
    'application/json',
    '{"partialSuccess":{}}',
  ]);
  const sent = { method: 'POST', type: 'application/x-protobuf', encoding: 'gzip', body: 'spans' };
  expect(received).toEqual([{ ...sent, path: '/prefix/v1/traces' }]);
});

test('each change of the outcome is reported once, and exporters see a status that they retry', async () => {
  const { collector, collectorUrl, reports, state, send } = await relayed();
  await send('/v1/traces');
  await send('/v1/metrics');
  state.status = 400;
  expect((await send('/v1/metrics')).status).toBe(400);
  collector.closeAllConnections();
  collector.close();
  expect((await send('/v1/traces')).status).toBe(503);
  expect((await send('/v1/traces')).status).toBe(503);
  expect(reports).toEqual([
    `collector ${collectorUrl.href}: receives traces and metrics`,
    `collector ${collectorUrl.href}: answers with status 400`,
    expect.stringMatching(/^collector \S+: cannot be reached: .*; check the URL of --otlp$/),
  ]);
});

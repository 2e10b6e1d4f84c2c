import { DiagnosticsServiceService } from '@podwire/proto/podwire/diagnostics/v1/diagnostics';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { systemClock } from '../runtime/clock.js';
import { RecentLines } from '../runtime/recent-lines.js';
import { recordingLog, TestServers } from '../testing/server.js';
import { Peer } from '../rpc/client.js';
import { diagnosticsService, type DiagnosticsOptions } from './diagnostics-service.js';
import { RpcServer } from '../rpc/server.js';

let servers: TestServers;
const stops: (() => unknown)[] = [];

beforeEach(() => {
  servers = new TestServers();
});
afterEach(async () => {
  for (const stop of stops.splice(0).reverse()) await stop();
  await servers.clear();
});

/** Serves the files, and collects them. @returns their contents by name */
async function collect(options: Partial<DiagnosticsOptions>, since?: Date): Promise<Map<string, string>> {
  const release = { release: '0.1.0', nodeVersion: 'v24.0.0', startTime: new Date(0) };
  const all = { release, lines: new RecentLines(), env: {}, files: () => Promise.resolve([]), ...options };
  const server = new RpcServer({
    ...{ addresses: [servers.address()], defaultCallTimeoutMs: 5000, drainTimeoutMs: 0 },
    ...{ log: recordingLog().log, clock: systemClock },
    services: (_, streaming) => [diagnosticsService(all, streaming)],
  });
  await server.listen();
  const peer = new Peer('fixture', servers.address());
  stops.push(
    () => server.stop(),
    () => peer.close(),
  );
  const contents = new Map<string, string>();
  const { signal } = new AbortController();
  for await (const { file, part } of peer.stream(DiagnosticsServiceService.collect, { since }, signal))
    contents.set(file, (contents.get(file) ?? '') + part.toString());
  return contents;
}

test('the files of every process come first', async () => {
  const names = [
    ...(await collect({ files: () => Promise.resolve([{ name: 'own.txt', content: () => 'own' }]) })).keys(),
  ];
  expect(names).toEqual(['version.json', 'settings.json', 'metrics.txt', 'log.jsonl', 'own.txt']);
});

test('settings have no secret, and no variable of another program', async () => {
  const env = {
    HOME: '/root',
    PODWIRE_IPAM_ETCD_PASSWORD_FILE: '/etc/podwire/password',
    PODWIRE_IPAM_NODE_TOKENS: 'true',
    PODWIRE_IPAM_ETCD_ENDPOINTS: 'https://user:hunter2@192.0.2.1:2379,https://192.0.2.2:2379',
    OTEL_EXPORTER_OTLP_ENDPOINT: 'https://traces.example/v1?api_key=hunter2&team=a',
    OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer hunter2',
    OTEL_EXPORTER_OTLP_TRACES_HEADERS: 'authorization=Bearer hunter2',
    PODWIRE_NODE_SECRET: 'hunter2',
    PODWIRE_NODE_PASSWORD: 'hunter2',
  };
  const text = (await collect({ env })).get('settings.json') ?? '';
  expect(text).not.toContain('hunter2');
  expect(JSON.parse(text)).toEqual({
    OTEL_EXPORTER_OTLP_ENDPOINT: 'https://traces.example/v1?(redacted)',
    OTEL_EXPORTER_OTLP_HEADERS: '(redacted)',
    OTEL_EXPORTER_OTLP_TRACES_HEADERS: '(redacted)',
    PODWIRE_IPAM_ETCD_ENDPOINTS: 'https://(redacted)@192.0.2.1:2379,https://192.0.2.2:2379',
    PODWIRE_IPAM_ETCD_PASSWORD_FILE: '/etc/podwire/password',
    PODWIRE_IPAM_NODE_TOKENS: 'true',
    PODWIRE_NODE_PASSWORD: '(redacted)',
    PODWIRE_NODE_SECRET: '(redacted)',
  });
});

test('a file that cannot be made has the reason, and the rest follows', async () => {
  const failing = { name: 'a.txt', content: () => Promise.reject(new Failure('STATE_IO', 'disk: broken')) };
  const files = () => Promise.resolve([failing, { name: 'b.json', content: () => ({ count: 1n }) }]);
  const contents = await collect({ files });
  expect(contents.get('a.txt')).toBe('cannot be read: disk: broken\n');
  expect(JSON.parse(contents.get('b.json') ?? '')).toEqual({ count: '1' });
});

test('a large file arrives whole, and an empty one arrives', async () => {
  const large = 'é'.repeat(200_000);
  const files = () => Promise.resolve([large, ''].map((text) => ({ name: `${text.length}.txt`, content: () => text })));
  const contents = await collect({ files });
  expect(Buffer.byteLength(contents.get('200000.txt') ?? '')).toBeGreaterThan(350_000);
  expect(contents.get('0.txt')).toBe('');
});

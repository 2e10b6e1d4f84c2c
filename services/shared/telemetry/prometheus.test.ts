import { once } from 'node:events';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { resourceFromAttributes } from '@opentelemetry/resources';
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from '@opentelemetry/sdk-metrics';
import { afterEach, describe, expect, test, vi } from 'vitest';

import { ManualClock } from '../testing/manual-clock.js';
import { recordingLog } from '../testing/server.js';
import { withTemporality } from './exporters.js';
import { PrometheusEndpoint } from './prometheus.js';

const ends: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const end of ends.splice(0)) await end();
});

async function started({ port = 0, host = '127.0.0.1', aliases = {}, tokenFile = '' } = {}) {
  const { log, lines } = recordingLog();
  const clock = new ManualClock();
  const endpoint = new PrometheusEndpoint({ host, port, aliases, tokenFile, log, clock });
  const resource = resourceFromAttributes({ 'service.name': 'fixture', 'k8s.node.name': 'node-1' });
  const meter = new MeterProvider({ resource, readers: [endpoint.reader] }).getMeter('fixture');
  await endpoint.start();
  ends.push(() => endpoint.stop());
  const get = (path = '/metrics', method = 'GET', headers = {}) => {
    // The next page is due.
    clock.advance(1000);
    return fetch(`http://127.0.0.1:${endpoint.port}${path}`, { method, headers });
  };
  return { endpoint, meter, get, clock, lines };
}

/** The lines of samples, without comments. */
async function samplesOf(answer: Response): Promise<string[]> {
  return (await answer.text()).split('\n').filter((line) => line !== '' && !line.startsWith('#'));
}

describe('the name of a metric', () => {
  test('has the suffixes of its unit and kind that Prometheus appends to one sent by OTLP', async () => {
    const { meter, get } = await started();
    meter.createCounter('podwire.retries', { unit: '{retry}' }).add(2, { reason: 'busy' });
    meter.createCounter('process.cpu.time', { unit: 's' }).add(1.5);
    meter.createGauge('process.memory.usage', { unit: 'By' }).record(7);
    meter.createGauge('podwire.ready').record(1);
    meter.createHistogram('podwire.wait', { unit: 's', advice: { explicitBucketBoundaries: [0.01] } }).record(0.001);
    expect(await samplesOf(await get())).toEqual([
      'target_info{service_name="fixture",k8s_node_name="node-1"} 1',
      'podwire_retries_total{reason="busy"} 2',
      'process_cpu_time_seconds_total 1.5',
      'process_memory_usage_bytes 7',
      'podwire_ready 1',
      'podwire_wait_seconds_count 1',
      'podwire_wait_seconds_sum 0.001',
      'podwire_wait_seconds_bucket{le="0.01"} 1',
      'podwire_wait_seconds_bucket{le="+Inf"} 1',
    ]);
  });

  test('has a second one where other software’s dashboards know the value', async () => {
    const { meter, get } = await started({ aliases: { 'podwire.blocks': 'ipam_blocks' } });
    meter.createGauge('podwire.blocks', { unit: '{block}' }).record(3, { node: 'a' });
    expect(await samplesOf(await get())).toEqual(
      expect.arrayContaining(['podwire_blocks{node="a"} 3', 'ipam_blocks{node="a"} 3']),
    );
  });
});

test('a series of an observed gauge ends with its object; counts stay', async () => {
  const { meter, get } = await started();
  const conditions = new Map([
    ['first', 1],
    ['second', 2],
  ]);
  meter.createObservableGauge('podwire.conditions').addCallback((result) => {
    for (const [reason, value] of conditions) result.observe(value, { reason });
  });
  meter.createCounter('podwire.retries').add(1);
  const own = async () => (await samplesOf(await get())).filter((line) => line.startsWith('podwire_'));
  const counted = 'podwire_retries_total 1';
  const [first, second] = ['podwire_conditions{reason="first"} 1', 'podwire_conditions{reason="second"} 2'];
  expect(await own()).toEqual([first, second, counted]);
  conditions.delete('first');
  expect(await own()).toEqual([second, counted]);
  conditions.delete('second');
  expect(await own()).toEqual([counted]);
  conditions.set('first', 1);
  expect(await own()).toEqual([first, counted]);
});

test('an exporter gets the series of an observed gauge as long as it is observed, and counters as it chose', async () => {
  const exporter = withTemporality(new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE));
  const reader = new PeriodicExportingMetricReader({ exporter });
  const meter = new MeterProvider({ readers: [reader] }).getMeter('fixture');
  let findings = ['a', 'b'];
  meter.createObservableGauge('findings').addCallback((result) => {
    for (const kind of findings) result.observe(1, { kind });
  });
  const counter = meter.createCounter('calls');
  const exported = async () => {
    exporter.reset();
    counter.add(1);
    await reader.forceFlush();
    const metrics = exporter.getMetrics().flatMap(({ scopeMetrics }) => scopeMetrics.flatMap((scope) => scope.metrics));
    return metrics.flatMap(({ descriptor, dataPoints }) =>
      dataPoints.map(({ attributes, value }) => [descriptor.name, attributes.kind, value]),
    );
  };
  expect(await exported()).toEqual([
    ['findings', 'a', 1],
    ['findings', 'b', 1],
    ['calls', undefined, 1],
  ]);
  findings = ['b'];
  expect(await exported()).toEqual([
    ['findings', 'b', 1],
    ['calls', undefined, 2],
  ]);
  findings = [];
  expect(await exported()).toEqual([['calls', undefined, 3]]);
  await reader.shutdown();
});

test.each([
  ['/', 'GET'],
  ['/metrics/other', 'GET'],
  ['/metrics', 'POST'],
])('%s by %s is answered with 404', async (path, method) => {
  const { get } = await started();
  const answer = await get(path, method);
  expect([answer.status, await answer.text()]).toEqual([404, 'not found; GET /metrics\n']);
});

test('a page that cannot be made is answered with the reason', async () => {
  const { endpoint, get } = await started();
  vi.spyOn(endpoint.reader, 'collect').mockRejectedValue(new Error('no meter'));
  const answer = await get();
  expect([answer.status, await answer.text()]).toEqual([500, 'metrics cannot be collected: no meter\n']);
});

test('the answer is Prometheus’ text format, whatever the query', async () => {
  const { get } = await started();
  const answer = await get('/metrics?name[]=up');
  expect(answer.headers.get('content-type')).toBe('text/plain; version=0.0.4; charset=utf-8');
});

describe('a flood of requests', () => {
  /** @returns the endpoint, and the number of pages that it made */
  async function counted() {
    const parts = await started();
    const pages = { count: 0 };
    parts.meter.createObservableGauge('pages').addCallback(() => {
      pages.count++;
    });
    return { ...parts, pages };
  }

  /** A connection that sends the texts. @returns what it received until its end */
  async function send(port: number, text: string): Promise<string> {
    const socket = connect(port, '127.0.0.1', () => socket.write(text));
    socket.on('error', () => undefined);
    let received = '';
    socket.setEncoding('latin1').on('data', (part: string) => (received += part));
    await new Promise((resolve) => socket.once('close', resolve));
    return received;
  }

  const REQUEST = 'GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n';
  const OTHER_REQUEST = REQUEST.replace('/metrics', '/');

  test('a connection has one request, however many it sends at once', async () => {
    const { endpoint, pages } = await counted();
    expect((await send(endpoint.port!, REQUEST)).match(/HTTP\/1.1 200/g)).toHaveLength(1);
    expect((await send(endpoint.port!, REQUEST.repeat(50))).match(/HTTP\/1.1 200/g) ?? []).toEqual([]);
    expect(pages.count).toBe(1);
  });

  test('requests of one second wait for one page, also requests for another path', async () => {
    const { endpoint, pages, clock } = await counted();
    await send(endpoint.port!, REQUEST);
    const answers = [REQUEST, REQUEST, OTHER_REQUEST].map((text) => send(endpoint.port!, text));
    await expect.poll(() => clock.sleeping).toBe(1);
    const silence = new Promise((resolve) => setTimeout(resolve, 50, 'none'));
    expect(await Promise.race([silence, ...answers])).toBe('none');
    expect([clock.sleeping, pages.count]).toEqual([1, 1]);
    clock.advance(1000);
    expect((await Promise.all(answers)).map((text) => text.split('\r\n')[0])).toEqual([
      'HTTP/1.1 200 OK',
      'HTTP/1.1 200 OK',
      'HTTP/1.1 404 Not Found',
    ]);
    expect(pages.count).toBe(2);
  });

  test('a source has few connections, and gets further ones once some end', async () => {
    const { endpoint } = await counted();
    const open = await Promise.all(
      [1, 2, 3, 4].map(async () => {
        const socket = connect(endpoint.port!, '127.0.0.1');
        await once(socket, 'connect');
        return socket;
      }),
    );
    expect(await send(endpoint.port!, REQUEST)).toBe('');
    open[0]!.destroy();
    await expect.poll(() => send(endpoint.port!, REQUEST)).toContain('HTTP/1.1 200');
    for (const socket of open) socket.destroy();
  });
});

test('with a token, only requests that show it get a page, also after it was replaced', async () => {
  const tokenFile = join(mkdtempSync(join(tmpdir(), 'podwire-token-')), 'token');
  ends.push(() => rm(dirname(tokenFile), { recursive: true }));
  const { get } = await started({ tokenFile });
  const status = async (authorization?: string) =>
    (await get('/metrics', 'GET', authorization === undefined ? {} : { authorization })).status;
  expect(await status('Bearer ')).toBe(401);
  writeFileSync(tokenFile, 'first\n');
  expect([await status(), await status('Bearer other'), await status('Bearer first')]).toEqual([401, 401, 200]);
  writeFileSync(tokenFile, 'second');
  expect([await status('Bearer first'), await status('Bearer second')]).toEqual([401, 200]);
  writeFileSync(tokenFile, '');
  expect(await status('Bearer ')).toBe(401);
});

describe('a port in use', () => {
  test('is logged once, and served once it is free', async () => {
    const blocker = createServer().listen(0, '127.0.0.1');
    await once(blocker, 'listening');
    const address = blocker.address();
    const port = typeof address === 'object' && address ? address.port : 0;
    const { endpoint, clock, lines } = await started({ port });
    clock.advance(1000);
    await expect.poll(() => clock.sleeping).toBe(1);
    expect(endpoint.port).toBeUndefined();
    blocker.close();
    await once(blocker, 'close');
    clock.advance(1000);
    await expect.poll(() => endpoint.port).toBe(port);
    expect(lines.map(({ level, msg }) => [level, msg])).toEqual([
      ['warn', expect.stringContaining(`metrics: cannot listen on 127.0.0.1:${port}: another process uses the port`)],
      ['info', `metrics: http://127.0.0.1:${port}/metrics`],
    ]);
  });

  test('is not tried again after the stop', async () => {
    const { endpoint: first } = await started();
    const { endpoint, clock } = await started({ port: first.port! });
    expect(clock.sleeping).toBe(1);
    await endpoint.stop();
    expect(clock.sleeping).toBe(0);
  });
});

test('an address that the machine does not have is logged', async () => {
  const { lines } = await started({ host: '192.0.2.1' });
  expect(lines[0]).toMatchObject({ level: 'warn', msg: expect.stringContaining('EADDRNOTAVAIL') });
});

import { once } from 'node:events';
import { createServer } from 'node:net';

import { resourceFromAttributes } from '@opentelemetry/resources';
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from '@opentelemetry/sdk-metrics';
import { afterEach, describe, expect, test } from 'vitest';

import { ManualClock } from '../testing/manual-clock.js';
import { recordingLog } from '../testing/server.js';
import { withTemporality } from './exporters.js';
import { PrometheusEndpoint } from './prometheus.js';

const ends: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const end of ends.splice(0)) await end();
});

async function started({ port = 0, host = '127.0.0.1', aliases = {} } = {}) {
  const { log, lines } = recordingLog();
  const clock = new ManualClock();
  const endpoint = new PrometheusEndpoint({ host, port, aliases, log, clock });
  const resource = resourceFromAttributes({ 'service.name': 'fixture', 'k8s.node.name': 'node-1' });
  const meter = new MeterProvider({ resource, readers: [endpoint.reader] }).getMeter('fixture');
  await endpoint.start();
  ends.push(() => endpoint.stop());
  const get = (path = '/metrics', method = 'GET') => fetch(`http://127.0.0.1:${endpoint.port}${path}`, { method });
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

test('a series of an observed gauge ends with its object; what was counted stays', async () => {
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

test('the answer is Prometheus’ text format, whatever the query', async () => {
  const { get } = await started();
  const answer = await get('/metrics?name[]=up');
  expect(answer.headers.get('content-type')).toBe('text/plain; version=0.0.4; charset=utf-8');
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

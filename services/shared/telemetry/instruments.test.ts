import { context, metrics, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { ManualClock } from '../testing/manual-clock.js';
import { ReadMetrics } from '../testing/metrics.js';
import { recordingLog } from '../testing/server.js';
import {
  counter,
  histogram,
  observeMetrics,
  observeReadiness,
  onFirstUse,
  upDownCounter,
  withoutTelemetry,
  type GaugeName,
} from './instruments.js';
import { METRICS, metricOf, type MetricName } from './metrics.js';
import { PrometheusEndpoint } from './prometheus.js';

afterEach(() => metrics.disable());

function isGauge(name: string): name is GaugeName {
  return name in METRICS;
}

describe('a counter', () => {
  const clock = new ManualClock();
  const options = { host: '127.0.0.1', port: 0, aliases: {}, log: recordingLog().log, clock };
  let endpoint: PrometheusEndpoint;

  beforeEach(() => {
    endpoint = new PrometheusEndpoint(options);
    metrics.setGlobalMeterProvider(new MeterProvider({ readers: [endpoint.reader] }));
  });

  const collected = async (name: string) => {
    const { resourceMetrics } = await endpoint.reader.collect();
    const found = resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics);
    const { dataPoints = [] } = found.find(({ descriptor }) => descriptor.name === name) ?? {};
    return dataPoints.map(({ value, attributes }) => ({ value, attributes }));
  };

  test('exists with 0 for each combination of its labels, so that an increase shows its first event', async () => {
    counter('podwire.ipam.nodes').add(1, { event: 'deleted' });
    expect(await collected('podwire.ipam.nodes')).toEqual([
      { value: 0, attributes: { event: 'registered' } },
      { value: 0, attributes: { event: 'changed' } },
      { value: 1, attributes: { event: 'deleted' } },
    ]);
    counter('podwire.rpc.requests.refused');
    expect(await collected('podwire.rpc.requests.refused')).toHaveLength(24);
  });

  test('without labels exists with 0', async () => {
    counter('podwire.store.conflicts');
    expect(await collected('podwire.store.conflicts')).toEqual([{ value: 0, attributes: {} }]);
  });

  test('that is made, or first used, in work without telemetry counts nothing there, and everything elsewhere', async () => {
    context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
    const conflicts = onFirstUse(() => counter('podwire.store.conflicts'));
    await withoutTelemetry(async () => {
      counter('podwire.ipam.nodes').add(1, { event: 'deleted' });
      await Promise.resolve();
      conflicts().add(1);
      expect(trace.getTracer('podwire').startSpan('a pod').isRecording()).toBe(false);
    });
    expect(await collected('podwire.ipam.nodes')).toEqual([]);
    conflicts().add(2);
    expect(await collected('podwire.store.conflicts')).toEqual([{ value: 2, attributes: {} }]);
    context.disable();
  });

  test('with a label of unknown values does not exist before its first event', async () => {
    counter('podwire.dataplane.nft.writes');
    expect(await collected('podwire.dataplane.nft.writes')).toEqual([]);
  });
});

test('a gauge of differences has their sum, and metrics that are read are read until their end', async () => {
  const read = new ReadMetrics('podwire.');
  const inFlight = upDownCounter('podwire.plugin.commands.in_flight');
  inFlight.add(2, { command: 'ADD' });
  inFlight.add(-1, { command: 'ADD' });
  let isReady = true;
  const ends = [
    observeReadiness(() => isReady),
    observeMetrics(['podwire.plugin.journal.entries'], (observe) => observe('podwire.plugin.journal.entries', 7)),
  ];
  histogram('podwire.store.duration').record(0.5, { operation: 'commit' });
  const lines = await read.read();
  expect(lines).toEqual(
    expect.arrayContaining([
      'plugin.commands.in_flight command=ADD 1',
      'plugin.journal.entries 7',
      'ready 1',
      'store.duration operation=commit 0.5',
    ]),
  );
  isReady = false;
  expect(await read.read()).toContain('ready 0');
  for (const end of ends) end();
  expect((await read.read()).filter((line) => /^(ready|plugin.journal)/.test(line))).toEqual([]);
});

const GAUGES = Object.entries(METRICS).flatMap(([name, { kind }]) => (kind === 'gauge' && isGauge(name) ? [name] : []));

test.each(GAUGES)('a scrape has a series of %s until its object ends', async (name) => {
  const clock = new ManualClock();
  const endpoint = new PrometheusEndpoint({ host: '127.0.0.1', port: 0, log: recordingLog().log, aliases: {}, clock });
  metrics.setGlobalMeterProvider(new MeterProvider({ readers: [endpoint.reader] }));
  await endpoint.start();
  const series = async () => {
    clock.advance(1000);
    const page = await (await fetch(`http://127.0.0.1:${endpoint.port}/metrics`)).text();
    return page.split('\n').flatMap((line) => /object="([^"]*)"/.exec(line)?.[1] ?? []);
  };
  const objects = new Set(['a', 'b']);
  const end = observeMetrics([name], (observe) => {
    for (const object of objects) observe(name, 1, { object });
  });
  expect(await series()).toEqual(['a', 'b']);
  objects.delete('a');
  expect(await series()).toEqual(['b']);
  end();
  expect(await series()).toEqual([]);
  await endpoint.stop();
});

test('an instrument of a module is made at its first use, once', () => {
  let made = 0;
  const use = onFirstUse(() => ++made);
  expect(made).toBe(0);
  expect([use(), use()]).toEqual([1, 1]);
});

test.each(Object.keys(METRICS).filter((name): name is MetricName => name in METRICS))(
  '%s is well described',
  (name) => {
    const { kind, unit, about, buckets } = metricOf(name);
    expect(name).toMatch(/^(podwire|process|v8js|nodejs|rpc)(\.[a-z0-9]+(_[a-z0-9]+)*)+$/);
    expect(unit).toMatch(/^(s|By|\{[a-z_]+\}|)$/);
    expect(about).toMatch(/^[A-Z0-9].*[^.]$/);
    expect(buckets !== undefined).toBe(kind === 'histogram');
    expect(buckets ?? []).toEqual([...(buckets ?? [])].sort((a, b) => a - b));
  },
);

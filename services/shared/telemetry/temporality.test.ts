import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from '@opentelemetry/sdk-metrics';
import { expect, test } from 'vitest';

import { withTemporality } from './temporality.js';

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

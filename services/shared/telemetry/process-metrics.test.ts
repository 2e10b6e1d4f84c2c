import process from 'node:process';

import { metrics } from '@opentelemetry/api';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
import { expect, test } from 'vitest';

import { ManualClock } from '../testing/manual-clock.js';
import { recordingLog } from '../testing/server.js';
import { observeProcess } from './process-metrics.js';
import { PrometheusEndpoint } from './prometheus.js';

const { reader } = new PrometheusEndpoint({
  host: '127.0.0.1',
  port: 0,
  aliases: {},
  log: recordingLog().log,
  clock: new ManualClock(),
});

test('a process reports its build, memory, processor time, files and event loop', async () => {
  metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));
  observeProcess('1.2.3');
  // The delay of the event loop is sampled every 10 ms.
  await new Promise((resolve) => setTimeout(resolve, 50));
  const { resourceMetrics, errors } = await reader.collect();
  expect(errors).toEqual([]);
  const collected = resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics);
  const points = (name: string) =>
    collected
      .find(({ descriptor }) => descriptor.name === name)
      ?.dataPoints.map(({ value, attributes }) => ({ value, attributes }));
  expect(points('podwire.build.info')).toEqual([
    { value: 1, attributes: { version: '1.2.3', node_version: process.version } },
  ]);
  expect(points('process.cpu.time')?.map(({ attributes }) => attributes)).toEqual([
    { 'cpu.mode': 'user' },
    { 'cpu.mode': 'system' },
  ]);
  const values = ['process.memory.usage', 'v8js.memory.heap.used', 'process.unix.file_descriptor.count'];
  for (const name of values)
    expect(points(name), name).toEqual([{ value: expect.toSatisfy((value) => value > 0), attributes: {} }]);
  expect(points('nodejs.eventloop.delay.p99')).toEqual([
    { value: expect.toSatisfy((value) => value >= 0 && value < 5), attributes: {} },
  ]);
  expect(points('nodejs.eventloop.utilization')).toEqual([
    { value: expect.toSatisfy((value) => value >= 0 && value <= 1), attributes: {} },
  ]);
});

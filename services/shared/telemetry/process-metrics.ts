import { readdirSync } from 'node:fs';
import { monitorEventLoopDelay, performance } from 'node:perf_hooks';
import process from 'node:process';

import { metrics, type BatchObservableResult, type Observable } from '@opentelemetry/api';

const NS_PER_SECOND = 1e9;

/** The event loop is sampled by a timer of this period, in milliseconds; the histogram contains the period. */
const SAMPLE_MS = 10;
const US_PER_SECOND = 1e6;
const MS_PER_SECOND = 1000;

/**
 * Metrics of the process, with the names of OpenTelemetry's semantic conventions (1.44, "Process", "Node.js", "V8"), and the
 * build. Read when they are collected.
 */
export function observeProcess(version: string): void {
  const meter = metrics.getMeter('podwire-process');
  const gauge = (name: string, unit: string, description: string): Observable =>
    meter.createObservableGauge(name, { unit, description });
  const build = gauge('podwire.build.info', '', 'Always 1; the labels name the build');
  const memory = gauge('process.memory.usage', 'By', 'Resident memory');
  const files = gauge('process.unix.file_descriptor.count', '{file_descriptor}', 'Open file descriptors');
  const heap = gauge('v8js.memory.heap.used', 'By', 'Used JavaScript heap');
  const utilization = gauge(
    'nodejs.eventloop.utilization',
    '',
    'Share of the time since the last collection that the event loop was busy',
  );
  const delays = {
    p50: gauge('nodejs.eventloop.delay.p50', 's', 'Delay of the event loop since the last collection, median'),
    p99: gauge('nodejs.eventloop.delay.p99', 's', 'Delay of the event loop since the last collection, 99th percentile'),
    max: gauge('nodejs.eventloop.delay.max', 's', 'Delay of the event loop since the last collection, maximum'),
  };
  const cpu = meter.createObservableCounter('process.cpu.time', { unit: 's', description: 'Processor time' });
  const histogram = monitorEventLoopDelay({ resolution: SAMPLE_MS });
  histogram.enable();
  let before = performance.eventLoopUtilization();
  const observe = (result: BatchObservableResult): void => {
    result.observe(build, 1, { version, node_version: process.version });
    result.observe(memory, process.memoryUsage.rss());
    result.observe(heap, process.memoryUsage().heapUsed);
    result.observe(files, readdirSync('/proc/self/fd').length);
    const { user, system } = process.cpuUsage();
    result.observe(cpu, user / US_PER_SECOND, { 'cpu.mode': 'user' });
    result.observe(cpu, system / US_PER_SECOND, { 'cpu.mode': 'system' });
    const now = performance.eventLoopUtilization();
    result.observe(utilization, performance.eventLoopUtilization(now, before).utilization);
    before = now;
    if (histogram.count > 0) {
      const delay = (durationNs: number): number => Math.max(0, durationNs / NS_PER_SECOND - SAMPLE_MS / MS_PER_SECOND);
      result.observe(delays.p50, delay(histogram.percentile(50)));
      result.observe(delays.p99, delay(histogram.percentile(99)));
      result.observe(delays.max, delay(histogram.max));
      histogram.reset();
    }
  };
  meter.addBatchObservableCallback(observe, [build, memory, files, heap, utilization, cpu, ...Object.values(delays)]);
}

import { readdirSync } from 'node:fs';
import { monitorEventLoopDelay, performance } from 'node:perf_hooks';
import process from 'node:process';

import { observeMetrics } from './instruments.js';

const NS_PER_SECOND = 1e9;

/** The event loop is sampled by a timer of this period, in milliseconds; the histogram contains the period. */
const SAMPLE_MS = 10;
const US_PER_SECOND = 1e6;
const MS_PER_SECOND = 1000;

const NAMES = [
  'podwire.build.info',
  'process.cpu.time',
  'process.memory.usage',
  'process.unix.file_descriptor.count',
  'v8js.memory.heap.used',
  'nodejs.eventloop.utilization',
  'nodejs.eventloop.delay.p99',
] as const;

/**
 * Metrics of the process, with the names of OpenTelemetry's semantic conventions (1.44, "Process", "Node.js", "V8"), and the
 * build. Read when they are collected.
 */
export function observeProcess(version: string): void {
  const histogram = monitorEventLoopDelay({ resolution: SAMPLE_MS });
  histogram.enable();
  const delay = (durationNs: number): number => Math.max(0, durationNs / NS_PER_SECOND - SAMPLE_MS / MS_PER_SECOND);
  let before = performance.eventLoopUtilization();
  observeMetrics(NAMES, (observe) => {
    observe('podwire.build.info', 1, { version, node_version: process.version });
    observe('process.memory.usage', process.memoryUsage.rss());
    observe('v8js.memory.heap.used', process.memoryUsage().heapUsed);
    observe('process.unix.file_descriptor.count', readdirSync('/proc/self/fd').length);
    const { user, system } = process.cpuUsage();
    observe('process.cpu.time', user / US_PER_SECOND, { 'cpu.mode': 'user' });
    observe('process.cpu.time', system / US_PER_SECOND, { 'cpu.mode': 'system' });
    const now = performance.eventLoopUtilization();
    observe('nodejs.eventloop.utilization', performance.eventLoopUtilization(now, before).utilization);
    before = now;
    if (histogram.count === 0) return;
    observe('nodejs.eventloop.delay.p99', delay(histogram.percentile(99)));
    histogram.reset();
  });
}

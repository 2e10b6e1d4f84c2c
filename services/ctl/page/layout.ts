import type { Phase } from '@podwire/shared/telemetry/phases';

import type { Add } from './data.js';

/** The place of a bar on its axis. */
export interface Bar {
  readonly leftPercent: number;
  readonly widthPercent: number;
}

export const PHASE_TEXTS: Readonly<Record<Phase, string>> = {
  shim: 'start of the CNI program until podwire-node has its request',
  queue: 'wait for earlier commands of the attachment',
  plugin: 'CNI command in podwire-node',
  delegate: 'a delegated IPAM plugin',
  rpc: 'between podwire-node and podwire-ipam',
  ipam: 'podwire-ipam',
  ipam_queue: 'wait in podwire-ipam before execution',
  datastore: 'wait for the datastore',
  dataplane: 'dataplane in podwire-node',
  lock: 'wait for a lock of the dataplane',
  kernel: 'requests to the kernel',
};

/** A narrower bar is invisible. */
const MIN_WIDTH_PERCENT = 0.5;

const AXIS_STEPS = [1, 2, 2.5, 5, 10];

/** Milliseconds with three significant figures. */
export function msText(ms: number): string {
  return ms.toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0);
}

/**
 * Ticks of an axis at round numbers, from 0.
 * @returns at least two; only the last one reaches `maxMs`
 */
export function ticksOf(maxMs: number, maxIntervals = 5): number[] {
  const roughStep = Math.max(maxMs, 0.01) / maxIntervals;
  const power = 10 ** Math.floor(Math.log10(roughStep));
  const step = power * (AXIS_STEPS.find((factor) => factor * power >= roughStep) ?? 10);
  const count = Math.max(1, Math.ceil(maxMs / step));
  return Array.from({ length: count + 1 }, (_, index) => Number((index * step).toPrecision(6)));
}

/** The phases of an ADD, each beginning where the one before ends. */
export function stackOf(phases: Add['phases'], axisMs: number): (Bar & Add['phases'][number])[] {
  let beforeMs = 0;
  return phases.map((part) => {
    const leftPercent = (100 * beforeMs) / axisMs;
    beforeMs += part.ms;
    return { ...part, leftPercent, widthPercent: (100 * part.ms) / axisMs };
  });
}

/** An interval on an axis from 0 to `axisMs`, which it never leaves. */
export function barOf({ startMs, durationMs }: { startMs: number; durationMs: number }, axisMs: number): Bar {
  const percent = (ms: number): number => Math.min(100, Math.max(0, (100 * ms) / axisMs));
  const leftPercent = Math.min(percent(startMs), 100 - MIN_WIDTH_PERCENT);
  return { leftPercent, widthPercent: Math.max(MIN_WIDTH_PERCENT, percent(startMs + durationMs) - leftPercent) };
}

/** The phase with the most time; undefined without any. */
export function longestPhase(phases: Add['phases']): Add['phases'][number] | undefined {
  return [...phases].sort((a, b) => b.ms - a.ms)[0];
}

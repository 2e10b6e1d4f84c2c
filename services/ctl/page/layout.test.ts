import { PHASES } from '@podwire/shared/telemetry/phases';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { barOf, longestPhase, msText, PHASE_TEXTS, stackOf, ticksOf } from './layout.js';

test.each([
  [0, '0.00'],
  [9.994, '9.99'],
  [12.34, '12.3'],
  [123.4, '123'],
])('%d ms is written as %s', (ms, text) => {
  expect(msText(ms)).toBe(text);
});

test.each([
  [9.2, [0, 2, 4, 6, 8, 10]],
  [60, [0, 20, 40, 60]],
  [0.7, [0, 0.2, 0.4, 0.6, 0.8]],
  [1300, [0, 500, 1000, 1500]],
])('the axis for %d ms has round ticks', (maxMs, ticksMs) => {
  expect(ticksOf(maxMs)).toEqual(ticksMs);
});

test('an axis has up to five intervals, and its last tick is the first to reach the longest bar', () => {
  fc.assert(
    fc.property(fc.double({ min: 0, max: 1e6, noNaN: true }), (maxMs) => {
      const ticksMs = ticksOf(maxMs);
      expect(ticksMs.length).toBeGreaterThanOrEqual(2);
      expect(ticksMs.length).toBeLessThanOrEqual(6);
      expect(ticksMs.at(-1)).toBeGreaterThanOrEqual(maxMs * (1 - 1e-5));
      if (ticksMs.length > 2) expect(ticksMs.at(-2)).toBeLessThan(maxMs);
    }),
  );
});

test('phases are stacked without gaps', () => {
  const phases = [
    { phase: 'shim', ms: 1 },
    { phase: 'plugin', ms: 3 },
    { phase: 'kernel', ms: 4 },
  ] as const;
  expect(stackOf(phases, 16).map(({ leftPercent, widthPercent }) => [leftPercent, widthPercent])).toEqual([
    [0, 6.25],
    [6.25, 18.75],
    [25, 25],
  ]);
  expect(longestPhase(phases)).toEqual({ phase: 'kernel', ms: 4 });
  expect(longestPhase([])).toBeUndefined();
});

test.each([
  ['within the axis', { startMs: 2, durationMs: 4 }, { leftPercent: 20, widthPercent: 40 }],
  ['that begins before the axis', { startMs: -2, durationMs: 4 }, { leftPercent: 0, widthPercent: 20 }],
  ['that ends after the axis', { startMs: 8, durationMs: 4 }, { leftPercent: 80, widthPercent: 20 }],
  ['too short to see', { startMs: 5, durationMs: 0 }, { leftPercent: 50, widthPercent: 0.5 }],
  ['at the end of the axis', { startMs: 10, durationMs: 0 }, { leftPercent: 99.5, widthPercent: 0.5 }],
])('an interval %s has a bar on it', (_, interval, bar) => {
  expect(barOf(interval, 10)).toEqual(bar);
});

test('the legend has the phases in the order of stacking', () => {
  expect(Object.keys(PHASE_TEXTS)).toEqual(PHASES);
});

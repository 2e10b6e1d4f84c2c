import fc from 'fast-check';
import { expect, test } from 'vitest';

import { PHASES, timeByPhase, withRest, type Interval, type Phase } from './phases.js';

const interval = (phase: Phase, startMs: number, durationMs: number, depth = 0): Interval => ({
  name: phase,
  phase,
  startMs,
  durationMs,
  depth,
});

test('the time of an inner interval is not part of the outer one’s phase', () => {
  const intervals = [
    interval('shim', 0, 1),
    interval('rpc', 2, 5),
    interval('ipam', 3, 3, 1),
    interval('datastore', 4, 1, 2),
  ];
  const times = Object.fromEntries(timeByPhase(intervals, 10));
  expect(times).toEqual({ shim: 1, plugin: 4, rpc: 2, ipam: 2, datastore: 1 });
});

test('a command without intervals is time of the plugin', () => {
  expect([...timeByPhase([], 7)]).toEqual([['plugin', 7]]);
});

test('an interval that reaches beyond the command counts up to its borders', () => {
  expect(Object.fromEntries(timeByPhase([interval('queue', -5, 100)], 10))).toEqual({ plugin: 0, queue: 10 });
});

test('each time of at least 1 ms that no interval covers is a step of podwire-node', () => {
  const rest = (startMs: number, durationMs: number) => ({
    ...interval('plugin', startMs, durationMs),
    name: 'podwire-node',
  });
  const [shim, queue] = [interval('shim', 0, 2), interval('queue', 2.5, 1)];
  const [attach, kernel] = [interval('dataplane', 9.5, 4), interval('kernel', 11, 1, 1)];
  expect(withRest([shim, queue, attach, kernel], 14.5)).toEqual([
    shim,
    queue,
    rest(3.5, 6),
    attach,
    kernel,
    rest(13.5, 1),
  ]);
  expect(withRest([], 3)).toEqual([rest(0, 3)]);
  expect(withRest([shim], 2.5)).toEqual([shim]);
});

/** Looks at each millisecond by itself. */
function slowTimes(intervals: readonly Interval[], totalMs: number): Map<Phase, number> {
  const times = new Map<Phase, number>();
  for (let ms = 0; ms < totalMs; ms++) {
    let owner: Interval | undefined;
    for (const candidate of intervals) {
      if (candidate.startMs > ms || candidate.startMs + candidate.durationMs < ms + 1) continue;
      const isDeeper = !owner || candidate.depth > owner.depth;
      const isLater = owner?.depth === candidate.depth && Math.max(0, candidate.startMs) >= Math.max(0, owner.startMs);
      if (isDeeper || isLater) owner = candidate;
    }
    const phase = owner?.phase ?? 'plugin';
    times.set(phase, (times.get(phase) ?? 0) + 1);
  }
  return times;
}

test('each moment belongs to the deepest and latest interval, and the phases add up', () => {
  const anyInterval = fc.record({
    phase: fc.constantFrom(...PHASES),
    startMs: fc.integer({ min: -3, max: 30 }),
    durationMs: fc.integer({ min: 0, max: 30 }),
    depth: fc.integer({ min: 0, max: 3 }),
  });
  fc.assert(
    fc.property(fc.array(anyInterval, { maxLength: 12 }), fc.integer({ min: 0, max: 30 }), (drawn, totalMs) => {
      const intervals = drawn.map((each) => ({ name: each.phase, ...each }));
      const times = timeByPhase(intervals, totalMs);
      const slow = slowTimes(intervals, totalMs);
      for (const phase of PHASES) expect(times.get(phase) ?? 0, phase).toBe(slow.get(phase) ?? 0);
      expect([...times.values()].reduce((sum, ms) => sum + ms, 0)).toBe(totalMs);
    }),
  );
});

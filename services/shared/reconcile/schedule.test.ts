import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { backoffMs } from './schedule.js';

const bounds = fc.record({ baseMs: fc.integer({ min: 1, max: 10_000 }), maxMs: fc.integer({ min: 1, max: 60_000 }) });
const random = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });

/** The largest delay by doubling step by step. */
function ceilingMs(attempt: number, { baseMs, maxMs }: { baseMs: number; maxMs: number }): number {
  let ceiling = 2 * baseMs;
  for (let step = 0; step < attempt && ceiling < maxMs; step++) ceiling *= 2;
  return Math.min(ceiling, maxMs);
}

describe('the delay', () => {
  test('is the given fraction of the ceiling, for any number of attempts', () => {
    fc.assert(
      fc.property(bounds, fc.nat(2000), random, (limits, attempt, part) => {
        const delayMs = backoffMs(attempt, limits, part);
        expect(delayMs).toBeGreaterThanOrEqual(0);
        expect(delayMs).toBeLessThanOrEqual(limits.maxMs);
        expect(delayMs).toBeCloseTo(part * ceilingMs(attempt, limits));
      }),
    );
  });

  test('has the base as its first mean, and doubles', () => {
    const means = [0, 1, 2, 3].map((attempt) => backoffMs(attempt, { baseMs: 10, maxMs: 1000 }, 0.5));
    expect(means).toEqual([10, 20, 40, 80]);
  });

  test('spreads clients that have collided often', () => {
    const [one, other] = [0.4, 0.6].map((part) => backoffMs(30, { baseMs: 10, maxMs: 1000 }, part));
    expect([one, other]).toEqual([400, 600]);
  });
});

import { expect, test } from 'vitest';

import { wallClockNs } from './wall-clock.js';

test('the time has the fractions of the monotonic clock between the milliseconds of the clock', () => {
  let trueMs = 1_700_000_000_000.2;
  const nowNs = wallClockNs({ nowMs: () => Math.floor(trueMs), monotonicMs: () => trueMs - 1_699_999_999_000 });
  // The clock's next millisecond shows where within it the monotonic clock is.
  for (let step = 0; step < 1_000; step++) {
    trueMs += 0.01;
    nowNs();
  }
  const before = nowNs();
  trueMs += 0.25;
  expect(Number(nowNs() - before) / 1e6).toBeCloseTo(0.25, 1);
});

test('the time stays within the millisecond of a clock that is set, and of one that drifts', () => {
  let [clockMs, elapsedMs] = [5_000, 0];
  const nowNs = wallClockNs({ nowMs: () => clockMs, monotonicMs: () => elapsedMs });
  const expectWithin = () => {
    const offNs = nowNs() - BigInt(clockMs) * 1_000_000n;
    expect(offNs >= 0n && offNs <= 1_000_000n).toBe(true);
  };
  expectWithin();
  clockMs = 9_000;
  expectWithin();
  clockMs = 2_000;
  expectWithin();
  for (let i = 0; i < 100; i++) {
    clockMs += 3;
    elapsedMs += 2.5;
    expectWithin();
  }
});

import { expect, test } from 'vitest';

import { bootClock } from './boot-clock.js';

test('the time of a suspension counts, and the kernel is rarely read', () => {
  const now = { wallMs: 1_000_000, monotonicMs: 500, bootMs: 70_000, readings: 0 };
  const bootMs = bootClock({ nowMs: () => now.wallMs, monotonicMs: () => now.monotonicMs }, () => {
    now.readings++;
    return now.bootMs;
  });
  const pass = (ms: number, suspendedMs = 0) => {
    now.monotonicMs += ms;
    now.wallMs += ms + suspendedMs;
    now.bootMs += ms + suspendedMs;
  };
  for (let second = 0; second < 9; second++) {
    pass(1000);
    expect(bootMs()).toBe(now.bootMs);
  }
  expect(now.readings).toBe(1);
  pass(100, 7_200_000);
  expect([bootMs(), now.readings]).toEqual([now.bootMs, 2]);
  pass(10_000);
  expect([bootMs(), now.readings]).toEqual([now.bootMs, 3]);
});

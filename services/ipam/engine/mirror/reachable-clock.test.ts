import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { beforeEach, expect, test } from 'vitest';

import { ReachableClock, REPEAT_MS } from './reachable-clock.js';

let clock: ManualClock;
let reachable: ReachableClock;
let beganMs: number;

beforeEach(() => {
  clock = new ManualClock();
  reachable = new ReachableClock(clock);
  beganMs = reachable.nowMs();
});

const passed = (ms: number): number => {
  clock.advance(ms);
  return reachable.nowMs() - beganMs;
};

test('stands still from a failure until nodes have repeated their calls', () => {
  expect(passed(100)).toBe(100);
  reachable.failed();
  expect(passed(REPEAT_MS)).toBe(100);
  expect(passed(50)).toBe(150);
});

test('stands still while it is held, also if calls fail meanwhile', () => {
  expect(passed(100)).toBe(100);
  const release = reachable.hold();
  expect(passed(3_600_000)).toBe(100);
  reachable.failed();
  expect(passed(3_600_000)).toBe(100);
  release();
  expect(passed(50)).toBe(150);
  reachable.failed();
  expect(passed(50)).toBe(150);
});

import { FakeClock } from '@podwire/shared/testing/clock';
import { beforeEach, expect, test } from 'vitest';

import { limitsAfterDisconnect } from './release.js';

let ending: AbortController;
const limitsOf = (deadlineMs: number) =>
  limitsAfterDisconnect(
    { deadlineMs, signal: AbortSignal.abort() },
    { ending: ending.signal, clock: new FakeClock(1_000) },
  );

beforeEach(() => {
  ending = new AbortController();
});

test('work after a disconnect has a time limit, and ends with the process', () => {
  const { deadlineMs, signal } = limitsOf(9_000);
  expect([deadlineMs, signal.aborted]).toEqual([9_000, false]);
  ending.abort();
  expect(signal.aborted).toBe(true);
});

test('work that begins after the process stopped has half a second at most', () => {
  ending.abort();
  expect(limitsOf(9_000)).toMatchObject({ deadlineMs: 1_500, signal: { aborted: false } });
  expect(limitsOf(1_100)).toMatchObject({ deadlineMs: 1_100 });
});

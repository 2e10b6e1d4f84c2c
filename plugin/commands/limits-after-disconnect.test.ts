import { FakeClock } from '@podwire/shared/testing/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { Plugin } from '../testing/plugin.js';
import { limitsAfterDisconnect } from './release.js';

let plugin: Plugin;
let ending: AbortController;
const limitsOf = (deadlineMs: number) => {
  const limits = { deadlineMs: 0, signal: AbortSignal.abort() };
  const tools = { ...plugin.options.tools, limits, ending: ending.signal, clock: new FakeClock(1_000) };
  return limitsAfterDisconnect(tools, deadlineMs);
};

beforeEach(() => {
  plugin = new Plugin();
  ending = new AbortController();
});
afterEach(() => plugin.end());

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

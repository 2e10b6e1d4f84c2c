import { expect, onTestFinished, test, vi } from 'vitest';

import { MAX_TIMER_MS, systemClock } from './clock.js';

const never = new AbortController().signal;

test('the time is the wall clock’s', () => {
  const before = new Date().getTime();
  const nowMs = systemClock.nowMs();
  expect(nowMs).toBeGreaterThanOrEqual(before);
  expect(nowMs).toBeLessThanOrEqual(new Date().getTime());
});

test('a sleep ends after its time, and not before', async () => {
  const before = performance.now();
  await expect(systemClock.sleep(30, never)).resolves.toBe('elapsed');
  // Timers count whole milliseconds of the loop's own clock.
  expect(performance.now() - before).toBeGreaterThan(28);
});

test.each([0, -1])(
  'a sleep of %i ms is a timer of 0, as Node.js 24 warns of negative ones, and ends',
  async (durationMs) => {
    const timers = vi.spyOn(globalThis, 'setTimeout');
    onTestFinished(() => timers.mockRestore());
    const slept = systemClock.sleep(durationMs, never);
    expect(timers).toHaveBeenCalledExactlyOnceWith(expect.any(Function), 0);
    await expect(slept).resolves.toBe('elapsed');
  },
);

test.each([60_000, MAX_TIMER_MS, MAX_TIMER_MS + 1, Number.MAX_VALUE, Infinity])(
  'a sleep of %d ms ends early only with the signal',
  async (durationMs) => {
    const controller = new AbortController();
    const slept = systemClock.sleep(durationMs, controller.signal);
    const other = systemClock.sleep(20, never).then(() => 'still asleep');
    await expect(Promise.race([slept, other])).resolves.toBe('still asleep');
    controller.abort();
    await expect(slept).resolves.toBe('aborted');
  },
);

test('a sleep under an aborted signal does not begin', async () => {
  await expect(systemClock.sleep(60_000, AbortSignal.abort())).resolves.toBe('aborted');
});

test('a timer runs its action after its time, once', async () => {
  const before = performance.now();
  let acts = 0;
  await new Promise<void>((resolve) => {
    systemClock.after(30, () => {
      acts++;
      resolve();
    });
  });
  expect(performance.now() - before).toBeGreaterThan(28);
  await systemClock.sleep(50, never);
  expect(acts).toBe(1);
});

test.each([20, Infinity])('a timer of %d ms does not run after it is cancelled', async (durationMs) => {
  let acts = 0;
  const cancel = systemClock.after(durationMs, () => acts++);
  cancel();
  cancel();
  await systemClock.sleep(50, never);
  expect(acts).toBe(0);
});

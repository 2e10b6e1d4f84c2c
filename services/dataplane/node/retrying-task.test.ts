import { FakeClock } from '@podwire/shared/testing/clock';
import { expect, test } from 'vitest';

import { RetryingTask } from './retrying-task.js';

function repeated(task: (signal: AbortSignal, run: number) => Promise<void>) {
  const clock = new FakeClock();
  const failures: unknown[] = [];
  let runs = 0;
  const options = { clock, random: () => 0.5, backoff: { baseMs: 10, maxMs: 40 } };
  const one = new RetryingTask({
    ...options,
    task: (signal) => task(signal, ++runs),
    onFailure: (error, retryInMs) => failures.push([error, retryInMs]),
  });
  return { one, clock, failures, runs: () => runs };
}

const idle = () => new Promise((resolve) => setImmediate(resolve));

test('runs once for each request', async () => {
  const { one, runs } = repeated(() => Promise.resolve());
  expect(runs()).toBe(0);
  one.request();
  await idle();
  expect(runs()).toBe(1);
  one.request();
  await idle();
  expect(runs()).toBe(2);
});

test('runs once more for many requests during a run, never twice at once', async () => {
  const gates: (() => void)[] = [];
  const { one, runs } = repeated(() => new Promise((resolve) => gates.push(resolve)));
  for (let count = 0; count < 5; count++) one.request();
  expect([runs(), gates.length]).toEqual([1, 1]);
  one.request();
  gates.shift()?.();
  await idle();
  expect([runs(), gates.length]).toEqual([2, 1]);
  gates.shift()?.();
  await idle();
  expect(runs()).toBe(2);
});

test('retries a failed run with a growing back-off, which a success resets', async () => {
  const { one, runs, clock, failures } = repeated((_, run) =>
    run <= 4 || run === 6 ? Promise.reject(new Error(`run ${run}`)) : Promise.resolve(),
  );
  one.request();
  await idle();
  expect(runs()).toBe(5);
  expect(clock.sleepsMs).toEqual([10, 20, 20, 20]);
  one.request();
  await idle();
  expect(runs()).toBe(7);
  expect(clock.sleepsMs.slice(4)).toEqual([10]);
  expect(failures).toHaveLength(5);
});

test('cancels a run and a wait when it is stopped, and runs no more', async () => {
  const { one, runs, failures } = repeated(
    (signal) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('aborted')))),
  );
  one.request();
  await one.stop();
  one.request();
  await one.stop();
  expect([runs(), failures]).toEqual([1, []]);
});

test('restart cancels a run or a wait, without counting it as a failure', async () => {
  const { one, runs, failures, clock } = repeated((signal, run) => {
    if (run === 3) return Promise.reject(new Error('refused'));
    if (run > 3) return Promise.resolve();
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('aborted'))));
  });
  one.request();
  await idle();
  one.request();
  await idle();
  expect(runs()).toBe(1);
  one.restart();
  await idle();
  expect([runs(), failures]).toEqual([2, []]);
  clock.beforeSleep = () => one.restart();
  one.restart();
  await idle();
  expect(runs()).toBe(4);
  expect(failures).toHaveLength(1);
  expect(clock.nowMs()).toBe(1_000_000);
});

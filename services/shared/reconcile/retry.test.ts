import { describe, expect, test } from 'vitest';

import { FakeClock } from '../testing/clock.js';
import { retry, type RetryOptions } from './retry.js';

/** Fails with each error in turn, then succeeds. */
function failing(...errors: readonly Error[]) {
  const calls: number[] = [];
  const operation = () => {
    const error = errors[calls.length];
    calls.push(calls.length);
    return error ? Promise.reject(error) : Promise.resolve('done');
  };
  return { calls, operation };
}

function options(clock: FakeClock, overrides: Partial<RetryOptions> = {}): RetryOptions {
  return {
    attempts: 4,
    backoff: { baseMs: 10, maxMs: 1000 },
    clock,
    random: () => 0.5,
    signal: new AbortController().signal,
    retryable: () => true,
    ...overrides,
  };
}

const errors = ['first', 'second', 'third', 'fourth', 'fifth'].map((text) => new Error(text));

describe('retry', () => {
  test('returns the first success, after a growing delay for each failure', async () => {
    const clock = new FakeClock();
    const { calls, operation } = failing(...errors.slice(0, 3));
    await expect(retry(operation, options(clock))).resolves.toBe('done');
    expect(calls).toHaveLength(4);
    expect(clock.sleepsMs).toEqual([10, 20, 40]);
  });

  test('throws the error of the last attempt, without a wait after it', async () => {
    const clock = new FakeClock();
    const { calls, operation } = failing(...errors);
    await expect(retry(operation, options(clock))).rejects.toBe(errors[3]);
    expect(calls).toHaveLength(4);
    expect(clock.sleepsMs).toHaveLength(3);
  });

  test('throws a permanent failure at once', async () => {
    const clock = new FakeClock();
    const { calls, operation } = failing(...errors);
    await expect(retry(operation, options(clock, { retryable: (error) => error !== errors[1] }))).rejects.toBe(
      errors[1],
    );
    expect(calls).toHaveLength(2);
    expect(clock.sleepsMs).toEqual([10]);
  });

  test('ends the wait when the signal is aborted', async () => {
    const clock = new FakeClock();
    const controller = new AbortController();
    clock.beforeSleep = () => controller.abort();
    const { calls, operation } = failing(...errors);
    await expect(retry(operation, options(clock, { signal: controller.signal }))).rejects.toBe(errors[0]);
    expect(calls).toHaveLength(1);
    expect(clock.sleepsMs).toEqual([10]);
  });

  test('does not wait when the signal was aborted during the attempt', async () => {
    const clock = new FakeClock();
    const { calls, operation } = failing(...errors);
    await expect(retry(operation, options(clock, { signal: AbortSignal.abort() }))).rejects.toBe(errors[0]);
    expect(calls).toHaveLength(1);
    expect(clock.sleepsMs).toEqual([]);
  });
});

import fc from 'fast-check';
import { expect, test } from 'vitest';

import { PoolForecast } from './forecast.js';

const MINUTE_MS = 60_000;

/** A forecast after samples at intervals of a minute. */
function forecast(counts: readonly number[], intervalMs = MINUTE_MS): number | undefined {
  const pools = new PoolForecast();
  counts.forEach((count, index) => pools.sample(index * intervalMs, new Map([['main', count]])));
  return pools.fullInSeconds('main');
}

const falling = (from: number, by: number, count: number): number[] =>
  Array.from({ length: count }, (_, index) => from - index * by);

test('a pool that loses 10 addresses a minute and has 100 is full in 10 minutes', () => {
  expect(forecast(falling(190, 10, 10))).toBe(600);
});

test('a full pool is full now', () => {
  expect(forecast(falling(90, 10, 10))).toBe(0);
});

test.each([
  ['it is too new', falling(900, 10, 9)],
  ['its use is constant', falling(900, 0, 60)],
  ['its use falls', falling(100, -1, 60)],
  ['it lasts longer than a month', falling(10 ** 9, 1, 60)],
])('a pool has no forecast while %s', (_, counts) => {
  expect(forecast(counts)).toBeUndefined();
});

test('samples within a minute count once', () => {
  expect(forecast(falling(900, 10, 500), 1000)).toBeUndefined();
});

test('a pool that was deleted starts again', () => {
  const pools = new PoolForecast();
  for (const [index, count] of falling(900, 10, 20).entries())
    pools.sample(index * MINUTE_MS, new Map([['main', count]]));
  pools.sample(20 * MINUTE_MS, new Map());
  pools.sample(21 * MINUTE_MS, new Map([['main', 1]]));
  expect(pools.fullInSeconds('main')).toBeUndefined();
});

test('only the last hour counts', () => {
  const counts = [...falling(10_000, 100, 50), ...falling(4000, 1, 60)];
  expect(forecast(counts)).toBe((4000 - 59) * 60);
});

test('the forecast of a steady loss is exact, whatever its rate', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 1000 }), fc.integer({ min: 0, max: 10_000 }), (by, left) => {
      const seconds = forecast(falling(left + 19 * by, by, 20));
      expect(seconds).toBe(Math.round((left / by) * 60));
    }),
  );
});

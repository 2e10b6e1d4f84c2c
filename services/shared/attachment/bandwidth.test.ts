import { expect, test } from 'vitest';

import { bandwidthOf, checkRateLimit, formatRateLimit, type RateLimit } from './bandwidth.js';

const faults = (limit: RateLimit) => {
  const found: string[] = [];
  checkRateLimit(limit, (field, reason) => found.push(`${field} ${reason}`));
  return found;
};

const limit = (rateBitsPerSecond: number, burstBits?: number): RateLimit => ({ rateBitsPerSecond, burstBits });

test.each([limit(1000), limit(10 ** 15, 1000), limit(1000, 34_359_738_360)])('%j is a limit', (each) => {
  expect(faults(each)).toEqual([]);
});

test('every field out of range is reported', () => {
  expect(faults(limit(999, 34_359_738_361))).toEqual([
    'rateBitsPerSecond is 999 bit/s; it must be a whole number from 1000 to 1000000000000000 bit/s',
    'burstBits is 34359738361 bit; it must be a whole number from 1000 to 34359738360 bit',
  ]);
  expect(faults(limit(1000.5, 999))).toHaveLength(2);
  expect(faults(limit(Number.NaN))).toHaveLength(1);
});

test.each([
  [limit(10_000_000), '10M'],
  [limit(1_500_000, 1_000_000_000), '1500k burst 1G'],
  [limit(10 ** 15, 1024), '1P burst 1024'],
])('%j is shown as %s', (each, text) => {
  expect(formatRateLimit(each)).toBe(text);
});

test('a direction without a limit is absent', () => {
  expect(bandwidthOf(undefined, undefined)).toBeUndefined();
  expect(bandwidthOf(limit(1000), undefined)).toEqual({ ingress: limit(1000) });
  expect(bandwidthOf(undefined, limit(1000))).toEqual({ egress: limit(1000) });
});

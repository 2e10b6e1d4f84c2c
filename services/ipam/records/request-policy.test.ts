import { expect, test } from 'vitest';

import { formatMacRange, macInRange, parseMacRange } from './request-policy.js';

test.each([
  ['02:00:00:00:00:07', '02:00:00:00:00:07'],
  ['02:00:00:00:00:07/48', '02:00:00:00:00:07'],
  ['02:42:00:00:00:00/16', '02:42:00:00:00:00/16'],
  ['0A:B0:00:00:00:00/12', '0a:b0:00:00:00:00/12'],
  ['00:00:00:00:00:00/0', '00:00:00:00:00:00/0'],
  // Multicast, all zero, more bits, too long, not a MAC address.
  ['01:00:00:00:00:07', undefined],
  ['00:00:00:00:00:00', undefined],
  ['02:42:00:00:00:01/16', undefined],
  ['02:42:00:00:00:00/49', undefined],
  ['02:42:00:00:00:00/016', undefined],
  ['02:42:00:00:00/16', undefined],
  ['', undefined],
])('%s is read as %s', (text, expected) => {
  const range = parseMacRange(text);
  expect(range && formatMacRange(range)).toBe(expected);
});

test.each([
  ['02:42:00:00:00:00/16', '02:42:ff:00:00:01', true],
  ['02:42:00:00:00:00/16', '02:43:00:00:00:01', false],
  ['02:40:00:00:00:00/12', '02:4f:00:00:00:01', true],
  ['02:40:00:00:00:00/12', '02:50:00:00:00:01', false],
  ['02:00:00:00:00:07', '02:00:00:00:00:07', true],
  ['02:00:00:00:00:07', '02:00:00:00:00:08', false],
  ['00:00:00:00:00:00/0', 'fe:ff:ff:ff:ff:ff', true],
])('%s has %s: %s', (text, mac, expected) => {
  const range = parseMacRange(text);
  expect(range && macInRange(mac, range)).toBe(expected);
});

import { expect, test } from 'vitest';

import { formatCount } from './format-count.js';

test.each([
  [0, 'block', undefined, '0 blocks'],
  [1, 'block', undefined, '1 block'],
  [1n, 'address', 'addresses', '1 address'],
  [2, 'block', undefined, '2 blocks'],
  [11n, 'address', 'addresses', '11 addresses'],
])('%s of %s', (value, singular, plural, text) => {
  expect(formatCount(value, singular, plural)).toBe(text);
});

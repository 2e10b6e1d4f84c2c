import { expect, test } from 'vitest';

import { counted } from './counted.js';

test.each([
  [0, 'block', undefined, '0 blocks'],
  [1, 'block', undefined, '1 block'],
  [1n, 'address', 'addresses', '1 address'],
  [2, 'block', undefined, '2 blocks'],
  [11n, 'address', 'addresses', '11 addresses'],
])('%s of %s', (value, singular, plural, text) => {
  expect(counted(value, singular, plural)).toBe(text);
});

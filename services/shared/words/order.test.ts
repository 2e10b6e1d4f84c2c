import fc from 'fast-check';
import { expect, test } from 'vitest';

import { compareNames, compareTexts } from './order.js';

test.each([
  ['a', 'b', -1],
  ['b', 'a', 1],
  ['a', 'a', 0],
  ['', 'a', -1],
  ['a', 'ab', -1],
  // A locale sorts the small letter first.
  ['B', 'a', -1],
  ['z', 'ä', -1],
  // Numerically, the order would be reversed.
  ['10', '9', -1],
])('%j and %j: %d', (a, b, expected) => {
  expect(compareTexts(a, b)).toBe(expected);
  expect(compareNames({ name: a }, { name: b })).toBe(expected);
});

test('sorts like the default order', () => {
  fc.assert(
    fc.property(fc.array(fc.string({ unit: 'grapheme' })), (texts) => {
      expect(texts.toSorted(compareTexts)).toEqual(texts.toSorted());
    }),
  );
});

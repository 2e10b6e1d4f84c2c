import { expect, test } from 'vitest';

import { suggestion } from './closest.js';

test.each([
  ['cdir', ['cidr', 'blockSize'], '; did you mean "cidr"?'],
  ['natoutgoing', ['natOutgoing'], '; did you mean "natOutgoing"?'],
  ['ippol', ['ippool', 'ippools'], '; did you mean "ippool"?'],
  ['x', ['y'], ''],
  ['selector', ['cidr'], ''],
])('for "%s" of %j: %s', (word, names, expected) => {
  expect(suggestion(word, names)).toBe(expected);
});

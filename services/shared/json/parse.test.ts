import { expect, test } from 'vitest';

import { parseJson } from './parse.js';

test.each([
  ['{"a":[1,null]}', { a: [1, null] }],
  [' "x" ', 'x'],
  ['null', null],
  ['', undefined],
  ['{', undefined],
  ['undefined', undefined],
  ['{} {}', undefined],
])('%j', (text, value) => expect(parseJson(text)).toEqual(value));

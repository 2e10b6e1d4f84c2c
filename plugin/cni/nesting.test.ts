import { expect, test } from 'vitest';

import { isNestedDeeper } from './nesting.js';

const nested = (depth: number, open = '[', close = ']') => `${open.repeat(depth)}1${close.repeat(depth)}`;

test.each([
  ['lists', nested(100), nested(101)],
  ['objects', nested(100, '{"a":', '}'), nested(101, '{"a":', '}')],
  ['both, behind others', `[[1],{"a":[]},${nested(99)}]`, `[[1],{"a":[]},${nested(100)}]`],
])('%s are counted as they lie in each other', (_, most, tooDeep) => {
  expect([isNestedDeeper(most, 100), isNestedDeeper(tooDeep, 100)]).toEqual([false, true]);
});

test.each([
  ['what stands beside each other', `[${Array(300).fill('[]').join()}]`],
  ['brackets in strings', JSON.stringify({ text: '['.repeat(300), [`"\\${'{'.repeat(300)}`]: '\\\\"[{' })],
])('%s is not deep', (_, text) => {
  expect(isNestedDeeper(text, 100)).toBe(false);
});

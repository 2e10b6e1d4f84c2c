import { readFileSync } from 'node:fs';

import { expect, test } from 'vitest';

import { codeOf, messageOf } from './thrown.js';

function thrownBy(work: () => unknown): unknown {
  try {
    work();
  } catch (thrown) {
    return thrown;
  }
  throw new Error('nothing was thrown');
}

test('an error of the operating system has its message and its code', () => {
  const error = thrownBy(() => readFileSync('/nowhere/file'));
  expect(messageOf(error)).toContain('/nowhere/file');
  expect(codeOf(error)).toBe('ENOENT');
});

test('a value that is not an Error has its text as message, and no code', () => {
  const other = { code: 'ENOENT', toString: () => 'a text' };
  expect([messageOf(other), codeOf(other)]).toEqual(['a text', undefined]);
  expect([messageOf(undefined), codeOf(undefined)]).toEqual(['undefined', undefined]);
});

test('a code that is not a string is ignored', () => {
  expect(codeOf(Object.assign(new Error('exited'), { code: 1 }))).toBeUndefined();
  expect(codeOf(new Error('without'))).toBeUndefined();
});

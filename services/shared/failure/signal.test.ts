import { expect, test } from 'vitest';

import { Failure } from './failure.js';
import { failureOfSignal } from './signal.js';

test('the failure that a signal was fired with is passed on', () => {
  const reason = new Failure('DEADLINE_EXCEEDED', 'the time is over');
  expect(failureOfSignal(AbortSignal.abort(reason))).toBe(reason);
});

test.each([
  ['a reason of its own', new TypeError('x')],
  ['no Error', 'text'],
])('%s is CANCELLED', (_, reason) => {
  expect(failureOfSignal(AbortSignal.abort(reason))).toMatchObject({ code: 'CANCELLED', cause: reason });
});

test('a signal that fired without a reason is CANCELLED', () => {
  expect(failureOfSignal(AbortSignal.abort())).toMatchObject({ code: 'CANCELLED', cause: { name: 'AbortError' } });
});

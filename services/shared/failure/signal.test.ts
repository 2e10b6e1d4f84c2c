import { expect, test } from 'vitest';

import { Failure } from './failure.js';
import { failureOfSignal } from './signal.js';

test('the failure that aborted a signal is thrown', () => {
  const reason = new Failure('DEADLINE_EXCEEDED', 'the time is over');
  expect(failureOfSignal(AbortSignal.abort(reason))).toBe(reason);
});

test.each([
  ['another reason', new TypeError('x')],
  ['a reason that is not an Error', 'text'],
])('%s is CANCELLED', (_, reason) => {
  expect(failureOfSignal(AbortSignal.abort(reason))).toMatchObject({ code: 'CANCELLED', cause: reason });
});

test('a signal that was aborted without a reason is CANCELLED', () => {
  expect(failureOfSignal(AbortSignal.abort())).toMatchObject({ code: 'CANCELLED', cause: { name: 'AbortError' } });
});

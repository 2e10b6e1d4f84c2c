import { expect, test } from 'vitest';

import { Failure } from './failure.js';
import { failureOfSignal, untilAborted } from './signal.js';

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

test('a wait ends with its work, or with the failure of the signal, also of one that has fired before', async () => {
  const caller = new AbortController();
  expect(await untilAborted(Promise.resolve('done'), caller.signal)).toBe('done');
  await expect(untilAborted(Promise.reject(new Error('broken')), caller.signal)).rejects.toThrow('broken');
  const never = new Promise<void>(() => undefined);
  const waiting = expect(untilAborted(never, caller.signal)).rejects.toThrow('too late');
  caller.abort(new Failure('DEADLINE_EXCEEDED', 'too late'));
  await waiting;
  await expect(untilAborted(never, caller.signal)).rejects.toThrow('too late');
});

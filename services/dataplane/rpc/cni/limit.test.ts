import { Failure } from '@podwire/shared/failure/failure';
import { expect, test } from 'vitest';

import { CNI_LIMIT_MS, withinLimit } from './limit.js';

/** Work that goes on until its signal fires. */
const endless = async (signal: AbortSignal): Promise<void> => {
  await new Promise((resolve) => {
    signal.addEventListener('abort', resolve);
  });
  signal.throwIfAborted();
};

test('work has the five seconds of Calico’s plugin', () => {
  expect(CNI_LIMIT_MS).toBe(5000);
});

test('work that takes longer is told to end, and why', async () => {
  await expect(withinLimit(new AbortController().signal, endless, 20)).rejects.toMatchObject({
    code: 'DEADLINE_EXCEEDED',
    message: 'no answer within 20 ms',
  });
});

test('a caller that gives up earlier ends the work', async () => {
  const caller = new AbortController();
  const work = withinLimit(caller.signal, endless);
  caller.abort(new Failure('CANCELLED', 'the caller gave up'));
  await expect(work).rejects.toMatchObject({ code: 'CANCELLED' });
});

test('work that is done in time is not disturbed', async () => {
  let seen: AbortSignal | undefined;
  const work = (signal: AbortSignal) => {
    seen = signal;
    return Promise.resolve('done');
  };
  expect(await withinLimit(new AbortController().signal, work, 1)).toBe('done');
  await new Promise((resolve) => setTimeout(resolve, 5));
  expect(seen?.aborted).toBe(false);
});

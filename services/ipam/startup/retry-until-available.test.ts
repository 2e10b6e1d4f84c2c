import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, it } from 'vitest';

import { retryUntilAvailable, type StartRetry } from './datastore.js';

const away = new Failure('STORE_UNAVAILABLE', 'away');

/** A step that fails as planned, and then succeeds. */
function failing(failures: readonly Error[]): () => Promise<string> {
  const left = [...failures];
  return () => {
    const failure = left.shift();
    return failure === undefined ? Promise.resolve('done') : Promise.reject(failure);
  };
}

function patience(signal = new AbortController().signal): StartRetry & { readonly reported: Failure[] } {
  const reported: Failure[] = [];
  const clock = {
    nowMs: () => 0,
    monotonicMs: () => 0,
    sleep: () => Promise.resolve(signal.aborted ? ('aborted' as const) : ('elapsed' as const)),
    after: () => () => undefined,
  };
  return { clock, random: () => 0.5, signal, reported, report: (failure) => reported.push(failure) };
}

describe('a step of the start', () => {
  it('is retried while the datastore is unavailable, and reports each failure', async () => {
    const waiting = patience();
    expect(await retryUntilAvailable(failing(Array.from({ length: 50 }, () => away)), waiting)).toBe('done');
    expect(waiting.reported).toHaveLength(50);
  });

  it.each([new Failure('STORE_IN_USE', 'in use'), new TypeError('a defect')])(
    'is not repeated after %s',
    async (error) => {
      const waiting = patience();
      await expect(retryUntilAvailable(failing([away, error]), waiting)).rejects.toBe(error);
      expect(waiting.reported).toEqual([away]);
    },
  );

  it('ends with the signal', async () => {
    const stop = new AbortController();
    stop.abort();
    await expect(retryUntilAvailable(failing([away, away]), patience(stop.signal))).rejects.toBe(away);
  });
});

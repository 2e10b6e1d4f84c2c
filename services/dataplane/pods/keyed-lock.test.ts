import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, test } from 'vitest';

import { KeyedLock } from './operations-in-flight.js';

const never = new AbortController().signal;

/** Work that runs until its test ends it. */
function task(log: string[], name: string) {
  const end = new AbortController();
  const work = () => {
    log.push(`${name} begins`);
    return new Promise<string>((resolve) => {
      end.signal.addEventListener('abort', () => {
        log.push(`${name} ends`);
        resolve(name);
      });
    });
  };
  return { work, end: () => end.abort() };
}

const turns = () => new Promise((resolve) => setImmediate(resolve));

describe('the keyed lock', () => {
  test('runs one at a time per key, in order of arrival', async () => {
    const lock = new KeyedLock();
    const log: string[] = [];
    const [a, b, c] = [task(log, 'a'), task(log, 'b'), task(log, 'c')];
    const all = [a, b, c].map(({ work }) => lock.run('key', never, work));
    for (const { end } of [a, b, c]) {
      await turns();
      end();
    }
    expect(await Promise.all(all)).toEqual(['a', 'b', 'c']);
    expect(log).toEqual(['a begins', 'a ends', 'b begins', 'b ends', 'c begins', 'c ends']);
    expect(lock.heldCount).toBe(0);
  });

  test('ends a wait when its signal fires; later waiters keep their order', async () => {
    const lock = new KeyedLock();
    const log: string[] = [];
    const [a, b, c] = [task(log, 'a'), task(log, 'b'), task(log, 'c')];
    const impatient = new AbortController();
    const holding = lock.run('key', never, a.work);
    const waiting = lock.run('key', impatient.signal, b.work);
    const behind = lock.run('key', never, c.work);
    await turns();
    impatient.abort(new Failure('DEADLINE_EXCEEDED', 'too late'));
    await expect(waiting).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    a.end();
    await holding;
    await turns();
    c.end();
    await behind;
    expect(log).toEqual(['a begins', 'a ends', 'c begins', 'c ends']);
    expect(lock.heldCount).toBe(0);
  });

  test('does not start for a caller that has already cancelled', async () => {
    const lock = new KeyedLock();
    const work = lock.run('key', AbortSignal.abort(), () => Promise.resolve('done'));
    await expect(work).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(lock.heldCount).toBe(0);
  });
});

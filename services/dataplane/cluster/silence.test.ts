import { FakeClock } from '@podwire/shared/testing/clock';
import { expect, test } from 'vitest';

import { Silence } from './silence.js';

/** A stream that hears something before each of the first sleeps for which it is said. */
async function run(heard: readonly boolean[]) {
  const clock = new FakeClock();
  let awaitedCount = 0;
  let sleeps = 0;
  clock.beforeSleep = () => {
    if (heard[sleeps++] === true) queueMicrotask(() => silence.heard());
  };
  const silence = new Silence({ clock, silenceMs: 100, patienceMs: 10, onAwaited: () => awaitedCount++ });
  await new Promise<void>((resolve) => silence.broken.addEventListener('abort', () => resolve()));
  const reason: unknown = silence.broken.reason;
  return { sleptMs: clock.sleptMs, awaitedCount, reason };
}

test('a stream without a message is told of after a while, and broken after a longer one', async () => {
  expect(await run([])).toMatchObject({ sleptMs: [10, 90], awaitedCount: 1, reason: { code: 'UNREACHABLE' } });
});

test('a stream goes on for as long as it is heard, and is not told of', async () => {
  const { sleptMs, awaitedCount } = await run([true, true, true]);
  expect(awaitedCount).toBe(0);
  expect(sleptMs.length).toBeGreaterThan(2);
});

test('a stream that ended is not broken any more', async () => {
  const clock = new FakeClock();
  const silence: Silence = new Silence({ clock, silenceMs: 100, patienceMs: 10, onAwaited: () => silence.end() });
  await new Promise((resolve) => setImmediate(resolve));
  expect(silence.broken.aborted).toBe(false);
  expect(clock.sleptMs).toEqual([10, 90]);
});

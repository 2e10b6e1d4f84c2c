import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test, vi } from 'vitest';

import type { Finding } from './inspect.js';
import { reconcileInstallation } from './reconciler.js';

const INTERVAL_MS = 10;
const missing: Finding = { path: '/bin/podwire', difference: 'absent', text: 'is missing' };
const newer: Finding = { path: '/bin/podwire', difference: 'different', text: 'is of another release' };

/** A keeper of an installation in which each look finds what comes next. */
function keeper(looks: (readonly Finding[] | Error)[], repair = (): Promise<void> => Promise.resolve()) {
  const clock = new ManualClock();
  const stop = new AbortController();
  const told: string[] = [];
  const tell =
    (what: string) =>
    ({ path, text }: Finding) =>
      void told.push(`${what} ${path} ${text}`);
  let looked = 0;
  const warnings: string[] = ['05-other comes before ours'];
  const ended = reconcileInstallation({
    inspect: () => {
      const found = looks[Math.min(looked++, looks.length - 1)]!;
      return found instanceof Error ? Promise.reject(found) : Promise.resolve(found);
    },
    warnings: () => Promise.resolve([...warnings]),
    repair: async (damage) => {
      told.push(`repair ${damage.map(({ path }) => path).join(' ')}`);
      await repair();
    },
    events: {
      repairing: tell('repairing'),
      kept: tell('left'),
      suspended: tell('given up'),
      warned: (text) => void told.push(`warned ${text}`),
      failed: (error) => void told.push(String(error)),
    },
    clock,
    intervalMs: INTERVAL_MS,
    limits: { count: 2, windowMs: 100 },
    signal: stop.signal,
  });
  const look = async (durationMs = INTERVAL_MS) => {
    await vi.waitFor(() => expect(clock.sleeping).toBe(1), { timeout: 20_000 });
    const before = looked;
    clock.advance(durationMs);
    await vi.waitFor(() => expect([looked, clock.sleeping]).toEqual([before + 1, 1]), { timeout: 20_000 });
    return told.splice(0);
  };
  return { look, warnings, stop: () => stop.abort(), ended };
}

test('puts back what is damaged, and leaves what somebody meant, which is told once', async () => {
  const { look, stop, ended } = keeper([[], [missing], [], [newer], [newer], [], [newer]]);
  expect(await look()).toEqual([]);
  expect(await look()).toEqual(['repairing /bin/podwire is missing', 'repair /bin/podwire']);
  expect(await look()).toEqual([]);
  expect(await look()).toEqual(['left /bin/podwire is of another release']);
  expect(await look()).toEqual([]);
  expect(await look()).toEqual([]);
  expect(await look()).toEqual(['left /bin/podwire is of another release']);
  stop();
  await ended;
});

test('puts back what is broken and what is another’s, with what is missing', async () => {
  const broken: Finding = { path: '/bin/podwire-ipam', difference: 'broken', text: 'is damaged' };
  const foreign: Finding = { path: '/net.d/10-podwire.conflist', difference: 'foreign', text: 'is not Podwire’s' };
  const { look, stop } = keeper([[broken, foreign, newer]]);
  expect((await look()).at(-1)).toBe('repair /bin/podwire-ipam /net.d/10-podwire.conflist');
  stop();
});

test('does not fight: two repairs in a while, told once, and then again', async () => {
  const { look, stop } = keeper([[missing]]);
  const repaired = ['repairing /bin/podwire is missing', 'repair /bin/podwire'];
  expect(await look()).toEqual(repaired);
  expect(await look()).toEqual(repaired);
  expect(await look()).toEqual(['given up /bin/podwire is missing']);
  expect(await look()).toEqual([]);
  expect(await look(100)).toEqual(repaired);
  expect(await look()).toEqual(repaired);
  expect(await look()).toEqual(['given up /bin/podwire is missing']);
  stop();
});

test('goes on after a look or a repair that fails, and counts neither', async () => {
  const failing = () => Promise.reject(new Error('no space'));
  const { look, stop } = keeper([new Error('unreadable'), [missing]], failing);
  expect(await look()).toEqual(['Error: unreadable']);
  for (let attempt = 0; attempt < 4; attempt += 1) {
    expect(await look()).toEqual(['repairing /bin/podwire is missing', 'repair /bin/podwire', 'Error: no space']);
  }
  stop();
});

test('tells of others’ files that come later, once for as long as they are there', async () => {
  const { look, warnings, stop } = keeper([[]]);
  expect(await look()).toEqual([]);
  warnings.push('10-calico is Calico’s');
  expect(await look()).toEqual(['warned 10-calico is Calico’s']);
  expect(await look()).toEqual([]);
  warnings.pop();
  expect(await look()).toEqual([]);
  warnings.push('10-calico is Calico’s');
  expect(await look()).toEqual(['warned 10-calico is Calico’s']);
  stop();
});

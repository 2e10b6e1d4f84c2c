import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test, vi } from 'vitest';

import type { Finding } from './inspect.js';
import { reconcileInstallation } from './reconciler.js';

const INTERVAL_MS = 10;
const missing: Finding = { path: '/bin/podwire', difference: 'absent', text: 'is missing' };
const newer: Finding = { path: '/bin/podwire', difference: 'different', text: 'is of another release' };

/** A reconciler of an installation whose inspections return the given findings, one after another. */
function startReconciler(findings: (readonly Finding[] | Error)[], repair = (): Promise<void> => Promise.resolve()) {
  const clock = new ManualClock();
  const stop = new AbortController();
  const reported: string[] = [];
  const report =
    (what: string) =>
    ({ path, text }: Finding) =>
      void reported.push(`${what} ${path} ${text}`);
  let inspected = 0;
  const warnings: string[] = ['05-other comes before ours'];
  const ended = reconcileInstallation({
    inspect: () => {
      const found = findings[Math.min(inspected++, findings.length - 1)]!;
      return found instanceof Error ? Promise.reject(found) : Promise.resolve(found);
    },
    warnings: () => Promise.resolve([...warnings]),
    repair: async (damage) => {
      reported.push(`repair ${damage.map(({ path }) => path).join(' ')}`);
      await repair();
    },
    events: {
      repairing: report('repairing'),
      kept: report('left'),
      suspended: report('given up'),
      warned: (text) => void reported.push(`warned ${text}`),
      failed: (error) => void reported.push(String(error)),
    },
    clock,
    intervalMs: INTERVAL_MS,
    limits: { count: 2, windowMs: 100 },
    signal: stop.signal,
  });
  const inspectOnce = async (durationMs = INTERVAL_MS) => {
    await vi.waitFor(() => expect(clock.sleeping).toBe(1), { timeout: 20_000 });
    const before = inspected;
    clock.advance(durationMs);
    await vi.waitFor(() => expect([inspected, clock.sleeping]).toEqual([before + 1, 1]), { timeout: 20_000 });
    return reported.splice(0);
  };
  return { inspectOnce, warnings, stop: () => stop.abort(), ended };
}

test('repairs damage, keeps a deliberate change, and reports that once', async () => {
  const { inspectOnce, stop, ended } = startReconciler([[], [missing], [], [newer], [newer], [], [newer]]);
  expect(await inspectOnce()).toEqual([]);
  expect(await inspectOnce()).toEqual(['repairing /bin/podwire is missing', 'repair /bin/podwire']);
  expect(await inspectOnce()).toEqual([]);
  expect(await inspectOnce()).toEqual(['left /bin/podwire is of another release']);
  expect(await inspectOnce()).toEqual([]);
  expect(await inspectOnce()).toEqual([]);
  expect(await inspectOnce()).toEqual(['left /bin/podwire is of another release']);
  stop();
  await ended;
});

test('repairs broken and foreign files together with missing ones', async () => {
  const broken: Finding = { path: '/bin/podwire-ipam', difference: 'broken', text: 'is damaged' };
  const foreign: Finding = { path: '/net.d/10-podwire.conflist', difference: 'foreign', text: 'is not Podwire’s' };
  const { inspectOnce, stop } = startReconciler([[broken, foreign, newer]]);
  expect((await inspectOnce()).at(-1)).toBe('repair /bin/podwire-ipam /net.d/10-podwire.conflist');
  stop();
});

test('suspends after two repairs in the window, with one report, and resumes later', async () => {
  const { inspectOnce, stop } = startReconciler([[missing]]);
  const repaired = ['repairing /bin/podwire is missing', 'repair /bin/podwire'];
  expect(await inspectOnce()).toEqual(repaired);
  expect(await inspectOnce()).toEqual(repaired);
  expect(await inspectOnce()).toEqual(['given up /bin/podwire is missing']);
  expect(await inspectOnce()).toEqual([]);
  expect(await inspectOnce(100)).toEqual(repaired);
  expect(await inspectOnce()).toEqual(repaired);
  expect(await inspectOnce()).toEqual(['given up /bin/podwire is missing']);
  stop();
});

test('continues after an inspection or a repair that fails, and counts neither', async () => {
  const failing = () => Promise.reject(new Error('no space'));
  const { inspectOnce, stop } = startReconciler([new Error('unreadable'), [missing]], failing);
  expect(await inspectOnce()).toEqual(['Error: unreadable']);
  for (let attempt = 0; attempt < 4; attempt += 1) {
    expect(await inspectOnce()).toEqual([
      'repairing /bin/podwire is missing',
      'repair /bin/podwire',
      'Error: no space',
    ]);
  }
  stop();
});

test('reports other installers’ files once for as long as they exist', async () => {
  const { inspectOnce, warnings, stop } = startReconciler([[]]);
  expect(await inspectOnce()).toEqual([]);
  warnings.push('10-calico is Calico’s');
  expect(await inspectOnce()).toEqual(['warned 10-calico is Calico’s']);
  expect(await inspectOnce()).toEqual([]);
  warnings.pop();
  expect(await inspectOnce()).toEqual([]);
  warnings.push('10-calico is Calico’s');
  expect(await inspectOnce()).toEqual(['warned 10-calico is Calico’s']);
  stop();
});

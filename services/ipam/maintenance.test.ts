import { expect, test } from 'vitest';

import type { RepairReport } from './audit/repair.js';
import { forever } from './engine/testing/stores.js';
import { garbageTask } from './maintenance.js';

function taskOf(report: RepairReport) {
  const limits: number[] = [];
  const warned: number[] = [];
  const collectGarbage = (limit: number): Promise<RepairReport> => {
    limits.push(limit);
    return Promise.resolve(report);
  };
  const events = { garbageLeft: (limit: number) => void warned.push(limit) };
  return { limits, warned, task: garbageTask({ audits: { collectGarbage }, events }) };
}

test('the first round leaves everything as it is, the later ones collect', async () => {
  const { task, limits, warned } = taskOf({ results: [], more: false });
  await task.run(forever);
  expect(limits).toEqual([]);
  await task.run(forever);
  await task.run(forever);
  expect([limits, warned]).toEqual([[1000, 1000], []]);
});

test('it is told when there is more than one round removes', async () => {
  const { task, warned } = taskOf({ results: [], more: true });
  await task.run(forever);
  await task.run(forever);
  expect(warned).toEqual([1000]);
});

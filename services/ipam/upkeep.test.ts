import process from 'node:process';
import { Writable } from 'node:stream';

import { createLogger } from '@podwire/shared/runtime/log';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { describe, expect, test } from 'vitest';

import type { RepairReport } from './audit/repair.js';
import { forever } from './engine/testing/stores.js';
import { garbageTask, LockGuard, Upkeep, type UpkeepTask } from './upkeep.js';

async function untilIdle(): Promise<void> {
  for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve));
}

function start(...tasks: UpkeepTask[]) {
  const clock = new ManualClock();
  const failures: string[] = [];
  const reportFailure = (task: string, error: unknown): number => failures.push(`${task}: ${String(error)}`);
  const upkeep = new Upkeep({ tasks, clock, random: () => 0.25, reportFailure, intervalMs: 1000, taskTimeoutMs: 300 });
  const elapse = async (durationMs: number): Promise<void> => {
    clock.advance(durationMs);
    await untilIdle();
  };
  return { clock, elapse, failures, upkeep };
}

function mark(done: string[], name: string): Promise<void> {
  done.push(name);
  return Promise.resolve();
}

const waitsFor = (signal: AbortSignal): Promise<void> =>
  new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('aborted'))));

describe('upkeep', () => {
  test('does every task at once, and again after each pause', async () => {
    const done: string[] = [];
    const task = (name: UpkeepTask['name']): UpkeepTask => ({ name, run: () => mark(done, name) });
    const { clock, elapse, upkeep } = start(task('begin-epoch'), task('remove-old-history'));
    await untilIdle();
    expect(done).toEqual(['begin-epoch', 'remove-old-history']);
    await elapse(750);
    expect(done).toEqual(['begin-epoch', 'remove-old-history', 'begin-epoch', 'remove-old-history']);
    await upkeep.stop();
    expect(clock.sleeping).toBe(0);
  });

  test('continues after a failed task, and reports it', async () => {
    const done: string[] = [];
    const { elapse, failures, upkeep } = start(
      { name: 'begin-epoch', run: () => Promise.reject(new Error('no')) },
      { name: 'remove-old-history', run: () => mark(done, 'good') },
    );
    await untilIdle();
    await elapse(750);
    expect(failures).toEqual(['begin-epoch: Error: no', 'begin-epoch: Error: no']);
    expect(done).toEqual(['good', 'good']);
    await upkeep.stop();
  });

  test('aborts a task that takes too long', async () => {
    const { elapse, failures, upkeep } = start({ name: 'begin-epoch', run: waitsFor });
    await untilIdle();
    await elapse(300);
    expect(failures).toEqual(['begin-epoch: Error: aborted']);
    await upkeep.stop();
  });

  test('aborts the running task when it is stopped, starts no other, and reports no failure', async () => {
    const done: string[] = [];
    const { clock, failures, upkeep } = start(
      { name: 'begin-epoch', run: waitsFor },
      { name: 'remove-old-history', run: () => mark(done, 'next') },
    );
    await untilIdle();
    await upkeep.stop();
    await upkeep.stop();
    expect([failures, done, clock.sleeping]).toEqual([[], [], 0]);
  });
});

test('a task’s signal may have any number of listeners without a leak warning of Node', async () => {
  const warnings: Error[] = [];
  const note = (warning: Error): unknown => warnings.push(warning);
  process.on('warning', note);
  const run = (signal: AbortSignal): Promise<void> => {
    for (let count = 0; count < 30; count++) signal.addEventListener('abort', () => count);
    return Promise.resolve();
  };
  const { upkeep } = start({ name: 'begin-epoch', run });
  await untilIdle();
  await upkeep.stop();
  process.off('warning', note);
  expect(warnings).toEqual([]);
});

test('a task pauses while the datastore is locked, and the log says once when a lock begins and ends', async () => {
  let locked = false;
  let runs = 0;
  let logged = '';
  const write = (line: Buffer, _encoding: string, done: () => void): void => {
    logged += line.toString();
    done();
  };
  const log = createLogger({ service: 'test', level: 'info', destination: new Writable({ write }) });
  const pause = new LockGuard({ isLocked: () => Promise.resolve(locked), log });
  const run = (): Promise<void> => {
    runs++;
    return Promise.resolve();
  };
  const task = pause.unlessLocked({ name: 'begin-epoch', run });
  const look = async (isLocked: boolean): Promise<unknown[]> => {
    locked = isLocked;
    await task.run(forever);
    return [runs, logged.split('\n').length - 1];
  };
  expect(task.name).toBe('begin-epoch');
  expect(await look(false)).toEqual([1, 0]);
  expect(await look(true)).toEqual([1, 1]);
  expect(await look(true)).toEqual([1, 1]);
  expect(logged).toMatch(/is locked .*calicoctl datastore migrate unlock/);
  expect(await look(false)).toEqual([2, 2]);
  expect(logged).toMatch(/is unlocked/);
});

function taskOf(report: RepairReport) {
  const limits: number[] = [];
  const warned: number[] = [];
  const collectGarbage = (limit: number): Promise<RepairReport> => {
    limits.push(limit);
    return Promise.resolve(report);
  };
  const events = { garbageLimitReached: (limit: number) => void warned.push(limit) };
  return { limits, warned, task: garbageTask({ audits: { collectGarbage }, events }) };
}

test('the first round changes nothing, the later ones collect', async () => {
  const { task, limits, warned } = taskOf({ results: [], more: false });
  await task.run(forever);
  expect(limits).toEqual([]);
  await task.run(forever);
  await task.run(forever);
  expect([limits, warned]).toEqual([[1000, 1000], []]);
});

test('garbage beyond the limit of a round is reported', async () => {
  const { task, warned } = taskOf({ results: [], more: true });
  await task.run(forever);
  await task.run(forever);
  expect(warned).toEqual([1000]);
});

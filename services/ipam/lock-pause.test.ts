import { Writable } from 'node:stream';

import { createLogger } from '@podwire/shared/runtime/log';
import { expect, test } from 'vitest';

import { forever } from './engine/testing/stores.js';
import { LockPause } from './lock-pause.js';

test('a task pauses while the datastore is locked, and the log says once when a lock begins and ends', async () => {
  let locked = false;
  let runs = 0;
  let logged = '';
  const write = (line: Buffer, _encoding: string, done: () => void): void => {
    logged += line.toString();
    done();
  };
  const log = createLogger({ service: 'test', level: 'info', destination: new Writable({ write }) });
  const pause = new LockPause({ isLocked: () => Promise.resolve(locked), log });
  const run = (): Promise<void> => {
    runs++;
    return Promise.resolve();
  };
  const task = pause.unlessLocked({ name: 'work', run });
  const look = async (isLocked: boolean): Promise<unknown[]> => {
    locked = isLocked;
    await task.run(forever);
    return [runs, logged.split('\n').length - 1];
  };
  expect(task.name).toBe('work');
  expect(await look(false)).toEqual([1, 0]);
  expect(await look(true)).toEqual([1, 1]);
  expect(await look(true)).toEqual([1, 1]);
  expect(logged).toMatch(/is locked .*calicoctl datastore migrate unlock/);
  expect(await look(false)).toEqual([2, 2]);
  expect(logged).toMatch(/is unlocked/);
});

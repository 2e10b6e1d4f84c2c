import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { tryLockDirectory } from './directory-lock.js';

let directory: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'podwire-lock-'));
});

afterEach(() => rmSync(directory, { recursive: true }));

/** Requests the lock as a process of this ID does. */
const tryLock = (owner: string, name = 'lock') => tryLockDirectory({ directory, name, owner });

function locked(owner: string, name?: string) {
  const outcome = tryLock(owner, name);
  if (!('lock' in outcome)) throw new Error(`held by ${outcome.holder}`);
  return outcome.lock;
}

test('the second process learns the holder of the lock, and gets it after the release', () => {
  const first = locked('17');
  expect(tryLock('18')).toEqual({ holder: '17' });
  first.release();
  locked('18').release();
  expect(readdirSync(directory)).toEqual(['lock']);
});

/** Another process that holds the lock. */
async function lockedElsewhere(owner: string): Promise<ChildProcess> {
  const module = join(import.meta.dirname, '../dist/files/directory-lock.js');
  const program = `
    const { tryLockDirectory } = await import(process.argv[1]);
    tryLockDirectory({ directory: process.argv[2], name: 'lock', owner: process.argv[3] });
    console.log('locked');
    setInterval(() => undefined, 1000);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program, module, directory, owner], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit').then(() => Promise.reject(new Error('the other process ended without the lock')));
  await Promise.race([once(child.stdout, 'data'), exited]);
  return child;
}

test('a frozen holder keeps its lock and is named, and a killed one has none', async () => {
  const child = await lockedElsewhere('the other');
  try {
    expect(tryLock('18')).toEqual({ holder: 'the other' });
    child.kill('SIGSTOP');
    expect(tryLock('18')).toEqual({ holder: 'the other' });
  } finally {
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  const lock = locked('18');
  expect(tryLock('19')).toEqual({ holder: '18' });
  lock.release();
});

test('a program that the holder starts does not keep the lock', async () => {
  const lock = locked('17');
  const child = spawn('sleep', ['60']);
  await once(child, 'spawn');
  lock.release();
  locked('18').release();
  child.kill('SIGKILL');
  await once(child, 'exit');
});

test('locks of different names are independent', () => {
  const locks = [locked('17'), locked('17', '.lock'), locked('17', 'lock.lock')];
  expect(tryLock('18', '.lock')).toEqual({ holder: '17' });
  for (const lock of locks) lock.release();
});

test('one of several processes gets the lock, also with equal IDs in separate PID namespaces', () => {
  const outcomes = ['1', '1', '1'].map((owner) => tryLock(owner));
  const locks = outcomes.flatMap((outcome) => ('lock' in outcome ? [outcome.lock] : []));
  expect(locks).toHaveLength(1);
  locks[0]?.release();
});

test('a directory that does not exist cannot be locked', () => {
  expect(() => tryLockDirectory({ directory: join(directory, 'none'), name: 'lock', owner: '17' })).toThrow('ENOENT');
});

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readlinkSync, rmSync, symlinkSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
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

async function locked(owner: string, name?: string) {
  const outcome = await tryLock(owner, name);
  if (!('lock' in outcome)) throw new Error(`held by ${outcome.holder}`);
  return outcome.lock;
}

test('the second process learns the holder of the lock, and gets it after the release', async () => {
  const first = await locked('17');
  await expect(tryLock('18')).resolves.toEqual({ holder: '17', isSilent: false });
  first.release();
  (await locked('18')).release();
  expect(readdirSync(directory)).toEqual(['lock.2']);
});

/** Another process that holds the lock. */
async function lockedElsewhere(owner: string): Promise<ChildProcess> {
  const module = join(import.meta.dirname, '../dist/files/directory-lock.js');
  const program = `
    const { tryLockDirectory } = await import(process.argv[1]);
    await tryLockDirectory({ directory: process.argv[2], name: 'lock', owner: process.argv[3] });
    console.log('locked');
    setInterval(() => undefined, 1000);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program, module, directory, owner], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit').then(() => Promise.reject(new Error('the other process ended without the lock')));
  await Promise.race([once(child.stdout, 'data'), exited]);
  return child;
}

test('a frozen holder is still known, and its name is deleted with its lock', async () => {
  const child = await lockedElsewhere('the frozen');
  try {
    await expect(tryLock('18')).resolves.toEqual({ holder: 'the frozen', isSilent: false });
    child.kill('SIGSTOP');
    await expect(tryLock('18')).resolves.toEqual({ holder: 'the frozen', isSilent: true });
    rmSync(join(directory, 'lock.1.owner'));
    await expect(tryLock('18')).resolves.toEqual({ holder: 'unknown', isSilent: true });
  } finally {
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  (await locked('18')).release();
  expect(readdirSync(directory)).toEqual(['lock.2']);
});

test('a frozen holder keeps its lock also when its accept queue is full', async () => {
  const child = await lockedElsewhere('the frozen');
  const asking: Socket[] = [];
  try {
    child.kill('SIGSTOP');
    // More than fit into the accept queue: the kernel refuses further ones with EAGAIN.
    const refused = new Promise<string>((resolve) => {
      for (let count = 0; count < 600; count++) {
        const socket = connect(join(directory, 'lock.1'));
        asking.push(socket.on('error', (error) => resolve(String(error))));
      }
    });
    expect(await refused).toContain('EAGAIN');
    await expect(tryLock('18')).resolves.toEqual({ holder: 'the frozen', isSilent: true });
  } finally {
    for (const socket of asking) socket.destroy();
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
});

test('the files of killed holders are deleted with the next lock', async () => {
  for (let count = 0; count < 2; count++) {
    const child = await lockedElsewhere('killed');
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  const lock = await locked('17');
  expect(readdirSync(directory).sort()).toEqual(['lock.3', 'lock.3.owner']);
  lock.release();
});

test('the name of a killed holder is not reported for the next', async () => {
  symlinkSync('killed', join(directory, 'lock.1.owner'));
  const lock = await locked('17');
  expect(readlinkSync(join(directory, 'lock.1.owner'))).toBe('17');
  lock.release();
});

test('locks of different names are independent', async () => {
  const locks = [await locked('17'), await locked('17', '.lock'), await locked('17', 'lock.lock')];
  await expect(tryLock('18', '.lock')).resolves.toEqual({ holder: '17', isSilent: false });
  for (const lock of locks) lock.release();
});

test('one of several concurrent processes gets the lock, also with equal IDs in separate PID namespaces', async () => {
  for (let round = 0; round < 20; round++) {
    const outcomes = await Promise.all(['1', '1', '1'].map((owner) => tryLock(owner)));
    const locks = outcomes.flatMap((outcome) => ('lock' in outcome ? [outcome.lock] : []));
    expect(locks).toHaveLength(1);
    locks[0]?.release();
  }
});

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

/** Asks for the lock as a process of this ID does. */
const asked = (owner: string, name = 'lock') => tryLockDirectory({ directory, name, owner });

async function locked(owner: string, name?: string) {
  const outcome = await asked(owner, name);
  if (!('lock' in outcome)) throw new Error(`held by ${outcome.holder}`);
  return outcome.lock;
}

test('who comes second is told who has the lock, and gets it when that lets go', async () => {
  const first = await locked('17');
  await expect(asked('18')).resolves.toEqual({ holder: '17', isSilent: false });
  first.release();
  (await locked('18')).release();
  expect(readdirSync(directory)).toEqual(['lock.2']);
});

/** Another process that has the lock. */
async function lockedElsewhere(owner: string): Promise<ChildProcess> {
  const module = join(import.meta.dirname, '../dist/runtime/directory-lock.js');
  const program = `
    const { tryLockDirectory } = await import(process.argv[1]);
    await tryLockDirectory({ directory: process.argv[2], name: 'lock', owner: process.argv[3] });
    console.log('locked');
    setInterval(() => undefined, 1000);`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program, module, directory, owner]);
  await once(child.stdout, 'data');
  return child;
}

test('who has the lock is told also while it is frozen, and its name goes with its lock', async () => {
  const child = await lockedElsewhere('the frozen');
  try {
    await expect(asked('18')).resolves.toEqual({ holder: 'the frozen', isSilent: false });
    child.kill('SIGSTOP');
    await expect(asked('18')).resolves.toEqual({ holder: 'the frozen', isSilent: true });
    rmSync(join(directory, 'lock.1.owner'));
    await expect(asked('18')).resolves.toEqual({ holder: 'unknown', isSilent: true });
  } finally {
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  (await locked('18')).release();
  expect(readdirSync(directory)).toEqual(['lock.2']);
});

test('one that is frozen keeps its lock also where no more can connect to ask it', async () => {
  const child = await lockedElsewhere('the frozen');
  const asking: Socket[] = [];
  try {
    child.kill('SIGSTOP');
    // As many as may wait to be accepted, and some: the kernel refuses further ones with EAGAIN.
    const refused = new Promise<string>((resolve) => {
      for (let count = 0; count < 600; count++) {
        const socket = connect(join(directory, 'lock.1'));
        asking.push(socket.on('error', (error) => resolve(String(error))));
      }
    });
    expect(await refused).toContain('EAGAIN');
    await expect(asked('18')).resolves.toEqual({ holder: 'the frozen', isSilent: true });
  } finally {
    for (const socket of asking) socket.destroy();
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
});

test('what others left, killed, goes with the next lock', async () => {
  for (let count = 0; count < 2; count++) {
    const child = await lockedElsewhere('killed');
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  const lock = await locked('17');
  expect(readdirSync(directory).sort()).toEqual(['lock.3', 'lock.3.owner']);
  lock.release();
});

test('a name that another left, killed, is not told for the next', async () => {
  symlinkSync('killed', join(directory, 'lock.1.owner'));
  const lock = await locked('17');
  expect(readlinkSync(join(directory, 'lock.1.owner'))).toBe('17');
  lock.release();
});

test('locks of other names are others', async () => {
  const locks = [await locked('17'), await locked('17', '.lock'), await locked('17', 'lock.lock')];
  await expect(asked('18', '.lock')).resolves.toEqual({ holder: '17', isSilent: false });
  for (const lock of locks) lock.release();
});

test('of processes that ask at the same moment one gets it, also where they have the same ID in PID namespaces of their own', async () => {
  for (let round = 0; round < 20; round++) {
    const outcomes = await Promise.all(['1', '1', '1'].map((owner) => asked(owner)));
    const locks = outcomes.flatMap((outcome) => ('lock' in outcome ? [outcome.lock] : []));
    expect(locks).toHaveLength(1);
    locks[0]?.release();
  }
});

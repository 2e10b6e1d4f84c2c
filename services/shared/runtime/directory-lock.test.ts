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

/** Asks for the lock as a process of this ID does. */
const asked = (owner: string, name = 'lock') => tryLockDirectory({ directory, name, owner });

async function locked(owner: string, name?: string) {
  const outcome = await asked(owner, name);
  if (!('lock' in outcome)) throw new Error(`held by ${outcome.holder}`);
  return outcome.lock;
}

test('who comes second is told who has the lock, and gets it when that lets go', async () => {
  const first = await locked('17');
  await expect(asked('18')).resolves.toEqual({ holder: '17' });
  first.release();
  (await locked('18')).release();
  expect(readdirSync(directory)).toEqual(['lock.2']);
});

test('locks of other names are others', async () => {
  const locks = [await locked('17'), await locked('17', '.lock'), await locked('17', 'lock.lock')];
  await expect(asked('18', '.lock')).resolves.toEqual({ holder: '17' });
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

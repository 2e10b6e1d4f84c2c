import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

import { afterAll } from 'vitest';

import { until } from './until.js';

/** `isolated.mjs` mounts its own /run/netns; elsewhere the network is a real one. */
const isThrowaway = () => /^tmpfs \/run\/netns tmpfs /m.test(readFileSync('/proc/self/mounts', 'utf8'));

/** Names of the links of /proc/net/dev, which has two lines of heading. */
function links(): readonly string[] {
  const lines = readFileSync('/proc/net/dev', 'utf8').split('\n').slice(2);
  return lines.map((line) => line.split(':')[0]?.trim() ?? '').filter((name) => name !== '' && name !== 'lo');
}

/** None without an `nft` that could have created any. */
const tables = () => {
  const { error, stdout } = spawnSync('nft', ['list', 'tables'], { encoding: 'utf8' });
  return error ? [] : stdout.split('\n').filter(Boolean);
};

/**
 * Runs after every test file (`setupFiles`): files share one network namespace, and leftovers of one would make another
 * fail. A pod's interfaces disappear some time after its namespace, so this waits; the next file begins without tables.
 */
afterAll(async () => {
  if (!isThrowaway()) return;
  const left = () => [...links(), ...tables()];
  try {
    await until(
      () => left().length === 0,
      () => `these tests left ${left().join(', ')} in the namespace that they share with other tests`,
    );
  } finally {
    if (tables().length > 0) spawnSync('nft', ['flush', 'ruleset']);
  }
}, 90_000);

import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';

import { expect, it } from 'vitest';

import { ADDON_FOLDER } from './ip.js';

it('the codec reads and writes recorded messages, and survives damage, under sanitizers', () => {
  const made = spawnSync(
    'make',
    ['-C', join(ADDON_FOLDER, 'test', 'native'), '-j', String(availableParallelism()), 'codec'],
    {
      encoding: 'utf8',
    },
  );
  expect(made.status, made.stdout + made.stderr).toBe(0);
  const folder = join(ADDON_FOLDER, 'test', 'native', 'captures');
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  const captures = files.filter((file) => file.endsWith('.hex')).length;
  expect(captures).toBeGreaterThan(30);
  expect(made.stdout).toMatch(new RegExp(`^${captures} captures, \\d+ checks, 0 failed`, 'm'));
}, 180_000);

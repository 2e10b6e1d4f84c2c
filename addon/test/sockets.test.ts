import { spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';

import { expect, it } from 'vitest';

import { ADDON_FOLDER } from './ip.js';

it('the sockets repeat changed lists, report lost notifications and leak nothing, under sanitizers', () => {
  const make = ['-C', join(ADDON_FOLDER, 'test', 'native'), '-j', String(availableParallelism()), 'sockets'];
  const made = spawnSync('make', make, { encoding: 'utf8' });
  expect(made.status, made.stdout + made.stderr).toBe(0);
  expect(made.stdout).toMatch(/^sockets: [1-9]\d+ checks, 0 failed$/m);
}, 600_000);

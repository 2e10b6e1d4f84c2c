import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { withInstallEnv } from './install-env.js';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'podwire-env-'));
});
afterEach(() => rmSync(root, { recursive: true }));

test('settings of the file fill the environment up', async () => {
  expect(await withInstallEnv({ A: '1' }, root)).toEqual({ A: '1' });
  mkdirSync(join(root, 'etc/podwire'), { recursive: true });
  writeFileSync(join(root, 'etc/podwire/install.env'), '# comment\nA=2\nCNI_BIN_DIR=/usr/lib/cni\n#B=3\n');
  expect(await withInstallEnv({ A: '1' }, root)).toEqual({ A: '1', CNI_BIN_DIR: '/usr/lib/cni' });
});

test('a file that cannot be read is named', async () => {
  mkdirSync(join(root, 'etc/podwire/install.env'), { recursive: true });
  await expect(withInstallEnv({}, root)).rejects.toThrow(
    /^\/etc\/podwire\/install\.env: cannot be read: .*; run as root$/,
  );
});

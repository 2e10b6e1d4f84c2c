import { mkdtempSync, realpathSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { currentProcessId, currentUserId } from './user.js';

test('is the owner of the files that the process makes', () => {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-user-'));
  expect(statSync(folder).uid).toBe(currentUserId());
  rmSync(folder, { recursive: true });
});

test('the process is the one that has this memory', () => {
  expect(realpathSync('/proc/self')).toBe(`/proc/${currentProcessId()}`);
});

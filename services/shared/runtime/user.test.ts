import { mkdtempSync, realpathSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { currentProcessId, currentUserId } from './user.js';

test('the current user owns files that the process creates', () => {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-user-'));
  expect(statSync(folder).uid).toBe(currentUserId());
  rmSync(folder, { recursive: true });
});

test('the current process ID equals the one in /proc/self', () => {
  expect(realpathSync('/proc/self')).toBe(`/proc/${currentProcessId()}`);
});

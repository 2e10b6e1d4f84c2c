import { closeSync, mkdtempSync, openSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { tryLockFile } from '../lib/file-lock.js';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-file-lock-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

test('the lock of a file belongs to one descriptor until that is closed', () => {
  const [first, second] = [openSync(join(folder, 'lock'), 'a'), openSync(join(folder, 'lock'), 'a')];
  expect([tryLockFile(first), tryLockFile(second), tryLockFile(first)]).toEqual([true, false, true]);
  closeSync(first);
  expect(tryLockFile(second)).toBe(true);
  closeSync(second);
});

test('a descriptor of no file is refused', () => {
  expect(() => tryLockFile(2 ** 31 - 1)).toThrow('file.lock of file descriptor 2147483647: EBADF');
  expect(() => tryLockFile(-1)).toThrow('descriptor');
});

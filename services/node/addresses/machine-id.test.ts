import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { readMachineId } from './machine-id.js';

const FIRST_BOOT = '0f8fad5b-d9cb-469f-a165-70867728950e';
const NEXT_BOOT = '7c9e6679-7425-40de-944b-e07fc1f90ae7';

let folder: string;

beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'podwire-machine-'))));
afterEach(() => rmSync(folder, { recursive: true, force: true }));

test('a machine keeps its identity over reboots', async () => {
  const path = join(folder, 'plugin', 'machine-id');
  const failed = vi.fn();
  const first = await readMachineId(path, FIRST_BOOT, failed);
  expect(first).not.toBe(FIRST_BOOT);
  expect(await readMachineId(path, NEXT_BOOT, failed)).toBe(first);
  expect(readFileSync(path, 'utf8')).toBe(`${first}\n`);
  writeFileSync(path, 'damaged');
  const next = await readMachineId(path, NEXT_BOOT, failed);
  expect([first, FIRST_BOOT, NEXT_BOOT]).not.toContain(next);
  expect(await readMachineId(path, FIRST_BOOT, failed)).toBe(next);
  expect(failed).not.toHaveBeenCalled();
});

test('a machine that cannot store its identity has that of its boot', async () => {
  const failed = vi.fn();
  const path = join(folder, 'file', 'machine-id');
  writeFileSync(join(folder, 'file'), '');
  for (let process = 0; process < 2; process++) expect(await readMachineId(path, FIRST_BOOT, failed)).toBe(FIRST_BOOT);
  expect(failed).toHaveBeenCalledTimes(2);
});

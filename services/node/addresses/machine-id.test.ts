import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { readMachineId as readIdentity } from './machine-id.js';

const FIRST_BOOT = '0f8fad5b-d9cb-469f-a165-70867728950e';
const NEXT_BOOT = '7c9e6679-7425-40de-944b-e07fc1f90ae7';

let folder: string;

beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'podwire-machine-'))));
afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** Reads the identity as on a machine without a firmware identity, unless another path is given. */
const readMachineId = (path: string, bootId: string, failed: () => void, hardwarePath = join(folder, 'none')) =>
  readIdentity(path, bootId, failed, hardwarePath);

test('a copy of the disk on other hardware has an identity of its own; a stored one gets its hardware', async () => {
  const [path, hardware] = [join(folder, 'machine-id'), join(folder, 'product_uuid')];
  const failed = vi.fn();
  const first = await readMachineId(path, FIRST_BOOT, failed);
  for (const [id, isFirst] of [
    ['b9f1', true],
    ['b9f1', true],
    ['27aa', false],
  ] as const) {
    writeFileSync(hardware, `${id}\n`);
    expect((await readMachineId(path, NEXT_BOOT, failed, hardware)) === first).toBe(isFirst);
  }
  const copy = await readMachineId(path, NEXT_BOOT, failed, hardware);
  expect(readFileSync(path, 'utf8')).toBe(`${copy}\n27aa\n`);
  expect(await readMachineId(path, NEXT_BOOT, failed)).toBe(copy);
  expect(failed).not.toHaveBeenCalled();
});

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

test('a machine that cannot store its identity has the identity of its boot', async () => {
  const failed = vi.fn();
  const path = join(folder, 'file', 'machine-id');
  writeFileSync(join(folder, 'file'), '');
  for (let process = 0; process < 2; process++) expect(await readMachineId(path, FIRST_BOOT, failed)).toBe(FIRST_BOOT);
  expect(failed).toHaveBeenCalledTimes(2);
});

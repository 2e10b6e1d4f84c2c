import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { readOwnPackage } from './own-package.js';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-own-package-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

const moduleIn = (path: string) => pathToFileURL(join(folder, path)).href;

test.each(['main.js', 'dist/main.js', 'dist/install/main.js'])('is found from %s', async (path) => {
  writeFileSync(join(folder, 'package.json'), '{"name":"mine","version":"1.2.3"}');
  expect(await readOwnPackage(moduleIn(path), 'mine')).toEqual({ folder: `${folder}/`, version: '1.2.3' });
});

test('another package in between is skipped', async () => {
  writeFileSync(join(folder, 'package.json'), '{"name":"mine","version":"1.2.3"}');
  mkdirSync(join(folder, 'dist'));
  writeFileSync(join(folder, 'dist', 'package.json'), '{"name":"other","version":"9.0.0"}');
  expect((await readOwnPackage(moduleIn('dist/main.js'), 'mine')).version).toBe('1.2.3');
});

test('a missing package.json is an error', async () => {
  await expect(readOwnPackage(moduleIn('main.js'), 'mine')).rejects.toThrow('package.json of mine not found above');
});

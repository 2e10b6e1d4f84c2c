import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { putDurably, putNewDurably } from './durable-file.js';

let folder: string;
let path: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-durable-'));
  path = join(folder, 'key');
});

afterEach(() => rmSync(folder, { recursive: true }));

test('a file is replaced, and only its owner may read it', async () => {
  await putDurably(path, 'former');
  await putDurably(path, 'new');
  expect(readFileSync(path, 'utf8')).toBe('new');
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(readdirSync(folder)).toEqual(['key']);
});

test('a file that cannot be replaced leaves no unfinished one', async () => {
  mkdirSync(path);
  await expect(putDurably(path, 'new')).rejects.toThrow();
  expect(readdirSync(folder)).toEqual(['key']);
});

test('a new file does not replace an existing one', async () => {
  writeFileSync(path, 'former');
  expect(await putNewDurably(path, 'new')).toBe(false);
  expect(readFileSync(path, 'utf8')).toBe('former');
  expect(readdirSync(folder)).toEqual(['key']);
});

test('of several writers at once, one writes the new file', async () => {
  const texts = Array.from({ length: 8 }, (_, index) => `text ${index}`);
  const written = await Promise.all(texts.map((text) => putNewDurably(path, text)));
  expect(written.filter(Boolean)).toHaveLength(1);
  expect(readFileSync(path, 'utf8')).toBe(texts[written.indexOf(true)]);
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(readdirSync(folder)).toEqual(['key']);
});

import { execFileSync } from 'node:child_process';
import { chmodSync, chownSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { truncateSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { spoolDel, spooledRequest } from '../testing/spooled.js';
import { SpoolDirectory, spoolName } from './spool-directory.js';

const NAME = 'net,c0ffee,eth0.del';

let folder: string;
let path: string;
let directory: SpoolDirectory;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-spool-'));
  path = join(folder, 'spool');
  directory = new SpoolDirectory(path, { nowMs: () => Date.now() });
});

afterEach(() => rmSync(folder, { recursive: true }));

test('names a file as the shim does (plugin/shim/test/spool_test.cc)', () => {
  expect(spoolName({ network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' })).toBe(NAME);
});

test('without a directory there is no file, and none is created', async () => {
  expect(await directory.list()).toEqual([]);
  expect(directory.has(NAME)).toBe(false);
  expect(await directory.read(NAME)).toBeUndefined();
  expect(existsSync(path)).toBe(false);
});

test('lists requests only, and removes temporary files once no shim can still write them', async () => {
  spoolDel(path);
  writeFileSync(join(path, 'new.writing'), '');
  writeFileSync(join(path, 'old.writing'), '');
  writeFileSync(join(path, 'net,cafe,eth0.del.unreadable'), '');
  const beforeS = Date.now() / 1000 - 121;
  utimesSync(join(path, 'old.writing'), beforeS, beforeS);
  expect(await directory.list()).toEqual([NAME]);
  expect(readdirSync(path).sort()).toEqual(['net,c0ffee,eth0.del', 'net,cafe,eth0.del.unreadable', 'new.writing']);
});

test('removes a file that was read, but not one that replaced it', async () => {
  spoolDel(path);
  const first = await directory.read(NAME);
  expect(first!.bytes.toString()).toBe(spooledRequest());
  spoolDel(path, {}, 'later');
  await directory.remove(first!);
  const second = await directory.read(NAME);
  expect(second!.bytes.toString()).toBe('later');
  await directory.remove(second!);
  expect(directory.has(NAME)).toBe(false);
  await directory.remove(second!);
});

test('sets a file aside', async () => {
  spoolDel(path);
  expect(await directory.setAside(NAME)).toBe(join(path, `${NAME}.unreadable`));
  expect(await directory.list()).toEqual([]);
});

describe('refuses', () => {
  const refused = { code: 'STATE_IO', message: expect.stringContaining('only its owner root can write to') };

  test('a directory that other users own or can write to', async () => {
    mkdirSync(path);
    chmodSync(path, 0o720);
    await expect(directory.list()).rejects.toMatchObject(refused);
    chmodSync(path, 0o700);
    chownSync(path, 1234, 1234);
    await expect(directory.list()).rejects.toMatchObject(refused);
  });

  test('a link', async () => {
    symlinkSync('/tmp', path);
    await expect(directory.list()).rejects.toMatchObject(refused);
  });

  test('anything but a regular file, without waiting for it', async () => {
    mkdirSync(path);
    execFileSync('mkfifo', [join(path, 'a.del'), join(path, 'old.writing')]);
    symlinkSync('/dev/zero', join(path, 'b.del'));
    symlinkSync('missing', join(path, 'c.del'));
    for (const name of ['a.del', 'b.del', 'c.del']) {
      expect(directory.has(name)).toBe(true);
      await expect(directory.read(name)).rejects.toMatchObject({ message: 'it is not a regular file' });
    }
    utimesSync(join(path, 'old.writing'), 0, 0);
    expect(await directory.list()).toEqual(['a.del', 'b.del', 'c.del']);
  });

  test('a file of another user, a directory, and a file that is too large', async () => {
    mkdirSync(path);
    writeFileSync(join(path, 'a.del'), '');
    chownSync(join(path, 'a.del'), 1234, 1234);
    mkdirSync(join(path, 'b.del'));
    writeFileSync(join(path, 'c.del'), '');
    truncateSync(join(path, 'c.del'), 5 << 20);
    for (const name of ['a.del', 'b.del', 'c.del']) {
      await expect(directory.read(name)).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
    }
  });
});

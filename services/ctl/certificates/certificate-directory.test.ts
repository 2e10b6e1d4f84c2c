import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { systemClock } from '@podwire/shared/runtime/clock';
import { builtFile } from '@podwire/shared/testing/program';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import type { CertificateFiles } from './certificate.js';
import { CertificateDirectory } from './certificate-directory.js';

let folder: string;
let path: string;
let directory: CertificateDirectory;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-directory-'));
  path = join(folder, 'run', 'tls');
  directory = new CertificateDirectory(path, systemClock);
});
afterEach(() => rmSync(folder, { recursive: true }));

const version = (name: string): CertificateFiles => ({
  certificate: `certificate ${name}`,
  key: `key ${name}`,
  authorities: `authorities ${name}`,
});
const hidden = () => readdirSync(path).filter((name) => /^\.(version|link)-/.test(name));

test('files are read as they were written, and are accessible to their owner only', async () => {
  expect(await directory.read()).toBeUndefined();

  await directory.write(version('1'));

  expect(await directory.read()).toEqual(version('1'));
  const modes = ['', 'tls.key', 'tls.crt', 'ca.crt'].map((name) => statSync(join(path, name)).mode & 0o777);
  expect(modes.map((mode) => mode.toString(8))).toEqual(['700', '600', '600', '600']);
  expect(readFileSync(join(path, 'tls.key'), 'utf8')).toBe('key 1');
});

test('a missing file makes the set incomplete', async () => {
  await directory.write(version('1'));
  rmSync(join(path, 'ca.crt'));

  expect(await directory.read()).toBeUndefined();
  await directory.write(version('2'));
  expect(await directory.read()).toEqual(version('2'));
});

test('files in the place of the links are replaced', async () => {
  mkdirSync(path, { recursive: true });
  for (const name of ['tls.key', 'tls.crt', 'ca.crt']) writeFileSync(join(path, name), 'of an operator');

  await directory.write(version('1'));

  expect(await directory.read()).toEqual(version('1'));
});

test('the version in use and the one before it are kept; older ones are removed after ten minutes', async () => {
  const old = new Date(Date.now() - 660_000);
  for (const name of ['1', '2', '3', '4']) {
    await directory.write(version(name));
    for (const each of hidden()) utimesSync(join(path, each), old, old);
  }

  expect(hidden()).toHaveLength(2);
  // Another process may have written a young one and not linked it yet.
  for (const name of ['5', '6', '7']) await directory.write(version(name));
  expect(hidden()).toHaveLength(3);
});

test('readers always see whole files of one version', async () => {
  await directory.write(version('0'));
  let isWriting = true;
  const seen = new Set<string>();
  const read = async (): Promise<void> => {
    while (isWriting) {
      const key = readFileSync(join(path, 'tls.key'), 'utf8');
      expect(key).toMatch(/^key \d+$/);
      seen.add(key);
      await new Promise((resolve) => setImmediate(resolve));
    }
  };
  const reading = read();
  for (let count = 1; count <= 30; count++) await directory.write(version(String(count)));
  isWriting = false;
  await reading;

  expect(seen.size).toBeGreaterThan(1);
});

test('writers at once leave the files of one of them', async () => {
  const writers = Array.from({ length: 8 }, (_, index) => {
    const own = new CertificateDirectory(path, systemClock);
    return own.write(version(String(index)));
  });
  await Promise.all(writers);

  const files = await directory.read();
  expect(files).toEqual(version(files!.key.replace('key ', '')));
});

describe('a directory that cannot be written', () => {
  test('is a file', async () => {
    writeFileSync(join(folder, 'run'), '');

    for (const attempt of [directory.prepare(), directory.write(version('1'))])
      await expect(attempt).rejects.toMatchObject({
        code: 'STATE_IO',
        message: expect.stringMatching(/^certificate directory .*: cannot be written; check that/),
      });
  });

  test('has a folder in the place of a file: the version before stays in use', async () => {
    mkdirSync(join(path, '.current'), { recursive: true });

    await expect(directory.write(version('1'))).rejects.toMatchObject({ code: 'STATE_IO' });
    expect(existsSync(join(path, 'tls.key'))).toBe(false);
    expect(readdirSync(path).filter((name) => name.startsWith('.link-'))).toEqual([]);
  });
});

test('a writer that is killed leaves a key with its own certificate', async () => {
  const [source] = [builtFile(fileURLToPath(new URL('./certificate-directory.ts', import.meta.url)))];
  const clock = builtFile(fileURLToPath(new URL('../../shared/runtime/clock.ts', import.meta.url)));
  const program = `
    import { CertificateDirectory } from ${JSON.stringify(source)};
    import { systemClock } from ${JSON.stringify(clock)};
    const directory = new CertificateDirectory(${JSON.stringify(path)}, systemClock);
    for (let count = 0; ; count++) {
      const name = process.pid + '-' + count;
      await directory.write({ certificate: 'certificate ' + name, key: 'key ' + name, authorities: 'authorities ' + name });
      if (count === 0) process.stdout.write('written');
    }`;
  await directory.write(version('0'));
  for (let round = 0; round < 8; round++) {
    const child = spawn(process.execPath, ['--input-type=module', '--eval', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await once(child.stdout, 'data');
    await new Promise((resolve) => setTimeout(resolve, 3 * round));
    child.kill('SIGKILL');
    await once(child, 'exit');

    const files = await directory.read();
    expect(files).toEqual(version(files!.key.replace('key ', '')));
  }
});

import { execFileSync, spawnSync } from 'node:child_process';
import { join } from 'node:path';

import { describe, expect, test } from 'vitest';

import { FILES, read } from '../architecture/tree.js';
import { ROOT } from '../support/root.js';

interface Manifest {
  readonly bin?: Readonly<Record<string, string>>;
}

/** Each program that a workspace has npm link, and the file that it is. */
const PROGRAMS = FILES.filter((file) => file.endsWith('/package.json')).flatMap((file) => {
  const manifest: Manifest = JSON.parse(read(file));
  const folder = file.replace(/\/package\.json$/, '');
  return Object.entries(manifest.bin ?? {}).map(([name, path]) => [name, join(folder, path)] as const);
});

const asked = (path: string, ...args: readonly string[]) => {
  const { status, stdout, stderr } = spawnSync(join(ROOT, path), args, { encoding: 'utf8', timeout: 30_000 });
  return { status, stdout, stderr };
};

test('every program of the documents is one that npm links', () => {
  expect(PROGRAMS.map(([name]) => name).sort()).toEqual([
    'podwire',
    'podwire-conformance',
    'podwire-dataplane',
    'podwire-ipam',
    'podwire-plugin',
    'podwirectl',
  ]);
});

describe.each(PROGRAMS)('%s', (name, path) => {
  test('is committed and executable, as npm links nothing that is built later', () => {
    const mode = execFileSync('git', ['ls-files', '--stage', '--', path], { cwd: ROOT, encoding: 'utf8' }).split(
      ' ',
    )[0];
    expect(mode).toBe('100755');
  });

  test('tells its usage, and starts nothing', () => {
    const { status, stdout, stderr } = asked(path, '--help');
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toContain(`usage: ${name}`);
  });

  test('ends well where nobody reads what it prints any more', () => {
    const script = '{ "$0" --help; echo "exit code $?" >&2; } | true';
    const { stderr } = spawnSync('sh', ['-c', script, join(ROOT, path)], { encoding: 'utf8', timeout: 30_000 });
    expect(stderr).toBe('exit code 0\n');
  });

  test('refuses what it does not know, and says where to look', () => {
    const { status, stdout, stderr } = asked(path, '--nonsense');
    expect({ isRefused: status === 2 || status === 254, stdout }).toEqual({ isRefused: true, stdout: '' });
    expect(stderr).toContain('--nonsense');
    expect(stderr).toMatch(/usage:|--help/);
  });
});

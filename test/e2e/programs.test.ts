import { execFileSync, spawnSync } from 'node:child_process';
import { join } from 'node:path';

import { describe, expect, test } from 'vitest';

import { FILES, read } from '../architecture/tree.js';
import { ROOT } from '../support/root.js';

interface Manifest {
  readonly bin?: Readonly<Record<string, string>>;
}

/** Each program that npm links for a workspace, and its file. */
const PROGRAMS = FILES.filter((file) => file.endsWith('/package.json')).flatMap((file) => {
  const manifest: Manifest = JSON.parse(read(file));
  const folder = file.replace(/\/package\.json$/, '');
  return Object.entries(manifest.bin ?? {}).map(([name, path]) => [name, join(folder, path)] as const);
});

const asked = (path: string, ...args: readonly string[]) => {
  const { status, stdout, stderr } = spawnSync(join(ROOT, path), args, { encoding: 'utf8', timeout: 30_000 });
  return { status, stdout, stderr };
};

test('every program of the documents is linked by npm', () => {
  expect(PROGRAMS.map(([name]) => name).sort()).toEqual([
    'podwire',
    'podwire-conformance',
    'podwire-ipam',
    'podwire-node',
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

  test('prints its usage, and starts nothing', () => {
    const { status, stdout, stderr } = asked(path, '--help');
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toContain(`usage: ${name}`);
  });

  test('exits normally when its output is closed', () => {
    const script = '{ "$0" --help; echo "exit code $?" >&2; } | true';
    const { stderr } = spawnSync('sh', ['-c', script, join(ROOT, path)], { encoding: 'utf8', timeout: 30_000 });
    expect(stderr).toBe('exit code 0\n');
  });

  test('refuses unknown arguments, with a reference to the help', () => {
    const { status, stdout, stderr } = asked(path, '--nonsense');
    expect({ isRefused: status === 2 || status === 254, stdout }).toEqual({ isRefused: true, stdout: '' });
    expect(stderr).toContain('--nonsense');
    expect(stderr).toMatch(/usage:|--help/);
  });
});

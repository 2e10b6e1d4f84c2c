import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { builtFile, Program, type ProgramResult } from '../testing/program.js';
import { readOwnPackage } from './own-package.js';

interface Signalled {
  /** Output of the program before it gets the signals. */
  readonly word?: string;
  readonly signals?: readonly NodeJS.Signals[];
}

async function live(life: string, { word = 'started', signals = [] }: Signalled = {}): Promise<ProgramResult> {
  const program = new Program('lifecycle.ts', [life]);
  if (signals.length > 0) await program.waitForLine(word);
  for (const signal of signals) program.child.kill(signal);
  return program.result;
}

const messages = ({ log }: ProgramResult) => log.map(({ level, msg }) => `${String(level)}: ${String(msg)}`);

describe.concurrent('a signal', () => {
  test.for<NodeJS.Signals>(['SIGTERM', 'SIGINT'])('%s stops the process cleanly', async (signal, { expect }) => {
    const ended = await live('serves', { signals: [signal] });
    expect(ended).toMatchObject({ exitCode: 0, stdout: 'started\nstop\n' });
    expect(messages(ended)).toEqual([`info: stopping: ${signal} received`, 'info: stopped']);
  });

  test('that is repeated stops it once', async ({ expect }) => {
    const program = new Program('lifecycle.ts', ['serves']);
    await program.waitForLine('started');
    program.child.kill('SIGTERM');
    await program.waitForLine('stop');
    program.child.kill('SIGTERM');
    program.child.kill('SIGINT');
    await expect(program.result).resolves.toMatchObject({ exitCode: 0, stdout: 'started\nstop\n' });
  });

  test('during the start stops it once it has started', async ({ expect }) => {
    const ended = await live('starts slowly', { word: 'starting', signals: ['SIGTERM'] });
    expect(ended).toMatchObject({ exitCode: 0, stdout: 'starting\nstarted\nstop\n' });
  });

  test('cleanly ends a start that it cancels', async ({ expect }) => {
    const ended = await live('gives up its start', { word: 'starting', signals: ['SIGTERM'] });
    expect(ended).toMatchObject({ exitCode: 0, stdout: 'starting\n' });
    expect(messages(ended)).toEqual(['info: stopping: SIGTERM received', 'info: stopped']);
  });

  test.for([
    ['hangs at the stop', 'started'],
    ['hangs at the start', 'starting'],
  ] as const)('ends a process that %s after the stop timeout', async ([life, word], { expect }) => {
    const ended = await live(life, { word, signals: ['SIGTERM'] });
    expect(ended.exitCode).toBe(1);
    expect(messages(ended).at(-1)).toBe('error: stop timed out after 600 ms: exiting');
  });
});

describe.concurrent('a failure', () => {
  test('at the start is one line for the operator, without a stack', async ({ expect }) => {
    const { exitCode, log, stdout } = await live('fails at the start');
    expect({ exitCode, stdout }).toEqual({ exitCode: 1, stdout: '' });
    expect(log).toEqual([
      {
        level: 'fatal',
        time: expect.any(String),
        service: 'fixture',
        msg: 'PODWIRE_X is nonsense',
        err: { type: 'Failure', message: 'PODWIRE_X is nonsense', code: 'INVALID_SETTINGS', details: {} },
      },
    ]);
  });

  test('at the stop is reported, with exit code 1', async ({ expect }) => {
    const ended = await live('fails at the stop', { signals: ['SIGTERM'] });
    expect(ended.exitCode).toBe(1);
    expect(messages(ended)).toEqual(['info: stopping: SIGTERM received', 'fatal: the store is gone']);
  });

  test.for([
    ['has a defect at the start', 'start failed'],
    ['throws without a handler', 'process ended by a defect; please report it with this line'],
    ['rejects without a handler', 'process ended by a defect; please report it with this line'],
  ] as const)('of a process that %s is one line with its stack', async ([life, msg], { expect }) => {
    const { exitCode, log } = await live(life);
    expect(exitCode).toBe(1);
    expect(log).toHaveLength(1);
    expect(log[0]).toMatchObject({ level: 'fatal', msg });
    expect(log[0]).toMatchObject({ err: { type: 'TypeError', message: 'x is not a function' } });
    expect(log[0]?.err).toHaveProperty('stack', expect.stringContaining('lifecycle.js'));
  });
});

test('a warning of Node.js is one log line, and printed nowhere else', async () => {
  const program = new Program('lifecycle.ts', ['is warned']);
  await program.waitForLine('started');
  program.child.kill('SIGTERM');
  const { exitCode, log } = await program.result;
  expect(exitCode).toBe(0);
  expect(log.filter(({ level }) => level !== 'info')).toMatchObject([
    { level: 'warn', msg: 'Node.js warning: that is out of use', err: { type: 'DeprecationWarning' } },
  ]);
});

test('console output of libraries is one log line each, and printed nowhere else', async () => {
  const ended = await live('has libraries that talk', { signals: ['SIGTERM'] });
  expect(ended).toMatchObject({ exitCode: 0, stdout: 'started\nstop\n' });
  expect(ended.log.slice(0, 2)).toMatchObject([
    {
      level: 'error',
      msg: 'console output of a library: no space left',
      err: { type: 'Error', message: 'no space left' },
    },
    { level: 'info', msg: 'console output of a library: 7 pages' },
  ]);
});

test('files are accessible to their owner only', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-umask-'));
  try {
    const program = new Program('lifecycle.ts', ['makes a file', join(folder, 'file')]);
    await program.waitForLine('started');
    program.child.kill('SIGTERM');
    await expect(program.result).resolves.toMatchObject({ exitCode: 0 });
    expect(statSync(join(folder, 'file')).mode & 0o777).toBe(0o600);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

describe('a process with arguments does not start', () => {
  const program = builtFile(fileURLToPath(new URL('../testing/lifecycle.ts', import.meta.url)));
  const asked = (...args: readonly string[]) => {
    const command = [program, 'takes no arguments', ...args];
    const { status, stdout, stderr } = spawnSync(process.execPath, command, { encoding: 'utf8', timeout: 50_000 });
    return { status, stdout, stderr };
  };

  test.each([['--help'], ['-h'], ['serve', '--help']])('%s prints the usage', (...args) => {
    expect(asked(...args)).toEqual({ status: 0, stdout: 'usage: fixture\n', stderr: '' });
  });

  test('--version prints the release', () => {
    expect(asked('--version')).toEqual({
      status: 0,
      stdout: expect.stringMatching(/^fixture \d+\.\d+\.\d+\n$/),
      stderr: '',
    });
  });

  test('any other argument is refused with a reference to the help', () => {
    const stderr = 'fixture: unknown argument: serve --now\ntry: fixture --help\n';
    expect(asked('serve', '--now')).toEqual({ status: 2, stdout: '', stderr });
  });
});

describe('the own package', () => {
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
});

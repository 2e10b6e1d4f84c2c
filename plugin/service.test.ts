import { execFile } from 'node:child_process';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { FdLimit } from './service.js';
import { recordingLog } from './testing/plugin.js';

test('a process that can open files has no shortage, and says nothing', () => {
  const { log, lines } = recordingLog();
  expect(new FdLimit(log).shortage()).toBeUndefined();
  expect(lines()).toEqual([]);
});

/** Opens all that it may, asks, closes one, and asks again; prints what it was told. */
const PROGRAM = `
  import { closeSync, openSync } from 'node:fs';
  const { FdLimit } = await import(process.argv[1]);
  const told = [];
  const log = { error: (_, text) => told.push(text), info: (text) => told.push(text) };
  const descriptors = new FdLimit(log);
  const open = [];
  try { for (;;) open.push(openSync('/dev/null')); } catch {}
  const failures = [descriptors.shortage(), descriptors.shortage()];
  for (const descriptor of open) closeSync(descriptor);
  failures.push(descriptors.shortage());
  console.log(JSON.stringify({ told, codes: failures.map((failure) => failure?.code ?? null) }));`;

test('one that cannot is refused its calls with the reason, which the log has once, until it can again', async () => {
  const module = join(import.meta.dirname, 'dist/service.js');
  const args = ['--nofile=200:200', process.execPath, '--input-type=module', '-e', PROGRAM, module];
  const text = await new Promise<string>((resolve) => execFile('prlimit', args, (_, stdout) => resolve(stdout)));
  expect(JSON.parse(text)).toEqual({
    codes: ['UNREACHABLE', 'UNREACHABLE', null],
    told: [
      expect.stringMatching(/^calls are rejected: podwire-plugin has no file descriptor left \(EMFILE\)/),
      'file descriptors are available again',
    ],
  });
});

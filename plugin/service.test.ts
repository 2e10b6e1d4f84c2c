import { execFile } from 'node:child_process';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { FdLimit } from './service.js';
import { recordingLog } from './testing/plugin.js';

test('a process that can open files has no shortage, and logs nothing', () => {
  const { log, lines } = recordingLog();
  expect(new FdLimit(log).shortage()).toBeUndefined();
  expect(lines()).toEqual([]);
});

/** Opens files up to the limit, asks, closes one, and asks again; prints the log. */
const PROGRAM = `
  import { closeSync, openSync } from 'node:fs';
  const { FdLimit } = await import(process.argv[1]);
  const logged = [];
  const log = { error: (_, text) => logged.push(text), info: (text) => logged.push(text) };
  const descriptors = new FdLimit(log);
  const open = [];
  try { for (;;) open.push(openSync('/dev/null')); } catch {}
  const failures = [descriptors.shortage(), descriptors.shortage()];
  for (const descriptor of open) closeSync(descriptor);
  failures.push(descriptors.shortage());
  console.log(JSON.stringify({ logged, codes: failures.map((failure) => failure?.code ?? null) }));`;

test('a process without descriptors rejects calls with the reason, logged once, until it has some again', async () => {
  const module = join(import.meta.dirname, 'dist/service.js');
  const args = ['--nofile=200:200', process.execPath, '--input-type=module', '-e', PROGRAM, module];
  const text = await new Promise<string>((resolve) => execFile('prlimit', args, (_, stdout) => resolve(stdout)));
  expect(JSON.parse(text)).toEqual({
    codes: ['UNREACHABLE', 'UNREACHABLE', null],
    logged: [
      expect.stringMatching(/^calls are rejected: podwire-node has no file descriptor left \(EMFILE\)/),
      'file descriptors are available again',
    ],
  });
});

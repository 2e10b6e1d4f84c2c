import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { afterEach, beforeEach, expect, test } from 'vitest';

/** The first process of a container. Built by `npm run build`, which `npm test` does first. */
const RUN = join(dirname(fileURLToPath(import.meta.url)), 'build', 'podwire-run');

let folder: string;
let child: ChildProcess | undefined;
let errors = '';
let output = '';

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-run-'));
  errors = '';
  output = '';
});
afterEach(() => {
  child?.kill('SIGKILL');
  child = undefined;
  rmSync(folder, { recursive: true });
});

/** Runs a shell script below podwire-run. */
function start(script: string): ChildProcess {
  child = spawn(RUN, ['sh', '-c', script], { stdio: ['ignore', 'pipe', 'pipe'], cwd: folder });
  child.stdout?.setEncoding('utf8').on('data', (text: string) => (output += text));
  child.stderr?.setEncoding('utf8').on('data', (text: string) => (errors += text));
  return child;
}

/** Process IDs of the script, in the order of its starts. */
const starts = (): number[] => output.split('\n').filter(Boolean).map(Number);

const LONG = 'echo $$; exec sleep 1000';

async function exitOf(process: ChildProcess): Promise<[code: number | null, signal: string | null]> {
  const [code, signal]: [number | null, string | null] = await once(process, 'exit').then(([a, b]) => [a, b]);
  return [code, signal];
}

test('a program that exits by itself ends podwire-run with its code', () => {
  expect(spawnSync(RUN, ['sh', '-c', 'exit 3']).status).toBe(3);
  expect(spawnSync(RUN, ['sh', '-c', 'exit 0']).status).toBe(0);
});

test('a missing program, and no program, are reported', () => {
  const missing = spawnSync(RUN, [join(folder, 'missing')], { encoding: 'utf8' });
  expect(missing.status).toBe(127);
  expect(JSON.parse(missing.stderr)).toMatchObject({
    level: 'fatal',
    msg: `${join(folder, 'missing')}: cannot be run: No such file or directory; check the container's command`,
  });
  const usage = spawnSync(RUN, [], { encoding: 'utf8' });
  expect(usage.status).toBe(2);
  expect(usage.stderr).toMatch(/^usage: podwire-run PROGRAM/);
});

test('a killed program starts again, after growing pauses', async () => {
  start(LONG);
  for (const [index, pauseMs] of [100, 200, 400].entries()) {
    await expect.poll(() => starts().length, { timeout: 30_000 }).toBe(index + 1);
    process.kill(starts()[index]!, 'SIGKILL');
    await expect
      .poll(() => errors, { timeout: 30_000 })
      .toContain(`sh: ended by signal 9; starts again in ${pauseMs} ms`);
  }
  await expect.poll(() => starts().length, { timeout: 30_000 }).toBe(4);
  expect(new Set(starts()).size).toBe(4);
});

test('SIGTERM is passed to the program, which decides when and how it ends', async () => {
  const process = start('trap "sleep 0.2; exit 7" TERM; echo $$; while :; do sleep 0.05; done');
  await expect.poll(() => starts().length).toBe(1);
  process.kill('SIGTERM');
  expect(await exitOf(process)).toEqual([7, null]);
});

test('a program that ends by SIGTERM does not start again', async () => {
  const process = start(LONG);
  await expect.poll(() => starts().length).toBe(1);
  process.kill('SIGTERM');
  expect(await exitOf(process)).toEqual([128 + 15, null]);
  expect(starts()).toHaveLength(1);
});

test('SIGTERM ends the pause before the next start', async () => {
  // A long pause, so that the signal arrives during it on a busy machine too.
  const supervisor = start('echo $$; kill -9 $$');
  await expect.poll(() => errors, { timeout: 30_000 }).toContain('starts again in 3200 ms');
  supervisor.kill('SIGTERM');
  expect(await exitOf(supervisor)).toEqual([128 + 9, null]);
  expect(starts()).toHaveLength(6);
});

test('other signals are passed on, and do not end it', async () => {
  start('trap "echo 1" HUP; trap "echo 2" USR1; echo $$; while :; do sleep 0.05; done');
  await expect.poll(() => starts().length).toBe(1);
  child?.kill('SIGHUP');
  await expect.poll(() => starts()[1]).toBe(1);
  child?.kill('SIGUSR1');
  await expect.poll(() => starts()[2]).toBe(2);
});

test('the program ends with podwire-run, also when that is killed', async () => {
  start(LONG);
  await expect.poll(() => starts().length).toBe(1);
  const [pid] = starts();
  child?.kill('SIGKILL');
  await expect.poll(() => stateOf(pid!)).toMatch(/^[ZX-]$/);
});

/** State of a process in /proc; '-' for none. */
function stateOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.charAt(0);
  } catch {
    return '-';
  }
}

test('as first process of a container it reaps orphans', () => {
  // The inner shell's child outlives it, and becomes a child of podwire-run.
  const script = '(sleep 0.2 & echo $! > orphan); sleep 1; cat /proc/$(cat orphan)/stat 2>/dev/null || echo reaped';
  const args = ['--fork', '--pid', '--mount-proc', RUN, 'sh', '-c', script];
  const { stdout, status } = spawnSync('unshare', args, { encoding: 'utf8', cwd: folder });
  expect({ stdout, status }).toEqual({ stdout: 'reaped\n', status: 0 });
});

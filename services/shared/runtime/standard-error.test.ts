import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';

import { afterEach, beforeEach, expect, test } from 'vitest';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-log-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

/** Arguments of Node.js for a program with a logger to standard error, `log`. */
function program(body: string): string[] {
  const module = new URL('./log.js', import.meta.url).href.replace('/runtime/', '/dist/runtime/');
  const script = `
    const { writeFileSync, rmSync } = await import('node:fs');
    const { setImmediate: turn, setTimeout: sleep } = await import('node:timers/promises');
    const { once } = await import('node:events');
    const mayEnd = () => once(process.stdin.resume(), 'end');
    const { createLogger } = await import(${JSON.stringify(module)});
    const log = createLogger({ service: 'test', level: 'info' });
    /** More than a pipe takes. */
    const filler = 'x'.repeat(1000);
    const write = async (count) => {
      for (let line = 0; line < count; line++) {
        log.info({ filler }, 'line ' + line);
        await turn();
      }
    };
    ${body}`;
  return ['--input-type=module', '--eval', script];
}

interface Reader {
  readonly through?: 'pipe' | 'socket';
  /** It reads once this file exists. */
  readonly file: string;
}

/** Runs it with a reader of its standard error; the result has the text that was read so far. */
async function runWith({ through = 'pipe', file }: Reader, args: readonly string[]) {
  // Node.js itself makes sockets for its children.
  const pipe = '"$@" 2>&1 >"$OUT" 3>&- | { while ! [ -e "$FILE" ]; do sleep 0.05; done; cat >&3; }';
  const script = through === 'pipe' ? pipe : '"$@" 2>&3 3>&-';
  const env = { ...process.env, OUT: join(folder, 'out'), FILE: file };
  const command = ['-c', script, 'sh', process.execPath, ...args];
  const child = spawn('sh', command, { env, stdio: ['pipe', 'ignore', 'inherit', 'pipe'] });
  const ended = once(child, 'close');
  const standardError = child.stdio[3];
  if (!(standardError instanceof Readable)) throw new Error('spawned with a pipe to read from');
  if (through === 'socket') await expect.poll(() => existsSync(file), { timeout: 20_000 }).toBe(true);
  let read = '';
  standardError.setEncoding('utf8').on('data', (text: string) => (read += text));
  return {
    read: () => read,
    /** Lets the program continue from `mayEnd()`. @returns everything that it wrote */
    end: async () => {
      child.stdin?.end();
      await ended;
      return read;
    },
  };
}

const linesOf = (read: string) =>
  read
    .trimEnd()
    .split('\n')
    .map((line): { readonly msg: string; readonly lines?: number } => JSON.parse(line));
const messages = (read: string) => linesOf(read).map(({ msg }) => msg);

const numbered = (count: number) => Array.from({ length: count }, (_, line) => `line ${line}`);

test.each(['pipe', 'socket'] as const)(
  'a %s without a reader does not block the process, and has all lines later',
  async (through) => {
    const file = join(folder, 'written');
    const args = program(`
    await write(500);
    writeFileSync(${JSON.stringify(file)}, '');
    await mayEnd();`);
    const { read, end } = await runWith({ through, file }, args);
    await expect.poll(() => read().split('\n').length - 1, { timeout: 20_000 }).toBe(500);
    expect(messages(await end())).toEqual(numbered(500));
  },
);

test('the number of lost lines is logged', async () => {
  const file = join(folder, 'written');
  const args = program(`
    await write(2000);
    writeFileSync(${JSON.stringify(file)}, '');
    await mayEnd();
    log.info('later');`);
  const { read, end } = await runWith({ file }, args);
  await expect.poll(read, { timeout: 20_000 }).toContain('log lines were lost');
  const lines = linesOf(await end());
  const lossReport = lines.find(({ msg }) => msg.startsWith('log lines were lost'));
  const kept = lines.filter(({ msg }) => msg.startsWith('line ')).map(({ msg }) => msg);
  expect(kept.length).toBeGreaterThan(900);
  expect(kept).toEqual(numbered(kept.length));
  expect(lossReport?.lines).toBe(2000 - kept.length);
  expect(lines.at(-1)?.msg).toBe('later');
});

test('a process that exits waits for its reader', async () => {
  // Its clock is stopped, as it waits a second at most, and its reader may be scheduled later.
  const args = program(`
    performance.now = () => 0;
    for (let line = 0; line < 500; line++) log.info({ filler }, 'line ' + line);`);
  const { end } = await runWith({ file: folder }, args);
  expect(messages(await end())).toEqual(numbered(500));
});

test('a process that exits does not wait forever', async () => {
  const file = join(folder, 'exited');
  const args = program(`process.on('exit', () => writeFileSync(${JSON.stringify(file)}, '')); await write(200);`);
  const { end } = await runWith({ file }, args);
  // The last line that found room may be cut.
  const whole = messages((await end()).split('\n').slice(0, -1).join('\n'));
  expect(whole.length).toBeGreaterThan(0);
  expect(whole).toEqual(numbered(whole.length));
});

test('a full disk ends no process, which writes its lines once there is room', () => {
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', folder]);
  try {
    const [filler, file] = [join(folder, 'filler'), join(folder, 'log')];
    const args = program(`
      log.info('first');
      await turn();
      rmSync(${JSON.stringify(filler)});
      await sleep(500);`);
    writeFileSync(filler, Buffer.alloc(64 * 1024));
    const stderr = openSync(file, 'a');
    const { status } = spawnSync(process.execPath, args, { stdio: ['ignore', 'ignore', stderr] });
    closeSync(stderr);
    expect({ status, log: readFileSync(file, 'utf8') }).toEqual({
      status: 0,
      log: expect.stringMatching(/^\{.*"msg":"first"\}\n$/),
    });
  } finally {
    execFileSync('umount', [folder]);
  }
});

test.each([
  ['ends by itself', ''],
  ['exits', 'process.exit(3);'],
  ['throws', "throw new Error('a defect');"],
])('a process that %s has written its lines, of several loggers in their order', (_, end) => {
  const script = program(`
    const second = createLogger({ service: 'test', level: 'info' });
    log.info('first'); second.info('second'); ${end}`);
  const { stderr } = spawnSync(process.execPath, script, { encoding: 'utf8' });
  const lines = stderr.split('\n').filter((line) => line.startsWith('{"level"'));
  expect(lines.map((line) => JSON.parse(line).msg)).toEqual(['first', 'second']);
});

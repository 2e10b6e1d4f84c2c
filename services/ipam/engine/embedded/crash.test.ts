import { execFileSync, spawn, type ChildProcessByStdio } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';

import { builtFile } from '@podwire/shared/testing/program';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { EmbeddedStore } from './embedded-store.js';

const signal = new AbortController().signal;
let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'podwire-crash-'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const openStore = () => EmbeddedStore.open({ directory, pid: process.pid });

function committerCommand(): string[] {
  return [process.execPath, builtFile(join(import.meta.dirname, '../testing/committer.ts')), directory];
}

function start([program = '', ...args]: string[]): ChildProcessByStdio<null, Readable, null> {
  return spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'] });
}

/** @returns the numbers that the committer printed until it was killed, `aliveMs` after its first */
async function commitUntilKilled(aliveMs: number): Promise<number[]> {
  const child = start(committerCommand());
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => (output += text));
  await once(child.stdout, 'data');
  await sleep(aliveMs);
  child.kill('SIGKILL');
  await once(child, 'close');
  return output.slice(0, output.lastIndexOf('\n')).split('\n').map(Number);
}

describe('the embedded store when its process is killed', () => {
  it.each([3, 11, 29, 47, 83, 130])(
    'has every acknowledged transaction, each complete, after SIGKILL within %i ms',
    async (aliveMs) => {
      const acknowledged = [...(await commitUntilKilled(aliveMs)), ...(await commitUntilKilled(aliveMs / 2))];
      const store = await openStore();
      const { records } = await store.list('/', signal);
      const values = new Map(records.map(({ key, value }) => [key, Number(Buffer.from(value).toString())]));
      const logged = records.filter(({ key }) => key.startsWith('/log/')).map(({ key }) => values.get(key));
      expect(logged).toEqual(logged.map((_, index) => index));
      expect(acknowledged.filter((number) => !logged.includes(number))).toEqual([]);
      expect(values.get('/first')).toBe(logged.length - 1);
      expect(values.get('/second')).toBe(logged.length - 1);
      await store.close();
    },
  );

  it('refuses the directory while the other process lives, and not once it is killed', async () => {
    const child = start(committerCommand());
    await once(child.stdout, 'data');
    await expect(openStore()).rejects.toMatchObject({ code: 'STORE_IN_USE', details: { pid: String(child.pid) } });
    child.kill('SIGKILL');
    await once(child, 'close');
    const store = await openStore();
    await store.close();
  });

  it('has the data on the disk before it acknowledges', async () => {
    const trace = join(directory, 'trace');
    const calls = 'fdatasync,pwrite64,pwritev,writev,write';
    const child = start(['strace', '-f', '-y', '-s', '8', '-o', trace, '-e', `trace=${calls}`, ...committerCommand()]);
    for (let lines = 0; lines < 20;) lines += String((await once(child.stdout, 'data'))[0]).split('\n').length - 1;
    const tracer = child.pid ?? 0;
    const [committer = ''] = readFileSync(`/proc/${tracer}/task/${tracer}/children`, 'utf8').split(' ');
    process.kill(Number(committer), 'SIGKILL');
    await once(child, 'close');
    const lines = readFileSync(trace, 'utf8').split('\n');
    // Letters: D data page, S sync, M meta page (opened with O_DSYNC), A acknowledgement.
    const story = inOnePiece(lines).map(letterOf).join('').replaceAll(/D+/g, 'D');
    expect(story.match(/A/g)).toHaveLength(story.match(/DSMA/g)?.length ?? 0);
    expect(story).toMatch(/(DSMA){15}/);
  });
});

/**
 * Joins the calls that strace prints in two lines, as another thread ran in between: at their end, except for an
 * acknowledgement, which counts from when it began.
 */
function inOnePiece(lines: readonly string[]): readonly string[] {
  const begun = new Map<string, string>();
  return lines.flatMap((line) => {
    const thread = line.slice(0, line.indexOf(' '));
    if (/<\.\.\. \w+ resumed>/.test(line)) {
      const beginning = begun.get(thread) ?? '';
      begun.delete(thread);
      return beginning + line.slice(line.indexOf('resumed>') + 'resumed>'.length);
    }
    if (!line.includes('<unfinished ...>') || line.includes('write(1<')) return line;
    begun.set(thread, line.slice(0, line.indexOf('<unfinished ...>')).trimEnd());
    return [];
  });
}

function letterOf(line: string): string {
  if (/fdatasync\(\d+<[^>]*data\.mdb>\)\s+= 0/.test(line)) return 'S';
  if (/write(64|v)\(\d+<[^>]*data\.mdb>/.test(line)) return / = 128$|, 128, /.test(line) ? 'M' : 'D';
  return line.includes('write(1<') ? 'A' : '';
}

describe('the embedded store on a full disk', () => {
  it('fails the transaction, keeps its records, and continues when there is room', async () => {
    const mount = join(directory, 'small');
    mkdirSync(mount);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', mount]);
    try {
      const store = await EmbeddedStore.open({ directory: mount, pid: process.pid });
      const put = (key: string, bytes: number) =>
        store.commit({ comparisons: [], puts: [{ key, value: Buffer.alloc(bytes) }], deletes: [] }, signal);
      const { revision } = await put('/small', 100);
      for (const key of ['/large', '/small']) {
        await expect(put(key, 4 * 2 ** 20)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
      }
      // Together, on lmdb's thread; an unhandled rejection would end the process.
      for (let round = 0; round < 2; round++) {
        for (const result of await Promise.allSettled(['/a', '/b', '/c'].map((key) => put(key, 2 * 2 ** 20)))) {
          expect(result).toMatchObject({
            status: 'rejected',
            reason: { code: 'STORE_UNAVAILABLE', message: expect.stringMatching(/No space left|Input\/output/) },
          });
        }
      }
      const comparisons = [{ type: 'record', key: '/small', modRevision: revision } as const];
      expect((await store.commit({ comparisons, puts: [], deletes: [] }, signal)).committed).toBe(true);
      expect((await store.list('/', signal)).records.map(({ key }) => key)).toEqual(['/small']);
      const together = await Promise.all(['/other', '/another'].map((key) => put(key, 100)));
      expect(together.map(({ committed }) => committed)).toEqual([true, true]);
      expect((await store.list('/', signal)).records.map(({ key }) => key)).toEqual(['/another', '/other', '/small']);
      await store.close();
    } finally {
      execFileSync('umount', [mount]);
    }
  });
});

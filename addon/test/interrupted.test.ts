import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:os';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';

import { expect, it } from 'vitest';

import type { Namespace } from '../lib/index.js';
import { ADDON_FOLDER, codes, FILTER, makePod, open, vethPair } from './ip.js';

const STABLE = 150;

/** A line of the child's output: it begins to read a list, has read one, or was refused one. */
type Line = 'begun' | { names?: string[]; error?: { errno: number; text: string } };

/** Lists links until one list is refused; each datagram of a list is delayed, so that there is time for changes. */
function listSlowly(path: string, datagramMs: number): ChildProcessWithoutNullStreams {
  const script = `const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});
    binding.openNamespace(${JSON.stringify(path)}).then(async (pod) => {
      for (;;) {
        console.log('"begun"');
        const names = (await pod.dumpLinks(${FILTER})).map(({ name }) => name);
        console.log(JSON.stringify({ names }));
      }
    }).catch((error) => console.log(JSON.stringify({ error })));`;
  const late = `inject=recvfrom:delay_exit=${datagramMs * 1000}`;
  const slowly = ['-f', '-qq', '-o', '/dev/null', '-e', 'trace=recvfrom', '-e', late];
  return spawn('strace', [...slowly, process.execPath, '-e', script]);
}

/** A namespace whose list of links is some ten datagrams, and a second socket in it. */
async function manyLinks() {
  const pod = makePod();
  const [inside, beside] = [await open(pod.path), await open(pod.path)];
  const pairs = Array.from({ length: STABLE }, (_, n) => vethPair(`near${n}`, inside, `far${n}`));
  expect(new Set(codes(await inside.batch(pairs)))).toEqual(new Set(['ok']));
  const stable = (await inside.links()).map(({ name }) => name);
  expect(stable).toHaveLength(2 * STABLE + 1);
  return { pod, inside, beside, stable };
}

async function change(within: Namespace, number: number): Promise<void> {
  const vxlan = { type: 'link.add', kind: 'vxlan', name: `vx${number}`, vni: number + 1, local: '192.0.2.1' } as const;
  expect(codes(await within.batch([vxlan]))).toEqual(['ok']);
}

it('a list of links that changes once while it is read is read again, without duplicates', async () => {
  const { pod, beside, stable } = await manyLinks();
  // The change has to come before the list ends, also where this process is scheduled late.
  const child = listSlowly(pod.path, 200);
  try {
    const lists: (readonly string[])[] = [];
    let made = 0;
    for await (const text of createInterface({ input: child.stdout })) {
      const line: Line = JSON.parse(text);
      if (line === 'begun') {
        // Some datagrams have arrived by then, and more will.
        await setTimeout(100);
        await change(beside, made++);
      } else if (lists.push(line.names ?? []) === 3) break;
    }
    expect(lists).toHaveLength(3);
    for (const [at, names] of lists.entries()) {
      expect(new Set(names).size).toBe(names.length);
      expect(names).toEqual(expect.arrayContaining([...stable, `vx${at}`]));
    }
  } finally {
    child.kill('SIGKILL');
  }
}, 120_000);

it('a list of links in a storm of changes is complete, or fails with EINTR after the addon’s retries', async () => {
  const { pod, inside, beside, stable } = await manyLinks();
  const child = listSlowly(pod.path, 30);
  try {
    let made = 0;
    const state = { over: false };
    const ended = once(child, 'close').then(() => (state.over = true));
    const answers: Exclude<Line, 'begun'>[] = [];
    createInterface({ input: child.stdout }).on('line', (text) => {
      const line: Line = JSON.parse(text);
      if (line !== 'begun') answers.push(line);
    });
    while (!state.over) {
      await change(beside, made++);
      // Slower than this machine can be, and faster than a list: some ten datagrams of 30 ms.
      await setTimeout(20);
    }
    await ended;
    expect(answers.at(-1)?.error).toEqual({ errno: constants.errno.EINTR, text: 'the list changed while it was read' });
    for (const { names } of answers.slice(0, -1)) {
      expect(new Set(names).size).toBe(names?.length);
      expect(names).toEqual(expect.arrayContaining(stable));
    }
    expect(await inside.links()).toHaveLength(stable.length + made);
  } finally {
    child.kill('SIGKILL');
  }
}, 120_000);

import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:os';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';

import { expect, it } from 'vitest';

import { ADDON_FOLDER, codes, FILTER, makePod, open, vethPair } from './ip.fixture.js';

const STABLE = 150;

/** Lists links until one list is refused; each datagram of a list arrives late, so that there is time for changes. */
function listSlowly(path: string): ChildProcessWithoutNullStreams {
  const script = `const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});
    binding.openNamespace(${JSON.stringify(path)}).then(async (pod) => {
      for (;;) {
        const names = (await pod.dumpLinks(${FILTER})).map(({ name }) => name);
        console.log(JSON.stringify({ names }));
      }
    }).catch((error) => console.log(JSON.stringify({ error })));`;
  const slowly = ['-f', '-qq', '-o', '/dev/null', '-e', 'trace=recvfrom', '-e', 'inject=recvfrom:delay_exit=30000'];
  return spawn('strace', [...slowly, process.execPath, '-e', script]);
}

it('a list of links in a storm of changes is complete, or refused with EINTR after the addon tried again', async () => {
  const pod = makePod();
  const [inside, beside] = [await open(pod.path), await open(pod.path)];
  const pairs = Array.from({ length: STABLE }, (_, n) => vethPair(`near${n}`, inside, `far${n}`));
  expect(new Set(codes(await inside.batch(pairs)))).toEqual(new Set(['ok']));
  const stable = (await inside.links()).map(({ name }) => name);
  expect(stable).toHaveLength(2 * STABLE + 1);

  const child = listSlowly(pod.path);
  try {
    let made = 0;
    const state = { over: false };
    const ended = once(child, 'exit').then(() => (state.over = true));
    const answers: { names?: string[]; error?: { errno: number; text: string } }[] = [];
    createInterface({ input: child.stdout }).on('line', (line) => answers.push(JSON.parse(line)));
    while (!state.over) {
      const vxlan = { type: 'link.add', kind: 'vxlan', name: `vx${made}`, vni: made + 1, local: '192.0.2.1' } as const;
      expect(codes(await beside.batch([vxlan]))).toEqual(['ok']);
      made += 1;
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

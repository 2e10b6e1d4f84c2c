import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';

import { describe, expect, it } from 'vitest';

import { ADDON_FOLDER, FILTER, makePod, run } from './ip.js';

const LOAD = `const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});`;

/** Runs JavaScript in a separate process; `binding` is the compiled addon. */
function runNode(script: string) {
  return spawnSync(process.execPath, ['--expose-gc', '-e', LOAD + script], { encoding: 'utf8', timeout: 50_000 });
}

async function inWorker(script: string): Promise<unknown> {
  const worker = new Worker(`const { parentPort } = require('node:worker_threads'); ${LOAD} ${script}`, { eval: true });
  const message = new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject));
  const answer = await message;
  await worker.terminate();
  return answer;
}

it('is built with protected stacks, checked copies, and tables that are read-only once it is loaded', () => {
  const built = join(ADDON_FOLDER, 'build', 'Release', 'podwire_netlink.node');
  const parts = run('readelf', '--wide', '--dynamic', '--program-headers', '--dyn-syms', built);
  for (const part of [/FLAGS_1.*NOW/, /GNU_RELRO/, /GNU_STACK.* RW /, /__stack_chk_fail/, /__snprintf_chk/])
    expect(parts).toMatch(part);
});

describe('worker threads', () => {
  it('load the addon separately, one after another and concurrently', async () => {
    const { path } = makePod();
    const script = `binding.openNamespace(${JSON.stringify(path)})
      .then((pod) => pod.dumpLinks(${FILTER}))
      .then((links) => parentPort.postMessage(links.map(({ name }) => name)));`;
    expect(await inWorker(script)).toEqual(['lo']);
    expect(await Promise.all([inWorker(script), inWorker(script), inWorker(script)])).toEqual([['lo'], ['lo'], ['lo']]);
  });

  it('may be terminated with calls in flight', () => {
    const { path } = makePod();
    const work = `binding.openNamespace(${JSON.stringify(path)}).then(async (pod) => {
        await pod.monitor([1], 0, () => {});
        await pod.monitor([1], 1, () => {});
        for (let i = 0; i < 50; i++) { pod.dumpLinks(${FILTER}); pod.deleteLink({ index: 7777 + i, name: null }).catch(() => {}); }
        require('node:worker_threads').parentPort.postMessage('busy');
      });`;
    const script = `const { Worker } = require('node:worker_threads');
      (async () => {
        for (let round = 0; round < 20; round++) {
          const worker = new Worker(${JSON.stringify(LOAD + work)}, { eval: true });
          await new Promise((resolve) => worker.once('message', resolve));
          await worker.terminate();
        }
        console.log('done');
      })();`;
    expect(runNode(script)).toMatchObject({ status: 0, signal: null, stdout: 'done\n', stderr: '' });
  });

  it('may be terminated while the addon reads the arguments of a call', () => {
    const { path } = makePod();
    const work = `binding.openNamespace(${JSON.stringify(path)}).then((pod) => {
        const set = { family: 1, table: 't', name: 's', key: ['inet_service'], data: [], intervals: false };
        const elements = '80' + '\\0'.repeat(5);
        const changes = Array.from({ length: 20_000 }, () => ({ set, deletes: false, exclusive: false, elements }));
        require('node:worker_threads').parentPort.postMessage('busy');
        for (;;) pod.changeElements(changes).catch(() => {});
      });`;
    const script = `const { Worker } = require('node:worker_threads');
      (async () => {
        for (let round = 0; round < 10; round++) {
          const worker = new Worker(${JSON.stringify(LOAD + work)}, { eval: true });
          await new Promise((resolve) => worker.once('message', resolve));
          await new Promise((resolve) => setTimeout(resolve, 5 + round));
          await worker.terminate();
        }
        console.log('done');
      })();`;
    expect(runNode(script)).toMatchObject({ status: 0, signal: null, stdout: 'done\n', stderr: '' });
  });
});

describe('a handle that is dropped', () => {
  it('does not keep the process alive, after any use', () => {
    const { path } = makePod();
    const script = `binding.openNamespace(${JSON.stringify(path)}).then(async (pod) => {
        await pod.monitor([1], 0, () => {});
        await pod.monitor([1], 1, () => {});
        await pod.dumpLinks(${FILTER});
        await pod.deleteLink({ index: 7777, name: null }).catch(({ errno }) => console.log(errno));
      });`;
    expect(runNode(script)).toMatchObject({ status: 0, signal: null, stdout: '19\n', stderr: '' });
  });

  it('releases its files and threads', () => {
    const { path } = makePod();
    const script = `const { readdirSync } = require('node:fs');
      const count = (what) => readdirSync('/proc/self/' + what).length;
      const use = async () => {
        const pod = await binding.openNamespace(${JSON.stringify(path)});
        await pod.dumpLinks(${FILTER});
        await pod.deleteLink({ index: 7777, name: null }).catch(() => {});
      };
      const open = () => [count('fd'), count('task')];
      const collectGarbage = async (isDone) => {
        for (let turn = 0; turn < 20 || (turn < 1000 && !isDone()); turn++) {
          global.gc();
          await new Promise((resolve) => setTimeout(resolve, 10));
        }
      };
      (async () => {
        await use();
        await collectGarbage(() => true);
        const before = open();
        for (let round = 0; round < 50; round++) await use();
        // Threads end when the kernel lets them.
        await collectGarbage(() => String(open()) === String(before));
        console.log(JSON.stringify([before, open()]));
      })();`;
    const { stdout, status } = runNode(script);
    expect(status).toBe(0);
    const [before, after] = JSON.parse(stdout);
    expect(after).toEqual(before);
  });
});

describe('an addon that cannot be loaded', () => {
  it('fails with the reason and the remedy', () => {
    const folder = mkdtempSync(join(tmpdir(), 'podwire-addon-'));
    try {
      run(
        'cp',
        '-r',
        join(ADDON_FOLDER, 'lib'),
        join(ADDON_FOLDER, 'package.json'),
        join(ADDON_FOLDER, 'binding.gyp'),
        folder,
      );
      run('ln', '-s', join(ADDON_FOLDER, '..', 'node_modules'), join(folder, 'node_modules'));
      const test = `import { expect, it } from 'vitest';
        import { openNamespace } from './lib/index.js';
        it('fails', async () => {
          await expect(openNamespace()).rejects.toThrow(/cannot load the netlink addon of .*No native build.*npm run build -w @podwire\\/netlink/s);
        });`;
      writeFileSync(join(folder, 'load.test.ts'), test);
      const vitest = join(ADDON_FOLDER, '..', 'node_modules', 'vitest', 'vitest.mjs');
      const { status, stdout, stderr } = spawnSync(process.execPath, [vitest, 'run', '--root', folder], {
        encoding: 'utf8',
      });
      expect(status, stdout + stderr).toBe(0);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

import { spawnSync } from 'node:child_process';

import { describe, expect, it } from 'vitest';

import { ADDON_FOLDER, FILTER } from './ip.js';

/**
 * The allowed growth of a process from its middle to its end, in bytes, as the garbage collector reserves memory in steps. One socket's buffer is 64 KiB, so that a leak of it shows after 300 namespaces; one of 1 KiB per request, at once.
 */
const GROWTH_MAX_BYTES = 12 * 1024 * 1024;

interface Usage {
  readonly rss: number;
  readonly fd: number;
  readonly task: number;
}

const PRELUDE = `
  const { readdirSync } = require('node:fs');
  const { spawnSync } = require('node:child_process');
  const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});
  const FILTER = ${FILTER};
  const get = { op: 'link.get', optional: false, within: null, link: { index: 1, name: null } };
  const wrong = { op: 'link.get', optional: false, within: null, link: { index: 0, name: 'none' } };
  const run = (pod, count) => pod.run(Array.from({ length: count }, (_, n) => (n % 10 ? get : wrong)), { sequential: false, timeoutMs: 60000 });
  /** Threads and files end a little later than the object that used them. */
  const usage = async () => {
    let now, before;
    do {
      before = JSON.stringify(now);
      for (let turn = 0; turn < 5; turn++) { global.gc(); await new Promise((resolve) => setTimeout(resolve, 20)); }
      now = { fd: readdirSync('/proc/self/fd').length, task: readdirSync('/proc/self/task').length };
    } while (JSON.stringify(now) !== before);
    return { ...now, rss: process.memoryUsage.rss() };
  };
  /** The same work twice: the first time fills every cache. */
  const compare = async (work) => {
    await work();
    const middle = await usage();
    await work();
    console.log(JSON.stringify([middle, await usage()]));
  };`;

/** The memory of a separate process in its middle and at its end. */
function measure(script: string): [middle: Usage, end: Usage] {
  const { stdout, stderr, status } = spawnSync(process.execPath, ['--expose-gc', '-e', PRELUDE + script], {
    encoding: 'utf8',
  });
  expect(status, stderr).toBe(0);
  return JSON.parse(stdout);
}

function expectFlat([middle, end]: [Usage, Usage]): void {
  expect(end.fd).toBe(middle.fd);
  expect(end.task).toBe(middle.task);
  expect((end.rss - middle.rss) / 2 ** 20).toBeLessThan(GROWTH_MAX_BYTES / 2 ** 20);
}

describe('memory, files and threads stay constant', () => {
  it('over 20,000 requests, a tenth of which fail, and 1000 lists', () => {
    const script = `binding.openNamespace(null).then((own) => compare(async () => {
      for (let round = 0; round < 100; round++) {
        await run(own, 100);
        await Promise.all([own.dumpLinks(FILTER), own.dumpRoutes(FILTER), own.dumpRules(FILTER), own.dumpAddresses(FILTER), own.dumpNeighbours(FILTER), own.dumpFdb(FILTER)]);
      }
    }));`;
    expectFlat(measure(script));
  }, 300_000);

  it('over 1000 namespaces, half of which are dropped without close', () => {
    const script = `
      const names = Array.from({ length: 100 }, (_, n) => 'e' + process.pid + 'n' + n);
      const batch = (verb) => {
        const input = names.map((name) => 'netns ' + verb + ' ' + name).join('\\n');
        const { status, stderr } = spawnSync('ip', ['-batch', '-'], { input, encoding: 'utf8' });
        if (status !== 0) throw new Error(stderr);
      };
      const bounds = { maxCount: 0, timeoutMs: 0 };
      const FLOWS = { family: 4, address: '192.0.2.1', anywhere: true, protocol: null, destinationPorts: [], ...bounds };
      const SET = { family: 1, table: 'none', name: 'none', key: ['ifname'], data: [], intervals: false };
      const ELEMENTS = Array.from({ length: 1000 }, (_, n) => 'podw' + n + '\\0\\0\\0').join('');
      const use = async (name, position) => {
        const pod = await binding.openNamespace('/run/netns/' + name);
        const monitor = await pod.monitor([1], 0, () => {});
        await run(pod, 2);
        await pod.dumpLinks(FILTER);
        await pod.deleteLink({ index: 7777, name: null }).catch(() => {});
        await pod.deleteConntrack(FLOWS);
        await pod.changeElements([{ set: SET, deletes: false, exclusive: false, elements: ELEMENTS }]);
        const tables = await pod.monitorTables([SET], 0, () => {});
        const packets = await pod.monitorPackets({ group: 7, copyBytes: 64 }, 0, () => {});
        monitor.close();
        packets.close();
        tables.close();
        if (position % 2) await pod.close();
      };
      compare(async () => {
        for (let round = 0; round < 5; round++) {
          batch('add');
          for (const [position, name] of names.entries()) await use(name, position);
          batch('delete');
        }
      });`;
    expectFlat(measure(script));
  }, 600_000);
});

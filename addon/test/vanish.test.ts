import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';

import { describe, expect, it } from 'vitest';

import { openNamespace, type Namespace, type RouteRequest } from '../lib/index.js';
import { ADDON_FOLDER, codes, deletePod, failureOf, ip, link0, makePod, noLink, open, vethPair } from './ip.js';

const VXLAN = { type: 'link.add', kind: 'vxlan', name: 'vx', vni: 1, local: '192.0.2.1' } as const;
const COUNT = 10_000;

function blackholes(count: number): RouteRequest[] {
  return Array.from({ length: count }, (_, n) => ({
    type: 'route.add',
    destination: `10.${n >> 10}.${(n >> 2) & 255}.${(n & 3) << 6}/26`,
    routeType: 'blackhole',
  }));
}

function ok(count: number): string[] {
  return Array.from({ length: count }, () => 'ok');
}

/** The answers of a namespace with one VXLAN device; the calls take from one message to ten thousand. */
const CALLS: Readonly<Record<string, { call: (inside: Namespace) => Promise<unknown>; answer: unknown }>> = {
  'a batch': { call: async (inside) => codes(await inside.batch(blackholes(COUNT))), answer: ok(COUNT) },
  'a sequence': {
    call: async (inside) =>
      codes(
        await inside.sequence([
          { type: 'link.set', link: { name: 'vx' }, up: true },
          ...blackholes(300),
          { type: 'sysctl.write', key: ['net', 'ipv4', 'conf', 'vx', 'forwarding'], value: '1' },
        ]),
      ),
    answer: ok(302),
  },
  'a list of links': {
    call: async (inside) => (await inside.links()).map(({ name }) => name),
    answer: ['lo', 'vx'],
  },
  'a list of routes': { call: (inside) => inside.routes(), answer: [] },
  'a list of rules': { call: async (inside) => (await inside.rules()).length, answer: 5 },
  'a list of forwarding entries': { call: (inside) => inside.fdbEntries(), answer: [] },
  'sysctls read': {
    call: (inside) => inside.readSysctls([['net', 'ipv4', 'ip_default_ttl']]),
    answer: [{ ok: true, value: '64' }],
  },
  'the deletion of a link': { call: (inside) => inside.deleteLink({ name: 'vx' }), answer: undefined },
  'an announcement': {
    call: async (inside) => failureOf(inside.announceAddress({ index: 1, address: '192.0.2.1' })),
    answer: expect.objectContaining({ code: 'EOPNOTSUPP' }),
  },
  'the generation of nf_tables': { call: (inside) => inside.generation(), answer: 1 },
  'the deletion of flows': { call: (inside) => inside.deleteConntrack({ address: '192.0.2.1' }), answer: 0 },
};

async function openWithVxlan(path: string): Promise<Namespace> {
  const inside = await open(path);
  expect(codes(await inside.batch([VXLAN]))).toEqual(['ok']);
  return inside;
}

/** A process in a network namespace of its own, and the path of that; `end` kills it and waits. */
async function startProcess() {
  const child = spawn('unshare', ['--net', 'sh', '-c', 'echo inside; exec sleep 600'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  const end = async () => {
    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
  };
  return { path: `/proc/${child.pid}/ns/net`, end };
}

/** Until no far end of a pair holds the near one: the kernel releases a namespace a little after its last user. */
async function untilGone(name: string): Promise<void> {
  const host = await open();
  const monitor = await host.monitor({ groups: ['links'] });
  const isThere = () => ip('link', 'show').some(({ ifname }) => ifname === name);
  if (!isThere()) return;
  for await (const event of monitor) {
    if (event.object === 'link' && event.deleted && event.value.name === name) return;
  }
}

describe.each(Object.entries(CALLS))('%s', (_, { call, answer }) => {
  it('completes after the name of its namespace is deleted meanwhile', async () => {
    const pod = makePod();
    const inside = await openWithVxlan(pod.path);
    const answering = call(inside);
    deletePod(pod.name);
    expect(await answering).toEqual(answer);
    expect(await failureOf(openNamespace(pod.path))).toMatchObject({ code: 'ENOENT' });
  });

  it('completes after the process of the namespace dies meanwhile', async () => {
    const { path, end } = await startProcess();
    const inside = await openWithVxlan(path);
    const answering = call(inside);
    await end();
    expect(await answering).toEqual(answer);
    expect(await failureOf(openNamespace(path))).toMatchObject({ code: 'ENOENT' });
  });

  it('completes after name and handle are gone meanwhile', async () => {
    const pod = makePod();
    const inside = await openWithVxlan(pod.path);
    const answering = call(inside);
    const closing = inside.close();
    deletePod(pod.name);
    expect(await answering).toEqual(answer);
    await closing;
  });
});

describe('a namespace', () => {
  it('ends with its last user, with any work in flight', async () => {
    const pod = makePod();
    const [host, inside] = [await open(), await open(pod.path)];
    expect(codes(await host.batch([vethPair(link0, inside)]))).toEqual(['ok']);
    const monitor = await inside.monitor({ groups: ['routes'] });
    const calls = [
      inside.batch(blackholes(COUNT)),
      inside.links(),
      inside.deleteConntrack({ address: '192.0.2.1' }),
      failureOf(inside.deleteLink({ name: noLink })),
    ];
    deletePod(pod.name);
    await inside.close();
    monitor.close();
    await Promise.all(calls);
    await untilGone(link0);
  });

  it('deletes only its own pair when it ends as the far end', async () => {
    const pod = makePod();
    const [host, inside] = [await open(makePod().path), await open(pod.path)];
    const pairs = Array.from({ length: 50 }, (_, n) => vethPair(`near${n}`, inside, `far${n}`));
    const answering = host.batch(pairs);
    deletePod(pod.name);
    await inside.close();
    // The requests hold it until the last is answered.
    expect(codes(await answering)).toEqual(ok(pairs.length));
    const monitor = await host.monitor({ groups: ['links'] });
    const left = async () => (await host.links()).length;
    let links = await left();
    while (links > 1) {
      await monitor[Symbol.asyncIterator]().next();
      links = await left();
    }
    expect(links).toBe(1);
  });

  it('is monitored until the subscription ends, when name and handle are gone', async () => {
    const pod = makePod();
    const [inside, second] = [await openNamespace(pod.path), await open(pod.path)];
    const monitor = await inside.monitor({ groups: ['routes'] });
    deletePod(pod.name);
    await inside.close();
    expect(codes(await second.batch(blackholes(1)))).toEqual(['ok']);
    for await (const event of monitor) {
      expect(event).toMatchObject({ object: 'route', value: { destination: '10.0.0.0/26' } });
      break;
    }
  });

  it('serves two threads at a time, each with its own answers, and vanishes under both', async () => {
    const pod = makePod();
    const script = `const { parentPort, workerData } = require('node:worker_threads');
      const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});
      const route = (n) => ({ op: 'route', verb: 'add', optional: false, within: null, prefixLengthBits: 32,
        destination: '10.' + workerData + '.' + (n >> 8) + '.' + (n & 255), output: null, gateway: null, source: null,
        scope: 0, protocol: 80, table: 254, metric: null, routeType: 6, onlink: false });
      binding.openNamespace(${JSON.stringify(pod.path)}).then((pod) => {
        const parts = Array.from({ length: 10 }, (_, part) =>
          pod.run(Array.from({ length: 1000 }, (_, n) => route(1000 * part + n)), { sequential: false, timeoutMs: 60000 }));
        parentPort.postMessage('busy');
        return Promise.all(parts);
      }).then((parts) => parentPort.postMessage(parts.flat().filter(({ error }) => error === null).length));`;
    const held = await open(pod.path);
    const workers = [1, 2].map((workerData) => new Worker(script, { eval: true, workerData }));
    const answers = workers.map(async (worker) => {
      const messages: unknown[] = [];
      worker.on('message', (message) => messages.push(message));
      await once(worker, 'exit');
      return messages;
    });
    await Promise.all(workers.map((worker) => once(worker, 'message')));
    deletePod(pod.name);
    expect(await Promise.all(answers)).toEqual([
      ['busy', COUNT],
      ['busy', COUNT],
    ]);
    expect(await held.routes({ protocol: 80 })).toHaveLength(2 * COUNT);
  });
});

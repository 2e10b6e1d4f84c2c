import { spawnSync } from 'node:child_process';
import { constants } from 'node:os';

import { describe, expect, it } from 'vitest';

import type { Monitor } from '../lib/index.js';
import { ADDON_FOLDER, deletePod, failureOf, ip, link0, makePod, noLink, open, run, vethPair } from './ip.js';

const MANY = 50;

/** Pairs in namespaces of their own, so that their group numbers and names are unique. */
async function manyPairs() {
  const node = makePod();
  const host = await open(node.path);
  const pod = await open(makePod().path);
  const names = Array.from({ length: MANY }, (_, position) => `veth${position}`);
  const made = await host.batch(names.map((name) => vethPair(name, pod, `p${name}`)));
  expect(made.every(({ ok }) => ok)).toBe(true);
  return { node, host, pod, names };
}

/** The number of deletions that removed the links: deletions by group, and links without a group. */
async function deletionsHeard(monitor: Monitor, names: readonly string[]): Promise<number> {
  const groups = new Map<string, number>();
  for await (const event of monitor) {
    if (event.object === 'link' && event.deleted) groups.set(event.value.name, event.value.group);
    if (names.every((name) => groups.has(name))) break;
  }
  const alone = [...groups.values()].filter((group) => group === 0).length;
  return alone + new Set([...groups.values()].filter((group) => group !== 0)).size;
}

describe('deleteLink', () => {
  it('resolves when both ends are gone, by name and by index', async () => {
    const pod = makePod();
    const [host, inside] = [await open(), await open(pod.path)];
    for (const select of [() => ({ name: link0 }), () => ({ index: Number(ip('link', 'show', link0)[0]!.ifindex) })]) {
      await host.batch([vethPair(link0, inside)]);
      await host.deleteLink(select());
      expect(ip('-n', pod.name, 'link', 'show').map(({ ifname }) => ifname)).toEqual(['lo']);
      expect(ip('link', 'show').map(({ ifname }) => ifname)).not.toContain(link0);
    }
  });

  it('works from the end in the pod', async () => {
    const [host, inside] = [await open(), await open(makePod().path)];
    await host.batch([vethPair(link0, inside)]);
    await inside.deleteLink({ name: 'eth0' });
    expect(ip('link', 'show').map(({ ifname }) => ifname)).not.toContain(link0);
  });

  it('reports an absent link, and one that cannot be deleted', async () => {
    const host = await open();
    expect(await failureOf(host.deleteLink({ name: noLink }))).toMatchObject({
      name: 'NetlinkError',
      operation: 'link.delete',
      object: noLink,
      code: 'ENODEV',
    });
    expect(await failureOf(host.deleteLink({ index: 2 ** 31 - 1 }))).toMatchObject({ code: 'ENODEV' });
    expect(await failureOf(host.deleteLink({ name: 'lo' }))).toMatchObject({ code: 'EOPNOTSUPP', object: 'lo' });
  });

  it('deletes fifty named links at once, and no other', async () => {
    const { node, host, names } = await manyPairs();
    const spared = names.pop()!;
    const monitor = await host.monitor({ groups: ['links'] });
    await Promise.all(names.map((name) => host.deleteLink({ name })));
    // The subscription starts before the deletion; each link is announced with its group at deletion.
    expect(await deletionsHeard(monitor, names)).toBe(1);
    const left = ip('-n', node.name, 'link', 'show');
    expect(left.map(({ ifname }) => ifname)).toEqual(['lo', spared]);
    expect(left.map(({ group }) => group)).toEqual(['default', 'default']);
  });

  it('collects requests until the previous deletion is announced', async () => {
    const { host, names } = await manyPairs();
    await host.deleteLink({ name: names.pop()! });
    const monitor = await host.monitor({ groups: ['links'] });
    await Promise.all(names.map((name) => host.deleteLink({ name })));
    expect(await deletionsHeard(monitor, names)).toBe(2);
  });

  it('returns each outcome, also where one link of a group cannot be deleted', async () => {
    const { node, host, names } = await manyPairs();
    const asked = [...names.slice(0, 20), 'lo', 'gone', ...names.slice(20), names[0]!];
    const results = await Promise.allSettled(asked.map((name) => host.deleteLink({ name })));
    const refused = results.flatMap((result, position) =>
      result.status === 'rejected' ? [[asked[position], result.reason.code]] : [],
    );
    expect(refused.filter(([name]) => name !== names[0])).toEqual([
      ['lo', 'EOPNOTSUPP'],
      ['gone', 'ENODEV'],
    ]);
    expect(ip('-n', node.name, 'link', 'show').map(({ ifname }) => ifname)).toEqual(['lo']);
  });

  it('resolves by the kernel’s answers where announcements are lost, also for collected requests', async () => {
    const { node, names } = await manyPairs();
    const select = (name: string) => JSON.stringify({ index: 0, name });
    const script = `const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});
      binding.openNamespace(${JSON.stringify(node.path)}).then(async (host) => {
        // The first one is announced long before it is answered, so that the other two are requested in between.
        const first = host.deleteLink(${select(names[0]!)});
        setTimeout(() => process.exit(4), 30_000);
        setTimeout(async () => {
          await Promise.all([first, host.deleteLink(${select(names[1]!)}), host.deleteLink(${select(names[2]!)})]);
          process.exit(3);
        }, 10);
      });`;
    // The process's own thread receives announcements, and nothing else; other threads send and are answered.
    const deaf = ['-qq', '-o', '/dev/null', '-e', 'trace=recvfrom', '-e', 'inject=recvfrom:error=ENOBUFS'];
    const command = [...deaf, process.execPath, '-e', script];
    const { status } = spawnSync('strace', command, { stdio: 'ignore', timeout: 50_000, killSignal: 'SIGKILL' });
    expect(status).toBe(3);
    const left = ip('-n', node.name, 'link', 'show').map(({ ifname }) => ifname);
    expect(left).toEqual(['lo', ...names.slice(3)]);
  });

  it.each([0, 1, 2])('is refused while only %i file descriptors are left, and works once there are more', (spare) => {
    const node = makePod();
    for (const name of ['one', 'two']) {
      run('ip', '-n', node.name, 'link', 'add', 'name', name, 'type', 'veth', 'peer', 'name', `p${name}`);
    }
    const select = (name: string) => JSON.stringify({ index: 0, name });
    const script = `const binding = require('node-gyp-build')(${JSON.stringify(ADDON_FOLDER)});
      const { closeSync, openSync } = require('node:fs');
      const outcome = (deletion) => deletion.then(() => 'gone', ({ errno }) => errno);
      binding.openNamespace(${JSON.stringify(node.path)}).then(async (host) => {
        const taken = [];
        try {
          for (;;) taken.push(openSync('/dev/null'));
        } catch {
          for (let count = 0; count < ${spare}; count++) closeSync(taken.pop());
        }
        const outcomes = await Promise.all([outcome(host.deleteLink(${select('one')})), outcome(host.deleteLink(${select('two')}))]);
        for (const fd of taken) closeSync(fd);
        outcomes.push(await outcome(host.deleteLink(${select('one')})), await outcome(host.deleteLink(${select('two')})));
        console.log(JSON.stringify(outcomes));
        process.exit();
      });`;
    const command = ['--nofile=64', process.execPath, '-e', script];
    const { status, stdout, stderr } = spawnSync('prlimit', command, { encoding: 'utf8', timeout: 50_000 });
    expect(status, stderr).toBe(0);
    expect(JSON.parse(stdout)).toEqual([constants.errno.EMFILE, constants.errno.EMFILE, 'gone', 'gone']);
    expect(ip('-n', node.name, 'link', 'show').map(({ ifname }) => ifname)).toEqual(['lo']);
  });

  it('neither waits for batches nor blocks them', async () => {
    const { host, names } = await manyPairs();
    const deletions = Promise.all(names.slice(0, 10).map((name) => host.deleteLink({ name })));
    const outcomes = await host.batch([{ type: 'link.get', link: { name: names[40]! } }]);
    await deletions;
    expect(outcomes[0]).toMatchObject({ ok: true, link: { name: names[40] } });
  });

  it('completes requests made before the namespace is closed', async () => {
    const { node, host, names } = await manyPairs();
    const deletions = names.map((name) => host.deleteLink({ name }));
    await host.close();
    await Promise.all(deletions);
    expect(ip('-n', node.name, 'link', 'show').map(({ ifname }) => ifname)).toEqual(['lo']);
  });
});

describe('a namespace that vanishes', () => {
  it('stays usable for the process that has it open, and its end of a pair is deleted with it', async () => {
    const pod = makePod();
    const [host, inside] = [await open(), await open(pod.path)];
    await host.batch([vethPair(link0, inside)]);
    deletePod(pod.name);
    expect((await inside.links()).map(({ name }) => name)).toEqual(['lo', 'eth0']);
    await inside.close();
    await expect
      .poll(async () => (await host.links()).some(({ name }) => name === link0), { timeout: 20_000 })
      .toBe(false);
    expect(await failureOf(host.deleteLink({ name: link0 }))).toMatchObject({ code: 'ENODEV' });
  });
});

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { release, tmpdir } from 'node:os';
import { join } from 'node:path';

import { describe, expect, it, onTestFinished } from 'vitest';

import { NotANetworkNamespaceError, openNamespace } from '../lib/index.js';
import { ADDON_FOLDER, codes, failureOf, ip, link0, link1, link2, makePod, noLink, open, run, vethPair } from './ip.js';

describe('openNamespace', () => {
  it('distinguishes the own namespace from another, by identity', async () => {
    const pod = makePod();
    const own = await open();
    const same = await open('/proc/self/ns/net');
    const other = await open(pod.path);
    expect(same.identity).toEqual(own.identity);
    expect(other.identity.inode).not.toBe(own.identity.inode);
    expect(other.identity.inode).toBe(BigInt(run('stat', '-Lc', '%i', pod.path)));
  });

  it('distinguishes a namespace by its cookie from earlier ones with its inode', async () => {
    const pods = Array.from({ length: 20 }, () => makePod());
    const cookies: (bigint | null)[] = [];
    for (const { name, path } of pods) {
      cookies.push((await open(path)).identity.cookie);
      run('ip', 'netns', 'delete', name);
      run('ip', 'netns', 'add', name);
      cookies.push((await open(path)).identity.cookie);
    }
    expect(cookies).toEqual(cookies.map(() => expect.any(BigInt)));
    expect(new Set(cookies).size).toBe(40);
    const last = pods.at(-1)!;
    expect((await open(last.path)).identity.cookie).toBe(cookies.at(-1));
    expect((await open()).identity.cookie).toBe((await open('/proc/self/ns/net')).identity.cookie);
  });

  it('distinguishes a missing path from one that is not a network namespace', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'podwire-addon-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const file = join(folder, 'not-a-namespace');
    writeFileSync(file, '');
    expect(await failureOf(openNamespace('/run/netns/none'))).toMatchObject({
      name: 'NetlinkError',
      code: 'ENOENT',
      operation: 'namespace.open',
      object: '/run/netns/none',
    });
    for (const path of [file, '/tmp', '/proc/self/ns/mnt', '/dev/null']) {
      const failure = await failureOf(openNamespace(path));
      expect(failure, path).toBeInstanceOf(NotANetworkNamespaceError);
      expect(failure, path).toMatchObject({ code: 'EINVAL', object: path });
    }
  });

  it('opens cached paths without waiting, like a thread does, and nothing that is not a namespace', async () => {
    const binding = createRequire(import.meta.url)('node-gyp-build')(ADDON_FOLDER);
    const folder = mkdtempSync(join(tmpdir(), 'podwire-addon-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const fifo = join(folder, 'fifo');
    run('mkfifo', fifo);
    const pod = makePod();
    for (const path of [fifo, folder, '/run/netns/none', '/proc/self/ns/mnt', '/dev/null', 'x'.repeat(5000)]) {
      expect(binding.openNamespaceAtOnce(path), path).toBeNull();
    }
    const byThread = await binding.openNamespace(pod.path);
    // Kernels before 6.18 report the cookie only inside the namespace, which takes a thread.
    const [major = 0, minor = 0] = release().split('.').map(Number);
    if (major > 6 || (major === 6 && minor >= 18)) {
      const atOnce = binding.openNamespaceAtOnce(pod.path);
      expect([atOnce.device, atOnce.inode, atOnce.cookie]).toEqual([byThread.device, byThread.inode, byThread.cookie]);
      await atOnce.close();
    }
    await byThread.close();
    expect(() => binding.openNamespaceAtOnce(null)).toThrow(new TypeError('path: must be a string'));
  });
});

describe('links', () => {
  it('creates a veth pair with its peer in the pod, both with MAC and MTU in one message', async () => {
    const [host, pod] = [await open(), makePod()];
    const inside = await open(pod.path);
    const [made] = await host.batch([vethPair(link0, inside)]);
    const [near] = ip('link', 'show', link0);
    const [far] = ip('-n', pod.name, 'link', 'show', 'eth0');
    expect(near).toMatchObject({
      address: 'ee:ee:ee:ee:ee:ee',
      mtu: 1450,
      operstate: 'DOWN',
      link_index: far!.ifindex,
    });
    expect(far).toMatchObject({ address: '02:00:00:00:00:01', mtu: 1450, operstate: 'DOWN' });
    expect(made).toEqual({
      ok: true,
      link: expect.objectContaining({
        index: near!.ifindex,
        name: link0,
        kind: 'veth',
        mac: 'ee:ee:ee:ee:ee:ee',
        mtuBytes: 1450,
        up: false,
        linkedIndex: far!.ifindex,
        linkedNamespaceId: near!.link_netnsid,
      }),
    });
  });

  it('sets the given attributes alone, and reads them back', async () => {
    const [host, pod] = [await open(), await open(makePod().path)];
    const link = { name: link0 };
    const alias = 'ü'.repeat(127);
    const outcomes = await host.batch([
      vethPair(link0, pod),
      { type: 'link.set', link, up: true, alias },
      { type: 'link.set', link, mtuBytes: 1300, group: 70_000 },
      { type: 'link.set', link, mac: '02:00:00:00:00:07' },
      { type: 'link.get', link },
    ]);
    expect(outcomes[4]).toMatchObject({
      ok: true,
      link: { up: true, alias, mtuBytes: 1300, group: 70_000, mac: '02:00:00:00:00:07' },
    });
    expect(ip('link', 'show', link0)[0]).toMatchObject({ ifalias: alias, mtu: 1300, address: '02:00:00:00:00:07' });
    const cleared = await host.batch([
      { type: 'link.set', link, alias: '', up: false, group: 0 },
      { type: 'link.get', link },
    ]);
    expect(cleared[1]).toMatchObject({ ok: true, link: { up: false, alias: null, mtuBytes: 1300, group: 0 } });
  });

  it('renames by name and by index, and deletes', async () => {
    const [host, pod] = [await open(), await open(makePod().path)];
    await host.batch([vethPair(link0, pod)]);
    const [index] = ip('link', 'show', link0).map((link) => Number(link.ifindex));
    const outcomes = await host.sequence([
      { type: 'link.set', link: { name: link0 }, name: link1 },
      { type: 'link.set', link: { index: index! }, name: link2 },
      { type: 'link.get', link: { index: index! } },
      { type: 'link.delete', link: { name: link2 } },
      { type: 'link.get', link: { index: index! } },
    ]);
    expect(codes(outcomes)).toEqual(['ok', 'ok', 'ok', 'ok', 'ENODEV']);
    expect(outcomes[2]).toMatchObject({ link: { name: link2 } });
  });

  it('lists what ip lists', async () => {
    const [node, pod] = [makePod(), await open(makePod().path)];
    const host = await open(node.path);
    await host.batch([link0, link1, link2].map((name) => vethPair(name, pod, `eth${name.at(-1) ?? ''}`)));
    const expected = ip('-n', node.name, 'link', 'show').map(({ ifname, ifindex, mtu, address }) => ({
      ifname,
      ifindex,
      mtu,
      address,
    }));
    const listed = await host.links();
    expect(
      listed.map(({ name, index, mtuBytes, mac }) => ({ ifname: name, ifindex: index, mtu: mtuBytes, address: mac })),
    ).toEqual(expected);
    expect(listed).toHaveLength(4);
  });
});

describe('addresses, routes and neighbours', () => {
  const CASES = [
    { family: 4, address: '198.51.100.2/32', gateway: '169.254.1.1', any: '0.0.0.0/0', flag: '-4', bits: 32 },
    {
      family: 6,
      address: '2001:db8:77::2/128',
      gateway: 'fe80::ecee:eeff:feee:eeee',
      any: '::/0',
      flag: '-6',
      bits: 128,
    },
  ] as const;

  it.each(CASES)(
    'gives a pod its IPv$family address and its routes',
    async ({ family, address, gateway, any, flag, bits }) => {
      const [host, pod] = [await open(), makePod()];
      const inside = await open(pod.path);
      const link = { name: 'eth0' };
      const outcomes = await host.sequence([
        vethPair(link0, inside),
        { type: 'link.set', link: { name: link0 }, up: true },
        { within: inside, type: 'link.set', link, up: true },
        { within: inside, type: 'address.add', link, address, noDad: true },
        { within: inside, type: 'neighbour.add', link, address: gateway, mac: 'ee:ee:ee:ee:ee:ee' },
        { within: inside, type: 'route.add', destination: `${gateway}/${bits}`, output: link, protocol: 80 },
        { within: inside, type: 'route.add', destination: any, gateway, output: link, protocol: 80, metric: 7 },
      ]);
      expect(codes(outcomes)).toEqual(Array.from({ length: 7 }, () => 'ok'));

      const shown = ip('-n', pod.name, flag, 'address', 'show', 'dev', 'eth0')[0]!.addr_info;
      expect(shown).toContainEqual(expect.objectContaining({ local: address.split('/')[0], prefixlen: bits }));
      const index = (await inside.links()).find(({ name }) => name === 'eth0')!.index;
      expect(await inside.addresses({ index, family })).toContainEqual(
        expect.objectContaining({ family, linkIndex: index, address, peer: null, scope: 'global' }),
      );

      const routes = ip('-n', pod.name, flag, 'route', 'show', 'protocol', '80');
      expect(routes).toContainEqual(expect.objectContaining({ dst: 'default', gateway, dev: 'eth0', metric: 7 }));
      expect(routes).toContainEqual(expect.objectContaining({ dst: gateway, dev: 'eth0' }));
      const made = (await inside.routes({ family, table: 254, index })).filter(({ protocol }) => protocol === 80);
      expect(made).toContainEqual(
        expect.objectContaining({ destination: any, gateway, outputIndex: index, metric: 7, routeType: 'unicast' }),
      );
      expect(made).toHaveLength(2);

      const neighbours = ip('-n', pod.name, flag, 'neighbour', 'show', 'dev', 'eth0', 'nud', 'permanent');
      expect(neighbours).toContainEqual(expect.objectContaining({ dst: gateway, lladdr: 'ee:ee:ee:ee:ee:ee' }));
      expect(await inside.neighbours({ family, index })).toContainEqual(
        expect.objectContaining({ address: gateway, mac: 'ee:ee:ee:ee:ee:ee', permanent: true, proxy: false }),
      );
    },
  );

  it.each(CASES)('replaces and deletes for IPv$family, and reports absent objects', async ({ address, flag }) => {
    const [host, pod] = [await open(), await open(makePod().path)];
    const link = { name: link0 };
    const mac = '02:00:00:00:00:01';
    const route = { destination: address, output: link };
    const neighbour = { link, address: address.split('/')[0]!, mac };
    const proxy = { link, address: address.split('/')[0]!, proxy: true };
    const outcomes = await host.batch([vethPair(link0, pod), { type: 'link.set', link, up: true }]);
    expect(codes(outcomes)).toEqual(['ok', 'ok']);
    expect(
      codes(
        await host.batch([
          { type: 'route.add', ...route },
          { type: 'route.add', ...route },
          { type: 'route.replace', ...route },
          { type: 'route.delete', ...route },
          { type: 'route.delete', ...route },
          { type: 'neighbour.add', ...neighbour },
          { type: 'neighbour.add', ...neighbour },
          { type: 'neighbour.replace', ...neighbour },
          { type: 'neighbour.delete', ...neighbour },
          { type: 'neighbour.delete', ...neighbour },
          { type: 'neighbour.add', ...proxy },
        ]),
      ),
    ).toEqual(['ok', 'EEXIST', 'ok', 'ok', 'ESRCH', 'ok', 'EEXIST', 'ok', 'ok', 'ENOENT', 'ok']);
    expect(ip(flag, 'neighbour', 'show', 'proxy')).toContainEqual(expect.objectContaining({ dst: proxy.address }));
    expect(await host.neighbours({ proxy: true })).toContainEqual(
      expect.objectContaining({ address: proxy.address, proxy: true }),
    );
    expect(
      codes(
        await host.batch([
          { type: 'address.add', link, address },
          { type: 'address.add', link, address },
          { type: 'address.replace', link, address },
          { type: 'address.delete', link, address },
          { type: 'address.delete', link, address },
        ]),
      ),
    ).toEqual(['ok', 'EEXIST', 'ok', 'ok', 'EADDRNOTAVAIL']);
  });

  it('adds blackholes in tables beyond 255, and lists that table alone', async () => {
    const inside = await open(makePod().path);
    const blackhole = { destination: '10.65.0.0/26', table: 1000, protocol: 80, routeType: 'blackhole' } as const;
    expect(await inside.routes({ table: 1000, family: 4 })).toEqual([]);
    expect(codes(await inside.batch([{ type: 'route.add', ...blackhole }]))).toEqual(['ok']);
    expect(await inside.routes({ table: 1000 })).toEqual([
      expect.objectContaining({
        destination: '10.65.0.0/26',
        table: 1000,
        protocol: 80,
        routeType: 'blackhole',
        outputIndex: null,
      }),
    ]);
    expect(codes(await inside.batch([{ type: 'route.delete', destination: '10.65.0.0/26', table: 1000 }]))).toEqual([
      'ok',
    ]);
  });
});

describe('rules', () => {
  const FROM = [
    { family: 4, source: '10.65.0.2/32', table: 100, flag: '-4', src: '10.65.0.2' },
    { family: 6, source: 'fd00::2/128', table: 70_000, flag: '-6', src: 'fd00::2' },
  ] as const;

  it.each(FROM)(
    'of IPv$family are added, listed and deleted, each once',
    async ({ family, source, table, flag, src }) => {
      const pod = makePod();
      const inside = await open(pod.path);
      const rule = { source, table, priority: 30_087, protocol: 87 };
      const before = await inside.rules();
      expect(codes(await inside.batch([{ type: 'rule.add', ...rule }]))).toEqual(['ok']);
      expect(codes(await inside.batch([{ type: 'rule.add', ...rule }]))).toEqual(['EEXIST']);
      expect(ip('-n', pod.name, flag, 'rule', 'show')).toContainEqual(
        expect.objectContaining({ priority: 30_087, src, table: String(table), protocol: '87' }),
      );
      const rules = await inside.rules({ family });
      expect(rules.map(({ priority }) => priority)).toEqual(
        rules.map(({ priority }) => priority).toSorted((a, b) => a - b),
      );
      const destination = family === 4 ? '0.0.0.0/0' : '::/0';
      expect(rules.filter(({ protocol }) => protocol === 87)).toEqual([
        { family, ...rule, destination, action: 'lookup', flags: 0 },
      ]);
      // A different rule stays.
      const other = { ...rule, type: 'rule.delete', table: 101 } as const;
      expect(codes(await inside.batch([other]))).toEqual(['ENOENT']);
      expect(codes(await inside.batch([{ type: 'rule.delete', source, table }]))).toEqual(['ok']);
      expect(await inside.rules()).toEqual(before);
    },
  );

  it('route packets by the table that they name', async () => {
    const [host, pod] = [await open(), makePod()];
    const inside = await open(pod.path);
    const link = { name: 'eth0' };
    const outcomes = await inside.sequence([
      { ...vethPair(link0, inside), within: host },
      { type: 'link.set', link: { name: link0 }, up: true, within: host },
      { type: 'link.set', link, up: true },
      { type: 'address.add', link, address: '10.65.0.2/32' },
      { type: 'address.add', link, address: '10.65.0.3/32' },
      {
        type: 'route.add',
        destination: '0.0.0.0/0',
        gateway: '169.254.1.1',
        output: link,
        onlink: true,
        table: 70_000,
      },
      { type: 'rule.add', source: '10.65.0.3/32', table: 70_000 },
    ]);
    expect(codes(outcomes)).toEqual(outcomes.map(() => 'ok'));
    const way = (source: string) => run('ip', '-n', pod.name, 'route', 'get', '192.0.2.1', 'from', source);
    expect(way('10.65.0.3')).toContain('via 169.254.1.1 dev eth0 table 70000');
    expect(() => way('10.65.0.2')).toThrow(/unreachable/);
  });
});

describe('failures', () => {
  it('carry operation, object, errno name and the text of the kernel', async () => {
    const host = await open();
    const [outcome] = await host.batch([{ type: 'route.add', destination: '10.65.0.0/24', gateway: '10.9.9.9' }]);
    expect(outcome).toEqual({
      ok: false,
      error: expect.objectContaining({
        operation: 'route.add',
        object: '10.65.0.0/24 via 10.9.9.9',
        errno: 101,
        code: 'ENETUNREACH',
        kernelMessage: 'Nexthop has invalid gateway',
        message: expect.stringMatching(/^route\.add 10\.65\.0\.0\/24 via 10\.9\.9\.9: ENETUNREACH \(.*\): Nexthop/),
      }),
    });
  });

  it('do not stop the rest of a batch, and end a sequence', async () => {
    const [host, pod] = [await open(), await open(makePod().path)];
    const steps = [
      vethPair(link0, pod),
      vethPair(link0, pod, 'eth1'),
      { type: 'link.set', link: { name: link0 }, up: true },
    ] as const;
    expect(codes(await host.batch(steps))).toEqual(['ok', 'EEXIST', 'ok']);
    expect(codes(await host.sequence(steps))).toEqual(['EEXIST', 'ECANCELED', 'ECANCELED']);
    expect(codes(await host.sequence([{ ...steps[0], optional: true }, steps[2], steps[1], steps[2]]))).toEqual([
      'EEXIST',
      'ok',
      'EEXIST',
      'ECANCELED',
    ]);
  });

  it('name a link that was not found', async () => {
    const host = await open();
    const address = { type: 'address.add', link: { name: noLink }, address: '10.65.0.1/32' } as const;
    for (const [outcome] of [await host.batch([address]), await host.sequence([address])]) {
      expect(outcome).toMatchObject({ ok: false, error: { code: 'ENODEV', object: `10.65.0.1/32 dev ${noLink}` } });
    }
  });
});

import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { NodeMonitor } from './node-monitor.js';
import { NetlinkNodeNetwork } from './node-network.js';

const ip = (...args: readonly string[]) => run('ip', ...args);

let network: NetlinkNodeNetwork;
const watches: (() => void)[] = [];

beforeEach(async () => {
  requireThrowawayNamespace();
  ip('link', 'add', 'clt0', 'type', 'veth', 'peer', 'name', 'clt1');
  ip('link', 'set', 'clt0', 'up');
  network = await NetlinkNodeNetwork.open(new NodeMonitor());
});

afterEach(async () => {
  for (const unwatch of watches.splice(0)) unwatch();
  await network.close();
  ip('link', 'delete', 'clt0');
  cleanUp();
});

async function watch(changed: () => void, targets?: readonly Address[]): Promise<() => void> {
  const unwatch = await network.watch({ changed, ended: () => expect.unreachable() }, targets);
  watches.push(unwatch);
  return unwatch;
}

async function addressesOf(name: string): Promise<string[]> {
  const { links, addresses } = await network.read();
  const index = links.find((link) => link.name === name)?.index;
  return addresses
    .filter(({ linkIndex, isUsable }) => linkIndex === index && isUsable)
    .map(({ address, length, lifetime }) => `${formatAddress(address)}/${length} ${lifetime}`);
}

test('links, usable addresses and routes match the output of ip', async () => {
  ip('address', 'add', '192.0.2.7/24', 'dev', 'clt0');
  ip('address', 'add', '2001:db8::7/64', 'dev', 'clt0', 'nodad');
  ip('address', 'add', '2001:db8::8/64', 'dev', 'clt0', 'nodad', 'preferred_lft', '0');
  ip('address', 'add', '192.0.2.9/24', 'dev', 'clt0', 'valid_lft', '600', 'preferred_lft', '300');
  ip('address', 'add', '192.0.2.8/32', 'dev', 'clt0', 'scope', 'link');
  ip('route', 'add', '198.51.100.0/24', 'dev', 'clt0', 'src', '192.0.2.7', 'metric', '50');
  ip('route', 'add', 'blackhole', '203.0.113.0/24');
  const ipv4 = ['192.0.2.7/24 permanent', '192.0.2.9/24 dynamic'];
  expect((await addressesOf('clt0')).toSorted()).toEqual([
    ...ipv4,
    '2001:db8::7/64 permanent',
    '2001:db8::8/64 deprecated',
  ]);
  const { links, routes } = await network.read();
  expect(links.filter(({ name }) => name.startsWith('clt')).map(({ name, up }) => [name, up])).toEqual(
    expect.arrayContaining([
      ['clt0', true],
      ['clt1', false],
    ]),
  );
  expect(links.map(({ index }) => index)).toEqual(links.map(({ index }) => index).toSorted((a, b) => a - b));
  const found = routes.find(({ destination }) => formatPrefix(destination) === '198.51.100.0/24');
  expect(found).toMatchObject({ metric: 50, source: { family: 4, value: 0xc0000207n } });
  expect(links.find(({ index }) => index === found?.linkIndex)?.name).toBe('clt0');
  expect(routes.some(({ destination }) => formatPrefix(destination) === '203.0.113.0/24')).toBe(false);
  ip('route', 'delete', 'blackhole', '203.0.113.0/24');
});

test('changes of addresses are reported until the watch is closed', async () => {
  let changeCount = 0;
  const unwatch = await watch(() => changeCount++);
  ip('address', 'add', '192.0.2.7/24', 'dev', 'clt0');
  await expect.poll(() => changeCount).toBe(1);
  ip('address', 'delete', '192.0.2.7/24', 'dev', 'clt0');
  await expect.poll(() => changeCount).toBe(2);
  let otherChanges = 0;
  await watch(() => otherChanges++);
  unwatch();
  ip('address', 'add', '192.0.2.9/24', 'dev', 'clt0');
  await expect.poll(() => otherChanges).toBe(1);
  expect(changeCount).toBeLessThanOrEqual(3);
});

test('a changed default route, and a changed MAC address or state of a link with addresses, are reported; other links are not', async () => {
  ip('address', 'add', '192.0.2.7/24', 'dev', 'clt0');
  ip('link', 'set', 'clt1', 'up');
  await network.read();
  let changeCount = 0;
  await watch(() => changeCount++);
  ip('route', 'add', 'default', 'via', '192.0.2.1');
  await expect.poll(() => changeCount).toBe(1);
  ip('link', 'set', 'clt1', 'address', '02:00:00:00:00:77');
  ip('route', 'add', '203.0.113.0/24', 'via', '192.0.2.1');
  ip('link', 'set', 'clt0', 'address', '02:00:00:00:00:78');
  await expect.poll(() => changeCount).toBe(2);
  await network.read();
  ip('link', 'set', 'clt0', 'down');
  await expect.poll(() => changeCount).toBeGreaterThan(2);
});

test('routes to a target are reported, except Podwire’s own; other routes are not', async () => {
  // IPv6 routes need no address; the kernel would report one later, from its work queue.
  ip('address', 'add', '192.0.2.7/24', 'dev', 'clt0');
  await network.read();
  let changeCount = 0;
  let otherChanges = 0;
  const targets = ['203.0.113.9', '2001:db8:9::9'].map((text) => parseAddress(text)!);
  await watch(() => changeCount++, targets);
  await watch(() => otherChanges++);
  for (const [step, destination] of ['203.0.113.0/24', '203.0.113.9/32', '2001:db8:9::/48'].entries()) {
    ip('route', 'add', '203.0.114.0/24', 'via', '192.0.2.1', 'protocol', '4');
    ip('route', 'add', '203.0.113.8/30', 'via', '192.0.2.1', 'protocol', '87');
    for (const added of ['203.0.114.0/24', '203.0.113.8/30']) ip('route', 'delete', added);
    ip('route', 'add', destination, 'dev', 'clt0', 'protocol', '4');
    await expect.poll(() => changeCount).toBe(2 * step + 1);
    ip('route', 'delete', destination, 'dev', 'clt0');
    await expect.poll(() => changeCount).toBe(2 * step + 2);
  }
  expect(otherChanges).toBe(0);
});

test('an address is announced to neighbours, for IPv6 with whether the node forwards', async () => {
  const pod = 'neighbour';
  addPod(pod);
  ip('link', 'set', 'clt1', 'netns', pod, 'up');
  ip('address', 'add', '192.0.2.7/24', 'dev', 'clt0');
  ip('address', 'add', '2001:db8::7/64', 'dev', 'clt0', 'nodad');
  ip('-n', pod, 'address', 'add', '192.0.2.8/24', 'dev', 'clt1');
  ip('-n', pod, 'address', 'add', '2001:db8::8/64', 'dev', 'clt1', 'nodad');
  const link = (await network.read()).links.find(({ name }) => name === 'clt0')!;
  for (const text of ['192.0.2.7', '2001:db8::7']) {
    ip('-n', pod, 'neighbour', 'replace', text, 'lladdr', '02:00:00:00:00:99', 'dev', 'clt1', 'nud', 'reachable');
    const known = async () => {
      await network.announce(link, parseAddress(text)!);
      return ip('-n', pod, 'neighbour', 'show', text);
    };
    await expect.poll(known, { timeout: 10_000 }).toContain(`lladdr ${link.mac} `);
  }
  run('sysctl', '-qw', 'net.ipv6.conf.clt0.forwarding=1');
  await network.announce(link, parseAddress('2001:db8::7')!);
  await expect.poll(() => ip('-n', pod, 'neighbour', 'show', '2001:db8::7')).toContain('router');
  await expect(network.announce({ ...link, index: 2 ** 31 - 1 }, parseAddress('192.0.2.7')!)).rejects.toMatchObject({
    code: 'KERNEL_REFUSED',
  });
});

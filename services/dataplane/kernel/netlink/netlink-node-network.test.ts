import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { cleanUp, requireThrowawayNamespace, run } from './namespaces.fixture.js';
import { NetlinkNodeNetwork } from './netlink-node-network.js';
import { NodeMonitor } from './node-monitor.js';

const ip = (...args: readonly string[]) => run('ip', ...args);

let network: NetlinkNodeNetwork;

beforeEach(async () => {
  requireThrowawayNamespace();
  ip('link', 'add', 'clt0', 'type', 'veth', 'peer', 'name', 'clt1');
  ip('link', 'set', 'clt0', 'up');
  network = await NetlinkNodeNetwork.open(new NodeMonitor());
});

afterEach(async () => {
  await network.close();
  ip('link', 'delete', 'clt0');
  cleanUp();
});

async function addressesOf(name: string): Promise<string[]> {
  const { links, addresses } = await network.read();
  const index = links.find((link) => link.name === name)?.index;
  return addresses
    .filter(({ linkIndex, lasting }) => linkIndex === index && lasting)
    .map(({ address, length }) => `${formatAddress(address)}/${length}`);
}

test('links, lasting addresses and routes are as ip prints them', async () => {
  ip('address', 'add', '192.0.2.7/24', 'dev', 'clt0');
  ip('address', 'add', '2001:db8::7/64', 'dev', 'clt0', 'nodad');
  ip('address', 'add', '2001:db8::8/64', 'dev', 'clt0', 'nodad', 'preferred_lft', '0');
  ip('address', 'add', '192.0.2.8/32', 'dev', 'clt0', 'scope', 'link');
  ip('route', 'add', '198.51.100.0/24', 'dev', 'clt0', 'src', '192.0.2.7', 'metric', '50');
  ip('route', 'add', 'blackhole', '203.0.113.0/24');
  expect(await addressesOf('clt0')).toEqual(['192.0.2.7/24', '2001:db8::7/64']);
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

test('changes of addresses are told until nobody listens', async () => {
  let told = 0;
  const unwatch = await network.watch(() => told++);
  ip('address', 'add', '192.0.2.7/24', 'dev', 'clt0');
  await expect.poll(() => told).toBe(1);
  ip('address', 'delete', '192.0.2.7/24', 'dev', 'clt0');
  await expect.poll(() => told).toBe(2);
  let others = 0;
  await network.watch(() => others++);
  unwatch();
  ip('address', 'add', '192.0.2.9/24', 'dev', 'clt0');
  await expect.poll(() => others).toBe(1);
  expect(told).toBeLessThanOrEqual(3);
});

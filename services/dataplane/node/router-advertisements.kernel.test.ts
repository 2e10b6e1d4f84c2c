import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { NetlinkLinks } from '../kernel/links.js';
import { NodeMonitor } from '../kernel/node-monitor.js';
import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { keepAcceptingAdvertisements } from './router-advertisements.js';

/** A router advertisement with a lifetime of ten minutes; the kernel fills in the checksum. */
const ADVERTISE = `
import socket, struct
index = socket.if_nametoindex('eth0')
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
s.sendto(struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, 600, 0, 0), ('ff02::1', 0, 0, index))
`;

const defaultRoute = () => run('ip', '-6', 'route', 'show', 'default', 'proto', 'ra');
const advertise = () => run('ip', 'netns', 'exec', 'router', 'python3', '-c', ADVERTISE);

/** Sends advertisements until the node accepts one: the links must be up first. */
async function learnRoute(): Promise<void> {
  await vi.waitFor(
    () => {
      advertise();
      expect(defaultRoute()).not.toBe('');
    },
    { timeout: 30_000, interval: 100 },
  );
}

beforeEach(async () => {
  requireThrowawayNamespace();
  run('sysctl', '-qw', 'net.ipv6.conf.all.forwarding=0', 'net.ipv6.conf.default.accept_ra=1');
  addPod('router');
  run('ip', 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'router');
  run('ip', 'netns', 'exec', 'router', 'sysctl', '-qw', 'net.ipv6.conf.eth0.accept_dad=0');
  run('ip', '-n', 'router', 'link', 'set', 'eth0', 'up');
  run('ip', 'link', 'set', 'eth0', 'up');
  await learnRoute();
});

afterEach(() => {
  run('sysctl', '-qw', 'net.ipv6.conf.all.forwarding=0');
  cleanUp();
});

const forward = () => run('sysctl', '-qw', 'net.ipv6.conf.all.forwarding=1');

test('a node that forwards keeps the default route that its router advertised, and follows the next advertisement', async () => {
  const links = await NetlinkLinks.open(new NodeMonitor());
  expect(await keepAcceptingAdvertisements(links, ['eth*'])).toEqual(['eth0']);
  await links.close();
  forward();
  expect(defaultRoute()).not.toBe('');
  run('ip', '-6', 'route', 'delete', 'default');
  await learnRoute();
});

test('without the setting it loses the route as soon as it forwards', () => {
  forward();
  expect(defaultRoute()).toBe('');
});

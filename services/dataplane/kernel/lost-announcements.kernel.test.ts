import { execFileSync } from 'node:child_process';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { monitorFailure, FakeMonitor, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { NetlinkLinks } from './links.js';
import { NodeNetlinkKernel } from './node-kernel.js';
import { NodeMonitor } from './node-monitor.js';
import { NetlinkNodeNetwork } from './node-network.js';

/** More announcements than the kernel buffers for a process that reads none. */
const COUNT = 40_000;

/** Table of the test's routes, which no listener uses. */
const TABLE = '4711';

let opened: { close(): unknown }[] = [];

beforeEach(requireThrowawayNamespace);

afterEach(async () => {
  await Promise.all(opened.map((part) => part.close()));
  opened = [];
});

/** All listeners of the service, and the calls that they receive. */
async function listen(monitor: NodeMonitor) {
  const links = await NetlinkLinks.open(monitor);
  const network = await NetlinkNodeNetwork.open(monitor);
  const kernel = await NodeNetlinkKernel.open(monitor);
  opened = [links, network, kernel];
  const calls: string[] = [];
  const note = (text: string) => void calls.push(text);
  const linkWatch = await links.watch({
    changed: (name) => note(`links: ${name ?? 'unknown'}`),
    ended: () => note('links: ended'),
  });
  const unwatch = await network.watch({ changed: () => note('network'), ended: () => note('network: ended') });
  const watch = await kernel.watch({
    changed: ({ object }) => note(`kernel: ${object}`),
    failed: ({ details }) => note(`kernel: ${details.errno}`),
  });
  opened.unshift(linkWatch, { close: unwatch }, watch);
  return calls;
}

function fakeMonitor() {
  const fake = new FakeMonitor();
  const open = () => Promise.resolve({ monitor: () => Promise.resolve(fake), close: () => Promise.resolve() });
  return { fake, monitor: new NodeMonitor(open) };
}

test('all listeners of the node are notified of lost announcements, and of nothing else', async () => {
  const calls = await listen(new NodeMonitor());
  const lines = Array.from({ length: COUNT }, (_, at) => {
    const destination = `10.${at >> 16}.${(at >> 8) & 255}.${at & 255}`;
    return `route add blackhole ${destination} table ${TABLE}`;
  });
  try {
    // The event loop is blocked meanwhile.
    execFileSync('ip', ['-batch', '-'], { input: lines.join('\n') });
    await expect.poll(() => calls, { timeout: 20_000 }).toEqual(['links: unknown', 'network', 'kernel: overrun']);
  } finally {
    run('ip', 'route', 'flush', 'table', TABLE);
  }
});

test('all listeners of the node are notified of the end', async () => {
  const { fake, monitor } = fakeMonitor();
  const calls = await listen(monitor);
  fake.push(monitorFailure());
  await expect.poll(() => calls).toEqual(['links: ended', 'network: ended', 'kernel: EBADF']);
});

test('a watch that failed to open, because the links could not be read, receives no events', async () => {
  const { fake, monitor } = fakeMonitor();
  const kernel = await NodeNetlinkKernel.open(monitor);
  await kernel.close();
  const listener = { changed: () => undefined, failed: () => undefined };
  await expect(kernel.watch(listener)).rejects.toThrow('closed');
  await expect.poll(() => fake.isClosed).toBe(true);
});

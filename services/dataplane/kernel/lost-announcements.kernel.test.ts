import { execFileSync } from 'node:child_process';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { broken, GivenMonitor, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { NetlinkLinks } from './links.js';
import { NodeNetlinkKernel } from './node-kernel.js';
import { NodeMonitor } from './node-monitor.js';
import { NetlinkNodeNetwork } from './node-network.js';

/** More announcements than the kernel keeps for a process that takes none. */
const COUNT = 40_000;

/** Of routes in a table that is nobody's business. */
const TABLE = '4711';

let opened: { close(): Promise<void> }[] = [];

beforeEach(requireThrowawayNamespace);

afterEach(async () => {
  await Promise.all(opened.map((part) => part.close()));
  opened = [];
});

/** All of the service that listens to the node, and what it hears. */
async function listen(monitor: NodeMonitor) {
  const links = await NetlinkLinks.open(monitor);
  const network = await NetlinkNodeNetwork.open(monitor);
  const kernel = await NodeNetlinkKernel.open(monitor);
  opened = [links, network, kernel];
  const told: string[] = [];
  const note = (text: string) => void told.push(text);
  await links.watch({
    changed: (name) => note(`links: ${name ?? 'unknown'}`),
    ended: () => note('links: ended'),
  });
  await network.watch({ changed: () => note('network'), ended: () => note('network: ended') });
  await kernel.watch({
    changed: ({ object }) => note(`kernel: ${object}`),
    failed: ({ details }) => note(`kernel: ${details.errno}`),
  });
  return told;
}

function aGivenOne() {
  const given = new GivenMonitor();
  const open = () => Promise.resolve({ monitor: () => Promise.resolve(given), close: () => Promise.resolve() });
  return { given, monitor: new NodeMonitor(open) };
}

test('all who listen to the node are told that announcements were lost, and of nothing else', async () => {
  const told = await listen(new NodeMonitor());
  const lines = Array.from({ length: COUNT }, (_, at) => {
    const destination = `10.${at >> 16}.${(at >> 8) & 255}.${at & 255}`;
    return `route add blackhole ${destination} table ${TABLE}`;
  });
  try {
    // The event loop stands still meanwhile.
    execFileSync('ip', ['-batch', '-'], { input: lines.join('\n') });
    await expect.poll(() => told, { timeout: 20_000 }).toEqual(['links: unknown', 'network', 'kernel: overrun']);
  } finally {
    run('ip', 'route', 'flush', 'table', TABLE);
  }
});

test('all who listen to the node are told that it is over', async () => {
  const { given, monitor } = aGivenOne();
  const told = await listen(monitor);
  given.give(broken());
  await expect.poll(() => told).toEqual(['links: ended', 'network: ended', 'kernel: EBADF']);
});

test('a watch that could not be opened, as the links were not told, hears nothing any more', async () => {
  const { given, monitor } = aGivenOne();
  const kernel = await NodeNetlinkKernel.open(monitor);
  await kernel.close();
  const listener = { changed: () => undefined, failed: () => undefined };
  await expect(kernel.watch(listener)).rejects.toThrow('closed');
  await expect.poll(() => given.isClosed).toBe(true);
});

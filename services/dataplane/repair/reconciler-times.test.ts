import { once } from 'node:events';

import { hostPrefix } from '@podwire/shared/net/prefix';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { address, BOOT, FakeEndpoints, never, podNetwork, startNode } from '../testing/pods.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';

/** The reconciler's own work and its times, with the longest random intervals. */

const LONGEST = 0.999_999;

let kernel: MemoryKernel;
let clock: ManualClock;
let ipam: FakeEndpoints;
let node: Awaited<ReturnType<typeof startNode>>;

beforeEach(async () => {
  kernel = new MemoryKernel();
  clock = new ManualClock();
  ipam = new FakeEndpoints();
  node = await startNode({ kernel, clock, ipam, chance: LONGEST });
});

afterEach(async () => {
  await node.reconciler.stop();
});

/** Resolves after all pending work of the fakes. */
async function idle(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
}

/** @returns the seconds until the condition holds; undefined when it does not hold within the limit */
async function secondsUntil(isSo: () => boolean, limit: number): Promise<number | undefined> {
  for (let second = 0; second <= limit; second++) {
    await idle();
    if (isSo()) return second;
    clock.advance(1000);
  }
  return undefined;
}

async function wire(name: string, overrides: Partial<PodNetwork> = {}) {
  const network = podNetwork(name, overrides);
  kernel.addNamespace(network.netns);
  const identity = await kernel.identify(network.netns);
  const { addresses } = ipam.allocate(network, { bootId: BOOT.id, inode: identity!.inode });
  await node.dataplane.attach(network, never(), { addresses, nodeName: 'node-1', pod: undefined, isBound: true });
  return network;
}

describe('periodically, from its start', () => {
  test('the death of a pod whose namespace disappears without a DEL is found within a minute', async () => {
    node.reconciler.start();
    for (let at = 0; at < 40; at++) {
      const { netns } = await wire(`pod-${at}`);
      // Each disappears at another moment between two checks, some during the full check of all pods.
      await secondsUntil(() => false, at);
      kernel.removeNamespace(netns);
      const before = node.ended.length;
      const seconds = await secondsUntil(() => node.ended.length > before, 60);
      expect(seconds, `of pod ${at}`).toBeDefined();
      // Two checks with ten seconds between them.
      expect(seconds).toBeGreaterThanOrEqual(10);
    }
  });

  test('drift without a kernel event is repaired about every 90 seconds', async () => {
    await wire('a');
    const wired = kernel.print();
    node.reconciler.start();
    await idle();
    for (let time = 0; time < 3; time++) {
      kernel.host.routes.splice(0);
      const seconds = await secondsUntil(() => kernel.print() === wired, 90 * 1.2 + 1);
      expect(seconds).toBeGreaterThan(60);
    }
  });

  test('systemd’s change to the interface of a pod with additional IPv4 prefixes is repaired within two seconds', async () => {
    const looks = vi.spyOn(node.dataplane, 'repairRecorded');
    const [four, six] = ['192.0.2.1', '2001:db8::1'].map((text) => hostPrefix(address(text)));
    const { hostInterfaceName } = await wire('a', { sourcePrefixes: [four!] });
    await wire('b', { addresses: [address('10.65.0.8')], hostInterfaceName: 'podwb', sourcePrefixes: [six!] });
    const wired = kernel.print();
    kernel.host.sysctls.set(`net/ipv4/conf/${hostInterfaceName}/rp_filter`, '2');
    looks.mockClear();
    for (let count = 0; count < 3; count++)
      for (const name of [hostInterfaceName, 'podwb']) node.reconciler.handleLinkChange(name);
    expect(await secondsUntil(() => kernel.print() === wired, 10)).toBe(2);
    expect(await secondsUntil(() => looks.mock.calls.length > 1, 10), 'once, and no other pod').toBeUndefined();
  });

  test('a change that no wiring makes is repaired at once, even right after a wiring, or after one in flight', async () => {
    const network = await wire('a');
    const wired = kernel.print();
    const { hostInterfaceName: name } = network;
    const commands = kernel.commands.length;
    node.reconciler.handleLinkChange(name, false);
    await idle();
    kernel.host.routes.splice(0);
    node.reconciler.handleLinkChange(name, true);
    expect(await secondsUntil(() => kernel.print() === wired, 5)).toBe(0);
    expect(kernel.commands.length - commands, 'missing parts, once').toBe(1);

    const pause = kernel.pauseBefore('observe');
    const wiring = node.dataplane.attach(network, never());
    await pause.reached;
    kernel.host.links.find((link) => link.name === name)!.mtuBytes = 1300;
    node.reconciler.handleLinkChange(name, true);
    await idle();
    pause.release();
    await wiring;
    kernel.host.routes.splice(0);
    expect(await secondsUntil(() => kernel.print() === wired, 10)).toBe(2);
  });

  test('the late check of an earlier wiring does not replace the check of the next wiring of the interface', async () => {
    const four = hostPrefix(address('192.0.2.1'));
    const { hostInterfaceName, attachment } = await wire('a', { sourcePrefixes: [four] });
    node.reconciler.handleLinkChange(hostInterfaceName);
    await idle();
    clock.advance(1500);
    await idle();
    await node.dataplane.detach({ attachment, hostInterfaceName }, never());
    await wire('b', { sourcePrefixes: [four], hostInterfaceName });
    const wired = kernel.print();
    node.reconciler.handleLinkChange(hostInterfaceName);
    await idle();
    clock.advance(1000);
    await idle();
    // systemd's change comes after the check that was due by then.
    kernel.host.sysctls.set(`net/ipv4/conf/${hostInterfaceName}/rp_filter`, '2');
    expect(await secondsUntil(() => kernel.print() === wired, 10)).toBe(1);
  });

  test('changes that could not be finished or undone at the start are retried with the next check', async () => {
    const a = await wire('a');
    const b = await wire('b', { addresses: [address('10.65.0.8')] });
    kernel.failNext('link-get');
    await expect(node.dataplane.detach({ ...b }, never())).rejects.toMatchObject({ code: 'KERNEL_REFUSED' });
    kernel.host.addLink({ name: 'podwbare', mac: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1500 }, 'veth');
    kernel.failNext('link-delete');
    kernel.failNext('link-delete');
    node.reconciler.start();
    await idle();
    expect(kernel.unusedFaults).toBe(0);
    expect(kernel.host.links).toHaveLength(3);
    const names = () => kernel.host.links.map(({ name }) => name);
    expect(await secondsUntil(() => names().length === 1, 90 * 1.2 + 1)).toBeDefined();
    expect([names(), node.ended]).toEqual([[a.hostInterfaceName], ['net/b/eth0']]);
  });

  test('a recovery that failed because the kernel refused is retried with the next check', async () => {
    await wire('a');
    const wired = kernel.print();
    kernel.host.addLink({ name: 'podwbare', mac: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1500 }, 'veth');
    kernel.failNext('link-list');
    node.reconciler.start();
    await idle();
    expect(await secondsUntil(() => kernel.print() === wired, 90 * 1.2 + 1)).toBeGreaterThan(0);
  });

  test('no work is done after the stop', async () => {
    const { netns } = await wire('a');
    node.reconciler.start();
    await idle();
    await node.reconciler.stop();
    kernel.removeNamespace(netns);
    expect(await secondsUntil(() => node.ended.length > 0, 300)).toBeUndefined();
  });
});

describe('drift with a kernel event', () => {
  test('within two seconds of the wiring is repaired when they end, with one check', async () => {
    const { hostInterfaceName } = await wire('a');
    const wired = kernel.print();
    const looks = vi.spyOn(node.dataplane, 'repairRecorded');
    // Event of the wiring itself.
    for (let count = 0; count < 3; count++) node.reconciler.handleLinkChange(hostInterfaceName);
    expect(await secondsUntil(() => looks.mock.calls.length > 0, 1)).toBeUndefined();
    clock.setBack(1000);
    kernel.host.routes.splice(0);
    for (let count = 0; count < 3; count++) node.reconciler.handleLinkChange(hostInterfaceName);
    expect(await secondsUntil(() => kernel.print() === wired, 10)).toBe(1);
    expect(looks).toHaveBeenCalledTimes(1);
  });

  test('right after a wiring is ignored, except a MAC address that a later plugin sets', async () => {
    const [a, b] = [await wire('a'), await wire('b', { addresses: [address('10.65.0.8')] })];
    const wired = kernel.print();
    for (const { hostInterfaceName } of [a, b, a]) node.reconciler.handleLinkChange(hostInterfaceName);
    const pod = kernel.namespace(b.netns);
    pod.setLink(pod.find('eth0'), { mac: '02:00:00:00:00:99' });
    const known = () => kernel.host.neighbours.map(({ mac }) => mac);
    expect(await secondsUntil(() => known().includes('02:00:00:00:00:99'), 10)).toBe(2);
    expect(known()).toEqual([a.mac, '02:00:00:00:00:99']);
    // The unchanged pod was checked, and no step was applied to it.
    const linesOf = (text: string) => text.split('\n').filter((line) => line.startsWith(a.netns));
    expect(linesOf(kernel.print())).toEqual(linesOf(wired));
  });

  test('is repaired at once when the clock was set back since the wiring', async () => {
    const { hostInterfaceName } = await wire('a');
    const wired = kernel.print();
    clock.setBack(3_600_000);
    kernel.host.routes.splice(0);
    node.reconciler.handleLinkChange(hostInterfaceName);
    expect(await secondsUntil(() => kernel.print() === wired, 0)).toBe(0);
  });

  test('of an unknown interface: every pod is checked, after a check in progress once more', async () => {
    await wire('a');
    const { hostInterfaceName } = await wire('b', { addresses: [address('10.65.0.8')] });
    const wired = kernel.print();
    kernel.host.routes.splice(0);
    const pause = kernel.pauseBefore('observe');
    node.reconciler.handleLinkChange(undefined);
    await pause.reached;
    node.reconciler.handleLinkChange(undefined);
    node.reconciler.handleLinkChange(undefined);
    await idle();
    pause.release();
    await idle();
    kernel.host.removeLink(kernel.host.find(hostInterfaceName));
    const opening = vi.spyOn(kernel, 'open');
    node.reconciler.handleLinkChange(undefined);
    expect(await secondsUntil(() => kernel.print() === wired, 0)).toBe(0);
    expect(opening).toHaveBeenCalledTimes(2);
  });

  test('of unknown interfaces, repeated, takes at most a tenth of the time', async () => {
    await wire('a');
    const opening = vi.spyOn(kernel, 'open');
    const observe = kernel.pauseBefore('observe');
    node.reconciler.handleLinkChange(undefined);
    await observe.reached;
    clock.advance(2000);
    observe.release();
    await idle();
    expect(opening).toHaveBeenCalledTimes(1);
    for (let count = 0; count < 3; count++) node.reconciler.handleLinkChange(undefined);
    expect(await secondsUntil(() => opening.mock.calls.length > 1, 30)).toBe(18);
    expect(opening).toHaveBeenCalledTimes(2);
  });

  describe('of all pods of a node at once', () => {
    const PODS = 20;
    let names: string[];

    beforeEach(async () => {
      names = [];
      for (let at = 0; at < PODS; at++) {
        const overrides = { addresses: [address(`10.65.1.${at}`)], hostInterfaceName: `podw${at}` };
        names.push((await wire(`pod-${at}`, overrides)).hostInterfaceName);
      }
    });

    test('is repaired a few pods at a time, so that calls do not wait for all', async () => {
      const wired = kernel.print();
      const open = kernel.open.bind(kernel);
      const letGo = new AbortController();
      const opening = vi.spyOn(kernel, 'open').mockImplementation(async (netns) => {
        if (!letGo.signal.aborted) await once(letGo.signal, 'abort');
        return open(netns);
      });
      kernel.host.routes.splice(0);
      for (const name of names) node.reconciler.handleLinkChange(name, true);
      await idle();
      expect(opening.mock.calls.length).toBeLessThanOrEqual(4);
      letGo.abort();
      expect(await secondsUntil(() => kernel.print() === wired, 10)).toBeDefined();
      expect(opening).toHaveBeenCalledTimes(PODS);
    });

    test('is checked later without a leak warning from Node', async () => {
      const warnings: Error[] = [];
      const note = (warning: Error): unknown => warnings.push(warning);
      process.on('warning', note);
      clock.advance(1000);
      const wired = kernel.print();
      kernel.host.routes.splice(0);
      for (const name of names) node.reconciler.handleLinkChange(name);
      expect(await secondsUntil(() => kernel.print() === wired, 10)).toBeDefined();
      process.off('warning', note);
      expect(warnings).toEqual([]);
    });
  });
});

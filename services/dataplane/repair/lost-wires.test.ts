import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { describe, expect, test } from 'vitest';

import { address, BOOT, detachRequest, never, podNetwork, scene } from '../testing/pods.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';

/** A pod whose whole wire is lost without a DetachPod, as after a DEL of Calico's plugin or an operator's `ip link delete`. */

async function lostScene(rest: Partial<PodNetwork> = { addressesFromIpam: true }) {
  const all = await scene();
  const { kernel, node, ipam } = all;
  const network = podNetwork('a', { addresses: [address('10.65.0.7')], ...rest });
  const inPod = kernel.addNamespace(network.netns);
  const { inode } = (await kernel.identify(network.netns))!;
  ipam.allocate(network, { bootId: BOOT.id, inode });
  await node.dataplane.attach(network, never());
  const key = formatAttachment(network.attachment);
  const endpoint = ipam.endpoints.get(key)!;
  await all.advance(10_000);
  return {
    ...all,
    network,
    endpoint,
    /** Deletion as by Calico's plugin and operators. */
    cut: () => inPod.removeLink(inPod.find('eth0')),
    release: () => ipam.endpoints.delete(key),
    changeEndpoint: (change: object) => ipam.endpoints.set(key, { ...endpoint, ...change }),
    isWired: () => kernel.host.has(network.hostInterfaceName),
    isRecorded: () => node.registry.get(network.attachment) !== undefined,
    /** Handles the kernel's event of the lost link, and sends the next request to IPAM. */
    look: async () => {
      await node.reconciler.check();
      await node.reconciler.processLostWires();
    },
    logged: (text: string) => node.lines.filter(({ msg }) => String(msg).includes(text)),
  };
}

describe('a wire that is lost completely', () => {
  test('is not restored once IPAM has released its addresses; its record is removed', async () => {
    const { cut, release, look, isWired, isRecorded, logged, node } = await lostScene();
    cut();
    release();
    await look();
    expect([isWired(), isRecorded()]).toEqual([false, false]);
    expect(logged('record of')).toHaveLength(1);
    await look();
    expect([isWired(), node.registry.all()]).toEqual([false, []]);
  });

  test('waits while IPAM does not answer, without delaying a DetachPod', async () => {
    const { cut, look, isWired, isRecorded, ipam, node, network, logged } = await lostScene();
    ipam.isUnreachable = true;
    cut();
    for (let round = 0; round < 3; round++) await look();
    expect([isWired(), isRecorded()]).toEqual([false, true]);
    expect(logged('are not restored until IPAM answers').length).toBeGreaterThan(0);
    ipam.isUnreachable = false;
    await node.reconciler.processLostWires();
    expect(isWired()).toBe(true);
    ipam.isUnreachable = true;
    cut();
    await look();
    expect(await node.dataplane.detach(detachRequest(network), never())).toBe(false);
    ipam.isUnreachable = false;
    await look();
    expect([isWired(), isRecorded()]).toEqual([false, false]);
  });

  test('waits until a DEL of Calico’s plugin has ended, which releases the addresses last', async () => {
    const { cut, release, look, changeEndpoint, isWired, isRecorded, advance } = await lostScene();
    // The endpoint is deleted first; IPAM then knows the addresses by their allocation alone.
    changeEndpoint({ netns: undefined });
    cut();
    await look();
    await advance(2000);
    await look();
    expect([isWired(), isRecorded()]).toEqual([false, true]);
    release();
    await look();
    expect([isWired(), isRecorded()]).toEqual([false, false]);
  });

  test('is restored when the endpoint alone was lost and nothing was released within ten seconds', async () => {
    const { cut, look, changeEndpoint, isWired, advance } = await lostScene();
    changeEndpoint({ netns: undefined });
    cut();
    await look();
    await advance(10_000);
    await look();
    expect(isWired()).toBe(true);
  });

  test.each<readonly [string, object]>([
    ['that IPAM has for another namespace', { netns: { bootId: BOOT.id, inode: 1n } }],
    ['of which IPAM has not all addresses', { addresses: [{ address: '10.65.0.7', sequenceNumber: 1n }] }],
  ])('%s stays lost, and recorded', async (_, change) => {
    const { cut, look, changeEndpoint, isWired, isRecorded, advance, logged } = await lostScene({
      addressesFromIpam: true,
      addresses: [address('10.65.0.7'), address('10.65.0.8')],
    });
    changeEndpoint(change);
    cut();
    for (let round = 0; round < 4; round++) {
      await look();
      await advance(10_000);
    }
    expect([isWired(), isRecorded()]).toEqual([false, true]);
    expect(logged('not restored: IPAM has')).toHaveLength(1);
  });

  test('is restored at once when its addresses are not from IPAM, whatever IPAM has recorded', async () => {
    const { cut, release, ipam, node, isWired } = await lostScene({});
    ipam.isUnreachable = true;
    release();
    cut();
    await node.reconciler.check();
    expect(isWired()).toBe(true);
  });

  test('is restored by a start as by any other check', async () => {
    const { cut, restart, isWired } = await lostScene();
    cut();
    const next = await restart();
    await next.reconciler.recover();
    expect(isWired()).toBe(false);
    expect(next.lines.find(({ msg }) => String(msg).startsWith('attachments found'))).toMatchObject({ waiting: 1 });
    await next.reconciler.processLostWires();
    expect(isWired()).toBe(true);
  });
});

test('a pod that is attached again during the request to IPAM stays', async () => {
  const { cut, release, node, network, ipam, isWired, isRecorded } = await lostScene();
  cut();
  release();
  await node.reconciler.check();
  ipam.onLookup = async () => {
    await node.dataplane.attach(network, never());
  };
  await node.reconciler.processLostWires();
  expect([isWired(), isRecorded()]).toEqual([true, true]);
});

test('a part of a wire is repaired without a request to IPAM', async () => {
  const { node, network, kernel, ipam } = await lostScene();
  ipam.isUnreachable = true;
  kernel.host.deleteRoute(kernel.host.routes.find(({ device }) => device === network.hostInterfaceName)!);
  await node.reconciler.check();
  expect(await node.dataplane.check(network, never())).toEqual([]);
});

import { describe, expect, test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { address, podNetwork, startNode } from '../testing/pods.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { calicoAttachment } from './calico-attachment.js';

const never = () => new AbortController().signal;

async function scene() {
  const kernel = new MemoryKernel();
  const node = await startNode({ kernel });
  const attachPod = async (
    name: string,
    { host, network = 'net' }: { readonly host: number; readonly network?: string },
  ) => {
    const base = podNetwork(name, {
      addresses: [address(`10.65.0.${host}`)],
      hostInterfaceName: `podw${network}${name}`,
    });
    const pod: PodNetwork = { ...base, attachment: { ...base.attachment, network } };
    kernel.addNamespace(pod.netns);
    await node.dataplane.attach(pod, never());
    await node.clock.sleep(1, never());
    return pod;
  };
  const names = () => kernel.host.links.map(({ name }) => name).sort();
  return { ...node, kernel, attachPod, names };
}

type Node = Awaited<ReturnType<typeof scene>>;

describe('garbage', () => {
  test('is every attachment that is not valid, of one network or of all', async () => {
    const { attachPod, garbage, names, registry } = await scene();
    const [a, b] = [await attachPod('a', { host: 1 }), await attachPod('b', { host: 2 })];
    const other = await attachPod('c', { host: 3, network: 'other' });
    const ofNet = await garbage.collect({ valid: [a.attachment], network: 'net' }, never());
    expect(ofNet).toEqual({ removed: [b.attachment], failed: [] });
    expect(names()).toEqual(['podwneta', 'podwotherc']);
    expect(await garbage.collect({ valid: [a.attachment], network: undefined }, never())).toMatchObject({
      removed: [other.attachment],
    });
    expect(await garbage.collect({ valid: [a.attachment], network: undefined }, never())).toEqual({
      removed: [],
      failed: [],
    });
    expect(await garbage.collect({ valid: [], network: undefined }, never())).toMatchObject({
      removed: [a.attachment],
    });
    expect([names(), registry.all()]).toEqual([[], []]);
  });

  test('excludes attachments of Calico’s contract, whose names no list has', async () => {
    const { kernel, dataplane, attachPod, garbage } = await scene();
    await attachPod('a', { host: 1, network: 'calico' });
    const netns = '/run/netns/cni-1';
    kernel.addNamespace(netns);
    const attachment = calicoAttachment({ netns, interfaceName: 'eth0' });
    const pod = podNetwork('b', { addresses: [address('10.65.0.2')], hostInterfaceName: 'cali1234' });
    await dataplane.attach({ ...pod, attachment, netns }, never());
    for (const network of ['calico', undefined]) await garbage.collect({ valid: [], network }, never());
    expect(kernel.host.links.map(({ name }) => name)).toEqual(['cali1234']);
  });

  test('includes pods wired before the call, even after the clock was set back, and no later ones', async () => {
    const { kernel, attachPod, garbage, names, clock } = await scene();
    const a = await attachPod('a', { host: 1 });
    await clock.sleep(-3_600_000, never());
    const pause = kernel.pauseBefore('link-list');
    const collecting = garbage.collect({ valid: [], network: undefined }, never());
    await pause.reached;
    await attachPod('b', { host: 2 });
    pause.release();
    expect(await collecting).toEqual({ removed: [a.attachment], failed: [] });
    expect(names()).toEqual(['podwnetb']);
  });

  test('is found by the link alone and by the record alone', async () => {
    const { kernel, attachPod, garbage, registry, names } = await scene();
    const [a, b] = [await attachPod('a', { host: 1 }), await attachPod('b', { host: 2 })];
    await registry.remove(a.attachment);
    kernel.host.removeLink(kernel.host.find(b.hostInterfaceName));
    const { removed } = await garbage.collect({ valid: [], network: undefined }, never());
    expect(removed.map(({ containerId }) => containerId).sort()).toEqual(['a', 'b']);
    expect([names(), registry.all()]).toEqual([[], []]);
  });

  test('is removed by its link’s name, whatever the record says', async () => {
    const { kernel, attachPod, garbage, registry, names } = await scene();
    const a = await attachPod('a', { host: 1 });
    const identity = await kernel.identify(a.netns);
    await registry.record({ ...a, hostInterfaceName: 'podwrecorded' }, identity!);
    expect((await garbage.collect({ valid: [], network: undefined }, never())).removed).toEqual([a.attachment]);
    expect([names(), registry.all()]).toEqual([[], []]);
  });

  test('that cannot be removed is reported, and does not block the rest', async () => {
    const { kernel, attachPod, garbage, names } = await scene();
    for (const [at, name] of ['a', 'b', 'c'].entries()) await attachPod(name, { host: at + 1 });
    kernel.failNext('link-delete', { errno: 'EBUSY', after: 1 });
    const { removed, failed } = await garbage.collect({ valid: [], network: undefined }, never());
    expect([removed.length, failed.length, kernel.unusedFaults]).toEqual([2, 1, 0]);
    expect(failed[0]).toMatchObject({ failure: { code: 'KERNEL_REFUSED', details: { errno: 'EBUSY' } } });
    expect(names()).toHaveLength(1);
    expect((await garbage.collect({ valid: [], network: undefined }, never())).removed).toHaveLength(1);
  });

  test.each(['attach', 'repair'] as const)('excludes pods that a call wires (%s) or has wired since', async (call) => {
    const { kernel, attachPod, garbage, dataplane, names } = await scene();
    const [first, last] = [await attachPod('first', { host: 1 }), await attachPod('last', { host: 2 })];
    const opening = kernel.pauseBefore('open');
    const wiringFirst = dataplane[call](first, never());
    await opening.reached;
    const listing = kernel.pauseBefore('link-list');
    const collecting = garbage.collect({ valid: [], network: undefined }, never());
    await listing.reached;
    // One call ends, another begins, and a new pod is attached, before the kernel lists its links.
    opening.release();
    await wiringFirst;
    const reopening = kernel.pauseBefore('open');
    const wiringLast = dataplane[call](last, never());
    await reopening.reached;
    await attachPod('since', { host: 3 });
    listing.release();
    expect(await collecting).toEqual({ removed: [], failed: [] });
    reopening.release();
    await wiringLast;
    expect(names()).toEqual(['podwnetfirst', 'podwnetlast', 'podwnetsince']);
  });

  test.each([
    ['of a check', (node: Node, pod: PodNetwork) => node.dataplane.check(pod, never())],
    ['of a repair', (node: Node, pod: PodNetwork) => node.dataplane.repairRecorded(pod.attachment, never())],
  ])('waits for work %s, and is removed', async (_, work) => {
    const node = await scene();
    const pod = await node.attachPod('a', { host: 1 });
    const looking = node.kernel.pauseBefore('observe');
    const working = work(node, pod);
    await looking.reached;
    const listing = node.kernel.pauseBefore('link-list');
    const collecting = node.garbage.collect({ valid: [], network: undefined }, never());
    await listing.reached;
    listing.release();
    await new Promise((resolve) => setImmediate(resolve));
    looking.release();
    await working;
    expect(await collecting).toEqual({ removed: [pod.attachment], failed: [] });
    expect(node.names()).toEqual([]);
  });

  test('excludes foreign links', async () => {
    const { kernel, garbage } = await scene();
    kernel.host.addLink({ name: 'cali1', mac: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1500 }, 'veth');
    const bare = kernel.host.addLink({ name: 'podwbare', mac: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1500 }, 'veth');
    kernel.host.setLink(bare, { alias: 'something else' });
    const before = kernel.print();
    expect(await garbage.collect({ valid: [], network: undefined }, never())).toEqual({ removed: [], failed: [] });
    expect(kernel.print()).toBe(before);
  });
});

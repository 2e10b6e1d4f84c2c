import { describe, expect, test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { detachRequest, never, podNetwork, scene } from '../testing/pods.js';
import { describeSharedAddresses } from '../testing/contracts/record-store-contract.js';

describeSharedAddresses(() => {
  const kernel = new MemoryKernel();
  const deviceOf = (address: string): string =>
    kernel.host.routes.find(({ destination }) => destination.startsWith(`${address}/`))?.device ?? '';
  return Promise.resolve({
    kernel,
    deviceOf,
    addPod: (name) => void kernel.addNamespace(podNetwork(name).netns),
    print: () => kernel.print(),
    removeLink: (name) => kernel.host.removeLink(kernel.host.find(name)),
  });
});

describe('an address of two pods', () => {
  test('causes a condition that names both, logged once', async () => {
    const { node, attachPod } = await scene();
    await attachPod('first');
    const second = await attachPod('second');
    const reported = () => node.lines.filter(({ reason }) => reason === 'AddressShared');
    for (let time = 0; time < 3; time++) await node.reconciler.check();
    expect(node.reconciler.conditions()).toEqual([
      {
        reason: 'AddressShared',
        message: expect.stringMatching(/^10\.65\.0\.7 .*net\/second\/eth0.*net\/first\/eth0/),
      },
    ]);
    expect(reported()).toMatchObject([{ level: 'error', msg: node.reconciler.conditions()[0]!.message }]);
    await node.dataplane.detach(detachRequest(second), never());
    await node.reconciler.check();
    expect([node.reconciler.conditions(), reported().length]).toEqual([[], 2]);
  });

  test('belongs to the later pod even when the clock was set back, and to the earlier one when the later could not be wired', async () => {
    const { node, attachPod, clock, kernel } = await scene();
    await clock.sleep(10_000, never());
    const first = await attachPod('first');
    kernel.failNext('sysctl-write');
    await expect(attachPod('failed')).rejects.toMatchObject({ code: 'KERNEL_REFUSED' });
    expect(node.registry.lostAddresses(first)).toEqual([]);
    await clock.sleep(-9000, never());
    await attachPod('second');
    expect(node.registry.lostAddresses(first)).toMatchObject([{ holder: 'net/second/eth0' }]);
  });
});

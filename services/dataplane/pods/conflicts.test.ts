import { describe, expect, test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { detachment, never, podNetwork, scene } from '../testing/pods.js';
import { describeSharedAddresses } from '../testing/record-store-contract.js';

describeSharedAddresses(() => {
  const kernel = new MemoryKernel();
  const leadsTo = (address: string): string =>
    kernel.host.routes.find(({ destination }) => destination.startsWith(`${address}/`))?.device ?? '';
  return Promise.resolve({
    kernel,
    leadsTo,
    addPod: (name) => void kernel.addNamespace(podNetwork(name).netns),
    print: () => kernel.print(),
    removeLink: (name) => kernel.host.removeLink(kernel.host.find(name)),
  });
});

describe('an address that two pods were given', () => {
  test('is a condition that names both, and is logged once', async () => {
    const { node, wired } = await scene();
    await wired('first');
    const second = await wired('second');
    const told = () => node.lines.filter(({ reason }) => reason === 'AddressShared');
    for (let time = 0; time < 3; time++) await node.keeper.check();
    expect(node.keeper.conditions()).toEqual([
      {
        reason: 'AddressShared',
        message: expect.stringMatching(/^10\.65\.0\.7 .*net\/second\/eth0.*net\/first\/eth0/),
      },
    ]);
    expect(told()).toMatchObject([{ level: 'error', msg: node.keeper.conditions()[0]!.message }]);
    await node.dataplane.detach(detachment(second), never());
    await node.keeper.check();
    expect([node.keeper.conditions(), told().length]).toEqual([[], 2]);
  });

  test('is the later one’s by a clock that was set back, and that of the earlier one where the later one could not be wired', async () => {
    const { node, wired, clock, kernel } = await scene();
    await clock.sleep(10_000, never());
    const first = await wired('first');
    kernel.failNext('sysctl-write');
    await expect(wired('failed')).rejects.toMatchObject({ code: 'KERNEL_REFUSED' });
    expect(node.registry.lostAddresses(first)).toEqual([]);
    await clock.sleep(-9000, never());
    await wired('second');
    expect(node.registry.lostAddresses(first)).toMatchObject([{ holder: 'net/second/eth0' }]);
  });
});

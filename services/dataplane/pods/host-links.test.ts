import { describe, expect, test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { address, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { Events } from './events.js';
import { PodWiring } from './pods.js';

const never = () => new AbortController().signal;
const detachment = ({ attachment, hostInterfaceName }: PodNetwork) => ({ attachment, hostInterfaceName });

/** A pod whose host interface was renamed to `foo`, and another one. */
async function renamed() {
  const kernel = new MemoryKernel();
  const dataplane = new PodWiring({ kernel, registry: testRegistry(), events: new Events(recordingLog().log) });
  const wire = async (name: string, host: number) => {
    const network = podNetwork(name, { addresses: [address(`10.65.0.${host}`)] });
    kernel.addNamespace(network.netns);
    await dataplane.attach(network, never());
    return network;
  };
  await wire('other', 8);
  const unwired = kernel.print();
  const network = await wire('a', 7);
  const before = kernel.print();
  kernel.host.renameLink(kernel.host.find(network.hostInterfaceName), 'foo');
  return { kernel, dataplane, network, before, unwired };
}

describe('a renamed host interface', () => {
  test('is the only difference that a check reports', async () => {
    const { kernel, dataplane, network } = await renamed();
    const after = kernel.print();
    expect(await dataplane.check(network, never())).toEqual([
      { object: `host link ${network.hostInterfaceName} name`, wanted: network.hostInterfaceName, actual: 'foo' },
    ]);
    expect(kernel.print()).toBe(after);
  });

  test('gets its name back by an attach, which changes nothing else', async () => {
    const { kernel, dataplane, network, before } = await renamed();
    await dataplane.attach(network, never());
    expect(kernel.print()).toBe(before);
    expect(await dataplane.check(network, never())).toEqual([]);
  });

  test('gets its name back by a repair, which reports it with all other differences', async () => {
    const { kernel, dataplane, network, before } = await renamed();
    kernel.host.routes.splice(0, 2);
    const repaired = await dataplane.repair(network, never());
    expect(repaired.map(({ object }) => object)).toEqual([
      `host link ${network.hostInterfaceName} name`,
      `host route 10.65.0.7 dev ${network.hostInterfaceName} proto 87 scope link`,
    ]);
    expect(kernel.host.has('foo')).toBe(false);
    expect(before).toContain(`link ${network.hostInterfaceName} `);
  });

  test('is removed by a detach with everything on it, even when another interface has its name', async () => {
    const { kernel, dataplane, network, unwired } = await renamed();
    expect(await dataplane.detach(detachment(network), never())).toBe(true);
    expect(
      kernel
        .print()
        .replace(/^\/run\/netns\/a: .*\n?/gm, '')
        .trim(),
    ).toBe(unwired);

    const second = await renamed();
    second.kernel.host.addLink({ name: network.hostInterfaceName, mac: network.mac, mtuBytes: 1500 }, 'bridge');
    expect(await second.dataplane.detach(detachment(network), never())).toBe(true);
    expect([second.kernel.host.has('foo'), second.kernel.host.has(network.hostInterfaceName)]).toEqual([false, true]);
  });

  test('stays when its name is taken: the failure has the reason, and nothing changes', async () => {
    const { kernel, dataplane, network } = await renamed();
    kernel.failNext('link-rename', { errno: 'EBUSY' });
    const after = kernel.print();
    await expect(dataplane.repair(network, never())).rejects.toMatchObject({ details: { errno: 'EBUSY' } });
    expect(kernel.print()).toBe(after);
  });

  test('must be the peer of the pod’s interface: an alias alone proves nothing', async () => {
    const { kernel, dataplane, network } = await renamed();
    kernel.namespace(network.netns).removeLink(kernel.namespace(network.netns).find('eth0'));
    kernel.namespace(network.netns).addLink({ name: 'eth0', mac: network.mac, mtuBytes: 1500 }, 'bridge');
    const unrelated = kernel.host.addLink({ name: 'foo', mac: network.mac, mtuBytes: 1500 }, 'veth');
    unrelated.alias = 'podwire:net/a/eth0';
    const after = kernel.print();
    await expect(dataplane.repair(network, never())).rejects.toMatchObject({ code: 'INTERFACE_EXISTS' });
    expect(kernel.print()).toBe(after);
  });
});

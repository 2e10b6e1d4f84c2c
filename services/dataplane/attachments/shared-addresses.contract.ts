import { describe, expect, test } from 'vitest';

import { BY_FAMILY, podNetwork } from '../plan/pod-network.fixture.js';
import type { PodNetwork } from '../plan/pod-network.js';
import type { Kernel } from '../pods/kernel.js';
import { MemoryRecordStore } from '../testing/memory-record-store.js';
import { startNode } from '../testing/pods.js';
import { detachment, never } from './scene.fixture.js';

export interface SharedScene {
  readonly kernel: Kernel;
  /** Makes a pod's namespace of that name. */
  readonly addPod: (name: string) => void;
  /** All that the kernel has, as text. */
  readonly print: () => string;
  /** The interface that the node leads an address to. */
  readonly leadsTo: (address: string) => string;
  /** Takes a link of the node away, with all that goes with it. */
  readonly removeLink: (name: string) => void;
}

/** Two recorded pods of one node with the same addresses, as where IPAM forgot the first one's and gave them to the second. */
export function describeSharedAddresses(open: () => Promise<SharedScene>): void {
  const ADDRESS = { IPv4: '10.65.0.7', IPv6: 'fd65::7' } as const;

  async function node(family: keyof typeof ADDRESS) {
    const lasting = { store: new MemoryRecordStore(), ...(await open()) };
    const started = await startNode(lasting);
    const pod = (name: string): PodNetwork => {
      lasting.addPod(name);
      return podNetwork(name, BY_FAMILY[family]);
    };
    const [first, second] = [pod('first'), pod('second')];
    await started.dataplane.attach(first, never());
    await started.dataplane.attach(second, never());
    const holder = () => lasting.leadsTo(ADDRESS[family]);
    return { ...lasting, ...started, first, second, holder, restart: () => startNode(lasting) };
  }

  const mendings = (lines: readonly Record<string, unknown>[]) =>
    lines.map(({ msg }) => String(msg)).filter((msg) => /mended:|taken over/.test(msg));

  describe.each(['IPv4', 'IPv6'] as const)('addresses of %s that two pods were given', (family) => {
    test('are the later one’s: checks change nothing, however often, nor does a restart', async () => {
      const { keeper, print, holder, second, restart, lines } = await node(family);
      const before = print();
      const told = mendings(lines);
      for (let time = 0; time < 3; time++) await keeper.check();
      expect([print(), holder(), mendings(lines)]).toEqual([before, second.hostInterfaceName, told]);
      const next = await restart();
      await next.keeper.recover();
      await next.keeper.check();
      expect([print(), holder(), mendings(next.lines)]).toEqual([before, second.hostInterfaceName, []]);
    });

    test('go to whoever is attached last, also where it was wired first', async () => {
      const { dataplane, keeper, print, holder, first, restart } = await node(family);
      await dataplane.attach(first, never());
      const before = print();
      await keeper.check();
      expect([print(), holder()]).toEqual([before, first.hostInterfaceName]);
      const next = await restart();
      await next.keeper.check();
      expect([print(), holder()]).toEqual([before, first.hostInterfaceName]);
    });

    test('are told by a check, and not taken away by a repair', async () => {
      const { dataplane, keeper, print, first, second } = await node(family);
      const before = print();
      expect(await dataplane.check(first, never())).toMatchObject([
        { object: expect.stringContaining('host route'), actual: expect.stringContaining(second.hostInterfaceName) },
      ]);
      await expect(dataplane.repair(first, never())).rejects.toMatchObject({ code: 'ROUTE_TAKEN' });
      await keeper.check();
      expect(print()).toBe(before);
    });

    test('leave the rest of the earlier one its repair, and are its own again when the later one is gone', async () => {
      const { dataplane, keeper, removeLink, holder, first, second } = await node(family);
      removeLink(first.hostInterfaceName);
      await keeper.check();
      expect([holder(), await dataplane.check(first, never())]).toMatchObject([second.hostInterfaceName, [{}]]);
      await dataplane.detach(detachment(second), never());
      await keeper.check();
      expect([holder(), await dataplane.check(first, never())]).toEqual([first.hostInterfaceName, []]);
    });
  });
}

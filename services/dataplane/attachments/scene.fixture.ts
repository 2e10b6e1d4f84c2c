import { FakeClock } from '@podwire/shared/testing/clock';

import { BOOT } from '../dataplane.fixture.js';
import { address, podNetwork } from '../plan/pod-network.fixture.js';
import type { PodNetwork } from '../plan/pod-network.js';
import { MemoryKernel } from '../testing/memory-kernel.js';
import { MemoryRecordStore } from '../testing/memory-record-store.js';
import { FakeAddressBook, startNode } from '../testing/pods.js';

export const never = (): AbortSignal => new AbortController().signal;

export const detachment = ({ attachment, hostInterfaceName }: PodNetwork) => ({ attachment, hostInterfaceName });

export async function scene() {
  const lasting = {
    kernel: new MemoryKernel(),
    store: new MemoryRecordStore(),
    addressBook: new FakeAddressBook(),
    clock: new FakeClock(),
  };
  const node = await startNode(lasting);
  const wired = async (name: string, host = 7) => {
    const network = podNetwork(name, { addresses: [address(`10.65.0.${host}`)] });
    lasting.kernel.addNamespace(network.netns);
    const identity = await lasting.kernel.identify(network.netns);
    lasting.addressBook.allocate(network, { bootId: BOOT.id, inode: identity!.inode });
    await node.dataplane.attach(network, never());
    return network;
  };
  const advance = (durationMs: number) => lasting.clock.sleep(durationMs, never());
  /** Who is missed by two looks, ten seconds apart, is dead. */
  const lookForTheDead = async () => {
    await node.keeper.sweep();
    await advance(10_000);
    await node.keeper.sweep();
  };
  return { ...lasting, lasting, node, wired, advance, lookForTheDead, restart: () => startNode(lasting) };
}

/** What a start logs of what it found. */
export const summaryOf = (lines: readonly Record<string, unknown>[]) =>
  lines.find(({ msg }) => String(msg).startsWith('attachments found at the start'));

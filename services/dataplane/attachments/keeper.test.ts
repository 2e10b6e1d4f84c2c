import { HOST_MAC } from '@podwire/shared/attachment/names';
import { FakeClock } from '@podwire/shared/runtime/clock.fixture';
import { describe, expect, test } from 'vitest';

import { BOOT } from '../dataplane.fixture.js';
import { MemoryKernel } from '../kernel/memory/memory-kernel.js';
import { address, podNetwork } from '../plan/pod-network.fixture.js';
import type { PodNetwork } from '../plan/pod-network.js';
import { MemoryRecordStore } from './memory-record-store.js';
import { mortal } from './mortal.fixture.js';
import { FakeAddressBook, startNode } from './node.fixture.js';
import { storedRecord } from './record-store.contract.js';

const never = () => new AbortController().signal;
const detachment = ({ attachment, hostInterfaceName }: PodNetwork) => ({ attachment, hostInterfaceName });

/** What lasts when the process ends, and some pods on it. */
async function scene() {
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
  return { ...lasting, lasting, node, wired, advance, restart: () => startNode(lasting) };
}

const summaryOf = (lines: readonly Record<string, unknown>[]) =>
  lines.find(({ msg }) => String(msg).startsWith('attachments found at the start'));

describe('after a restart', () => {
  test('pods notice nothing: no step is carried out', async () => {
    const { kernel, wired, restart } = await scene();
    await wired('a', 1);
    await wired('b', 2);
    const [before, commands] = [kernel.print(), kernel.commands.length];
    const { keeper, lines } = await restart();
    await keeper.recover();
    await keeper.check();
    expect(kernel.commands).toHaveLength(commands);
    expect(kernel.print()).toBe(before);
    expect(summaryOf(lines)).toMatchObject({
      kept: 2,
      mended: 0,
      adopted: 0,
      undone: 0,
      withoutNamespace: 0,
      failed: 0,
    });
  });

  test('drift is mended, and each difference told', async () => {
    const { kernel, wired, restart } = await scene();
    const a = await wired('a');
    const before = kernel.print();
    kernel.host.routes.splice(0);
    kernel.host.writeSysctl(`net/ipv4/conf/${a.hostInterfaceName}/rp_filter`, '0');
    kernel.namespace(a.netns).neighbours.splice(0);
    const { keeper, lines } = await restart();
    await keeper.recover();
    expect(kernel.print()).toBe(before);
    expect(summaryOf(lines)).toMatchObject({ mended: 1 });
    expect(lines.filter(({ msg }) => String(msg).includes('mended: ')).map(({ object }) => object)).toEqual([
      expect.stringContaining('rp_filter'),
      expect.stringContaining('169.254.1.1'),
      expect.stringContaining('host route 10.65.0.7'),
    ]);
  });

  test('what is the pod’s own is left to it, as long as it has its wire', async () => {
    const { kernel, wired, restart } = await scene();
    const a = await wired('a');
    const pod = kernel.namespace(a.netns);
    pod.setLink(pod.find('eth0'), { mtuBytes: 1380, mac: '02:00:00:00:00:99', txQueueLength: 7 });
    pod.writeSysctl('net/ipv4/ip_forward', '1');
    // What a link loses with its MAC address is not its own.
    pod.setNeighbour({ device: 'eth0', address: '169.254.1.1', mac: HOST_MAC });
    const own = kernel.print();
    const { keeper } = await restart();
    await keeper.recover();
    await keeper.check();
    expect(kernel.print()).toBe(own);
    pod.setLink(pod.find('eth0'), { up: false });
    await keeper.check();
    expect(pod.find('eth0')).toMatchObject({ up: true, mtuBytes: 1380, mac: '02:00:00:00:00:99' });
  });

  test('an attach that was cut off at any step is finished where it is recorded, and undone where it is not', async () => {
    const { kernel: whole, wired } = await scene();
    await wired('a');
    const [wanted, steps] = [whole.print(), whole.commands.length];
    for (let killedAfter = 0; killedAfter < steps; killedAfter++) {
      for (const isRecorded of [true, false]) {
        const { lasting, kernel, store, restart } = await scene();
        const network = podNetwork('a');
        kernel.addNamespace(network.netns);
        const doomed = mortal(kernel, killedAfter);
        const { dataplane } = await startNode({ ...lasting, kernel: doomed.kernel });
        void dataplane.attach(network, never());
        await doomed.died;
        if (!isRecorded) store.texts.clear();
        const { keeper, registry } = await restart();
        await keeper.recover();
        const left = { links: kernel.host.links.length, records: registry.all().length, stored: store.texts.size };
        const at = `killed after ${killedAfter} steps, ${isRecorded ? 'recorded' : 'not recorded'}`;
        expect(left, at).toEqual(
          isRecorded ? { links: 1, records: 1, stored: 1 } : { links: 0, records: 0, stored: 0 },
        );
        if (isRecorded) expect(kernel.print(), at).toBe(wanted);
      }
    }
  });

  test('a detach that was cut off is finished, before or after the wire went', async () => {
    for (const isCut of [false, true]) {
      const { kernel, store, wired, restart } = await scene();
      const a = await wired('a');
      const [{ records }] = [await store.load()];
      await store.put({ ...records[0]!, state: 'detaching' });
      if (isCut) kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
      const { keeper, lines, registry } = await restart();
      await keeper.recover();
      expect([kernel.host.links, kernel.namespace(a.netns).links, registry.all()]).toEqual([[], [], []]);
      expect(store.texts.size).toBe(0);
      expect(summaryOf(lines)).toMatchObject({ undone: 1 });
    }
  });

  test('a complete wire without a record is kept, and a call records it again', async () => {
    const { kernel, store, wired, restart } = await scene();
    const a = await wired('a');
    store.texts.clear();
    const before = kernel.print();
    const { keeper, dataplane, lines } = await restart();
    await keeper.recover();
    expect(kernel.print()).toBe(before);
    expect(summaryOf(lines)).toMatchObject({ adopted: 1, undone: 0 });
    expect(await dataplane.repair(a, never())).toEqual([]);
    expect(store.texts.size).toBe(1);
  });

  test('links of others are left alone, down, without alias, or both', async () => {
    const { kernel, restart } = await scene();
    const mac = 'ee:ee:ee:ee:ee:ee';
    kernel.host.addLink({ name: 'cali1234', mac, mtuBytes: 1500 }, 'veth');
    kernel.host.addLink({ name: 'podwbr', mac, mtuBytes: 1500 }, 'bridge');
    kernel.host.addLink({ name: 'podwhand', mac: '02:00:00:00:00:01', mtuBytes: 1500 }, 'veth');
    const up = kernel.host.addLink({ name: 'podwup', mac, mtuBytes: 1500 }, 'veth');
    kernel.host.setLink(up, { up: true });
    const before = kernel.print();
    const { keeper } = await restart();
    await keeper.recover();
    expect(kernel.print()).toBe(before);
  });

  test('records that cannot be read, or are of an earlier boot, are told and no more', async () => {
    const { kernel, store, wired } = await scene();
    await wired('a');
    await store.put(storedRecord('old', { bootId: '11111111-1111-4111-8111-111111111111' }));
    store.texts.set('broken', '{');
    const before = kernel.print();
    const { loaded, registry, keeper } = await startNode({ kernel, store });
    await keeper.recover();
    expect(loaded.unreadable).toEqual([{ path: 'broken', fault: expect.any(String) }]);
    expect(loaded.outlived.map(({ network }) => network.attachment.containerId)).toEqual(['old']);
    expect(registry.all().map(({ network }) => network.attachment.containerId)).toEqual(['a']);
    expect([store.texts.size, kernel.print()]).toEqual([1, before]);
  });

  test('an attach does not wait for the recovery of another pod, which the kernel holds up', async () => {
    const { kernel, wired, restart } = await scene();
    await wired('slow');
    const { keeper, dataplane } = await restart();
    const pause = kernel.pauseBefore('observe');
    const recovering = keeper.recover();
    await pause.reached;
    const quick = podNetwork('quick', { addresses: [address('10.65.0.8')] });
    kernel.addNamespace(quick.netns);
    expect((await dataplane.attach(quick, never())).changes).toBeGreaterThan(0);
    expect(await dataplane.detach(detachment(quick), never())).toBe(true);
    pause.release();
    await recovering;
  });

  test('an attach that comes during the undoing of its half-made link waits for it, and succeeds', async () => {
    const { kernel, store, wired, restart } = await scene();
    const a = await wired('a');
    kernel.host.setLink(kernel.host.find(a.hostInterfaceName), { up: false, alias: '' });
    store.texts.clear();
    const { keeper, dataplane } = await restart();
    const pause = kernel.pauseBefore('link-delete');
    const recovering = keeper.recover();
    await pause.reached;
    const attaching = dataplane.attach(a, never());
    pause.release();
    await recovering;
    expect((await attaching).changes).toBeGreaterThan(0);
    expect(await dataplane.check(a, never())).toEqual([]);
  });
});

describe('drift later', () => {
  test('is mended by the full check, also a wire that was cut', async () => {
    const { kernel, wired, node } = await scene();
    const a = await wired('a');
    const before = kernel.print();
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    await node.keeper.check();
    expect(kernel.print()).toBe(before);
  });

  test('is mended when the kernel tells of the interface; an unknown one is nobody’s', async () => {
    const { kernel, wired, node } = await scene();
    const a = await wired('a');
    const before = kernel.print();
    kernel.host.routes.splice(0);
    node.keeper.repairByHostInterface('eth0');
    for (let event = 0; event < 5; event++) node.keeper.repairByHostInterface(a.hostInterfaceName);
    const opened = kernel.openSessions;
    await expect.poll(() => kernel.print()).toBe(before);
    await node.keeper.stop();
    expect([opened, kernel.openSessions]).toEqual([0, 0]);
  });

  test('is mended when the kernel is heard of it, but not for what is told of its own wiring', async () => {
    const { kernel, wired, node, advance, restart } = await scene();
    const a = await wired('a');
    const before = kernel.print();
    kernel.host.routes.splice(0);
    const broken = kernel.print();
    node.keeper.heardOf(a.hostInterfaceName);
    node.keeper.heardOf('eth0');
    await node.keeper.stop();
    expect(kernel.print(), 'told right after the wiring').toBe(broken);

    const later = await restart();
    await advance(2000);
    later.keeper.heardOf(a.hostInterfaceName);
    await expect.poll(() => kernel.print()).toBe(before);
    await later.keeper.stop();
  });

  test('of one pod that cannot be mended does not keep the others from it', async () => {
    const { kernel, wired, node } = await scene();
    await wired('a', 1);
    await wired('b', 2);
    kernel.host.routes.splice(0);
    kernel.failNext('observe');
    await node.keeper.check();
    expect(kernel.host.routes).toHaveLength(1);
    await node.keeper.check();
    expect(kernel.host.routes).toHaveLength(2);
    expect(node.lines.filter(({ level }) => level === 'error')).toHaveLength(1);
  });

  test('never wires a namespace that took the place of the pod’s, though it has its inode', async () => {
    const { kernel, wired, node } = await scene();
    const a = await wired('a');
    const inode = (await kernel.identify(a.netns))!.inode;
    kernel.removeNamespace(a.netns);
    kernel.addNamespace(a.netns);
    expect((await kernel.identify(a.netns))!.inode).toBe(inode);
    await node.keeper.check();
    expect(kernel.namespace(a.netns).links).toEqual([]);
  });
});

describe('a namespace that went without a DetachPod', () => {
  test('is noticed by two looks with ten seconds between, and its addresses are given back', async () => {
    const { kernel, wired, node, store, addressBook, advance } = await scene();
    const [a, b] = [await wired('a', 1), await wired('b', 2)];
    kernel.removeNamespace(a.netns);
    await node.keeper.sweep();
    await advance(9_999);
    await node.keeper.sweep();
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual([]);
    await advance(1);
    await node.keeper.sweep();
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual(['10.65.0.1']);
    expect([...addressBook.endpoints.keys()]).toEqual(['net/b/eth0']);
    expect([store.texts.size, node.registry.all().length]).toEqual([1, 1]);
    expect(await node.dataplane.check(b, never())).toEqual([]);
  });

  test('is told from one that took its path and inode', async () => {
    const { kernel, wired, node, addressBook, advance } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    kernel.addNamespace(a.netns);
    await node.keeper.sweep();
    await advance(10_000);
    await node.keeper.sweep();
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual(['10.65.0.7']);
  });

  test('lives as long as its wire does, though its path is gone', async () => {
    const { kernel, wired, node, addressBook, advance } = await scene();
    const a = await wired('a');
    kernel.unmount(a.netns);
    for (let look = 0; look < 3; look++) {
      await node.keeper.sweep();
      await advance(60_000);
    }
    await node.keeper.giveBack();
    expect([addressBook.released, kernel.host.links.length]).toEqual([[], 1]);
  });

  test('is not dead as long as the namespace is at its path, though the wire was cut', async () => {
    const { kernel, wired, node, addressBook, advance } = await scene();
    const a = await wired('a');
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    for (let look = 0; look < 3; look++) {
      await node.keeper.sweep();
      await advance(60_000);
    }
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual([]);
  });

  test('is not looked at while a call for it is under way, nor buried when it was attached anew meanwhile', async () => {
    const { kernel, wired, node, addressBook, advance } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    await node.keeper.sweep();
    await advance(10_000);
    kernel.addNamespace(a.netns);
    const pause = kernel.pauseBefore('link-add');
    const attaching = node.dataplane.attach(a, never());
    await pause.reached;
    await node.keeper.sweep();
    pause.release();
    await attaching;
    await node.keeper.sweep();
    await advance(10_000);
    await node.keeper.sweep();
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual([]);
    expect(await node.dataplane.check(a, never())).toEqual([]);
  });

  test('is given back once IPAM answers again, also after restarts', async () => {
    const { kernel, wired, node, addressBook, advance, restart } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    addressBook.isAway = true;
    await node.keeper.sweep();
    await advance(10_000);
    await node.keeper.sweep();
    await node.keeper.giveBack();
    await node.keeper.giveBack();
    const next = await restart();
    await next.keeper.recover();
    await next.keeper.giveBack();
    expect(next.registry.all()).toMatchObject([{ state: 'dead' }]);
    addressBook.isAway = false;
    await next.keeper.giveBack();
    expect([addressBook.released, next.registry.all()]).toEqual([['10.65.0.7'], []]);
  });

  test('gives nothing back that was allocated again since', async () => {
    const { kernel, wired, node, addressBook, advance } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    addressBook.isAway = true;
    await node.keeper.sweep();
    await advance(10_000);
    await node.keeper.sweep();
    await node.keeper.giveBack();
    addressBook.isAway = false;
    addressBook.allocate(a, { bootId: BOOT.id, inode: 99n });
    await node.keeper.giveBack();
    expect([addressBook.released, node.registry.all()]).toEqual([[], []]);
    expect(addressBook.endpoints.size).toBe(1);
  });

  test('keeps what it has when it is added again just before the release arrives', async () => {
    const { kernel, wired, node, addressBook, advance } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    await node.keeper.sweep();
    await advance(10_000);
    await node.keeper.sweep();
    addressBook.beforeRelease = () => void addressBook.allocate(a, { bootId: BOOT.id, inode: 99n });
    await node.keeper.giveBack();
    expect([addressBook.released, addressBook.endpoints.size, node.registry.all().length]).toEqual([[], 1, 1]);
    // Asked once more, IPAM tells of the one that lives, and the dead has nothing left.
    await node.keeper.giveBack();
    expect([addressBook.released, addressBook.endpoints.size, node.registry.all()]).toEqual([[], 1, []]);
  });

  test('that a DetachPod comes for after all is nobody’s affair any more', async () => {
    const { kernel, wired, node, addressBook, advance } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    addressBook.isAway = true;
    await node.keeper.sweep();
    await advance(10_000);
    await node.keeper.sweep();
    expect(await node.dataplane.detach(detachment(a), never())).toBe(false);
    addressBook.isAway = false;
    await node.keeper.giveBack();
    expect([addressBook.released, node.registry.all()]).toEqual([[], []]);
  });
});

describe('after a reboot', () => {
  const earlier = '11111111-1111-4111-8111-111111111111';

  test('what the node’s pods of earlier boots held is given back, and nothing else', async () => {
    const { wired, node, addressBook } = await scene();
    const wiredNow = await wired('wired', 1);
    addressBook.allocate(wiredNow, { bootId: earlier, inode: 1n });
    addressBook.allocate(podNetwork('died', { addresses: [address('10.65.0.2')] }), { bootId: earlier, inode: 2n });
    addressBook.allocate(podNetwork('lives', { addresses: [address('10.65.0.3')] }), { bootId: BOOT.id, inode: 3n });
    addressBook.allocate(podNetwork('untold', { addresses: [address('10.65.0.4')] }), undefined);
    const since = podNetwork('since', { addresses: [address('10.65.0.5')] });
    addressBook.allocate(since, { bootId: earlier, inode: 4n }, BOOT.startedAtMs);
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual(['10.65.0.2']);
    expect(node.lines.filter(({ msg }) => String(msg).includes('stay: '))).toHaveLength(2);
  });

  test('it is given back once IPAM answers, and then not looked for any more', async () => {
    const { node, addressBook } = await scene();
    addressBook.allocate(podNetwork('died'), { bootId: earlier, inode: 2n });
    addressBook.isAway = true;
    await node.keeper.giveBack();
    addressBook.isAway = false;
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual(['10.65.0.7']);
    addressBook.allocate(podNetwork('later'), { bootId: earlier, inode: 2n });
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual(['10.65.0.7']);
  });
});

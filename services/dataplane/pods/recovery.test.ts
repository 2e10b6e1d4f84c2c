import { HOST_MAC } from '@podwire/shared/attachment/names';
import { describe, expect, test } from 'vitest';

import { address, detachment, mortal, never, podNetwork, scene, startNode, summaryOf } from '../testing/pods.js';
import { storedRecord } from '../testing/record-store-contract.js';

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
    // Nor are the node's entries, which follow it.
    kernel.host.setNeighbour({ device: a.hostInterfaceName, address: '10.65.0.7', mac: '02:00:00:00:00:99' });
    const own = kernel.print();
    kernel.host.setNeighbour({ device: a.hostInterfaceName, address: '10.65.0.7', mac: a.mac });
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

  test('a pod that is attached anew while its earlier detach is to be finished stays', async () => {
    const { kernel, store, wired, restart } = await scene();
    const a = await wired('a');
    const [{ records }] = [await store.load()];
    await store.put({ ...records[0]!, state: 'detaching' });
    const { keeper, dataplane } = await restart();
    const pause = kernel.pauseBefore('open');
    const attaching = dataplane.attach(a, never());
    await pause.reached;
    const recovering = keeper.recover();
    await new Promise((resolve) => setImmediate(resolve));
    pause.release();
    await attaching;
    await recovering;
    expect(await dataplane.check(a, never())).toEqual([]);
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

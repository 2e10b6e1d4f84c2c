import { describe, expect, test, vi } from 'vitest';

import { never, scene } from '../testing/pods.js';

describe('drift later', () => {
  test('is repaired by the full check, including a cut wire', async () => {
    const { kernel, attachPod, node } = await scene();
    const a = await attachPod('a');
    const before = kernel.print();
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    await node.reconciler.check();
    expect(kernel.print()).toBe(before);
  });

  test('caused by a call in flight is left to the call', async () => {
    const { kernel, attachPod, node } = await scene();
    const a = await attachPod('a');
    const opening = vi.spyOn(kernel, 'open');
    const pause = kernel.pauseBefore('open');
    const attaching = node.dataplane.attach(a, never());
    await pause.reached;
    node.reconciler.repairByHostInterface(a.hostInterfaceName);
    await new Promise((resolve) => setTimeout(resolve, 20));
    pause.release();
    await attaching;
    await node.reconciler.stop();
    expect(opening).toHaveBeenCalledTimes(1);
  });

  test('reported during a check is repaired after it', async () => {
    const { kernel, attachPod, node } = await scene();
    const a = await attachPod('a');
    const before = kernel.print();
    const pause = kernel.pauseBefore('observe');
    const checking = node.dataplane.check(a, never());
    await pause.reached;
    kernel.host.routes.splice(0);
    node.reconciler.repairByHostInterface(a.hostInterfaceName);
    await new Promise((resolve) => setImmediate(resolve));
    pause.release();
    await checking;
    await expect.poll(() => kernel.print()).toBe(before);
    await node.reconciler.stop();
  });

  test('is not repaired for a detached pod, even when another interface had its name', async () => {
    const { kernel, attachPod, node } = await scene();
    const a = await attachPod('a');
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    const bridge = { name: a.hostInterfaceName, mac: '02:00:00:00:00:01', mtuBytes: 1500 };
    const link = kernel.host.addLink(bridge, 'bridge');
    await expect(node.dataplane.detach(a, never())).rejects.toMatchObject({ code: 'HOST_INTERFACE_TAKEN' });
    expect(kernel.host.links).toEqual([link]);
    kernel.host.removeLink(link);
    // Another pod may have its address by then.
    await node.reconciler.check();
    expect([kernel.host.links, node.ended]).toEqual([[], ['net/a/eth0']]);
  });

  test('of one pod that cannot be repaired does not block repairs of other pods', async () => {
    const { kernel, attachPod, node } = await scene();
    await attachPod('a', 1);
    await attachPod('b', 2);
    kernel.host.routes.splice(0);
    kernel.failNext('observe');
    await node.reconciler.check();
    expect(kernel.host.routes).toHaveLength(1);
    await node.reconciler.check();
    expect(kernel.host.routes).toHaveLength(2);
    expect(node.lines.filter(({ level }) => level === 'error')).toHaveLength(1);
  });

  test('never wires a namespace that replaced the pod’s, even with the same inode', async () => {
    const { kernel, attachPod, node } = await scene();
    const a = await attachPod('a');
    const inode = (await kernel.identify(a.netns))!.inode;
    kernel.removeNamespace(a.netns);
    kernel.addNamespace(a.netns);
    expect((await kernel.identify(a.netns))!.inode).toBe(inode);
    await node.reconciler.check();
    expect(kernel.namespace(a.netns).links).toEqual([]);
  });

  test('without cookies is repaired while the wire proves the namespace', async () => {
    const { kernel, attachPod, node } = await scene();
    kernel.reportsCookies = false;
    const a = await attachPod('a');
    const before = kernel.print();
    kernel.host.routes.splice(0);
    await node.reconciler.check();
    expect(kernel.print()).toBe(before);
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    await node.reconciler.check();
    expect(kernel.host.links).toEqual([]);
  });
});

describe('a renamed host interface', () => {
  test('gets its name back, with everything on it; that is logged', async () => {
    const { kernel, attachPod, node } = await scene();
    const a = await attachPod('a');
    const before = kernel.print();
    kernel.host.renameLink(kernel.host.find(a.hostInterfaceName), 'foo');
    await node.reconciler.check();
    expect(kernel.print()).toBe(before);
    const repairs = node.lines.filter(({ msg }) => String(msg).includes('repaired: '));
    expect(repairs).toMatchObject([{ object: `host link ${a.hostInterfaceName} name`, actual: 'foo' }]);
  });

  test('gets its name back after a start, with other drift repaired', async () => {
    const { kernel, attachPod, restart } = await scene();
    const a = await attachPod('a');
    const before = kernel.print();
    const link = kernel.host.find(a.hostInterfaceName);
    kernel.host.setLink(link, { up: false });
    kernel.host.renameLink(link, 'foo');
    const later = await restart();
    await later.reconciler.recover();
    expect(kernel.print()).toBe(before);
  });

  test('keeps its new name while another interface has the wanted one; that is logged', async () => {
    const { kernel, attachPod, node } = await scene();
    const a = await attachPod('a');
    kernel.host.renameLink(kernel.host.find(a.hostInterfaceName), 'foo');
    kernel.host.addLink({ name: a.hostInterfaceName, mac: a.mac, mtuBytes: 1500 }, 'bridge');
    const before = kernel.print();
    await node.reconciler.check();
    expect(kernel.print()).toBe(before);
    expect(node.lines.filter(({ level }) => level === 'error')).toHaveLength(1);
  });
});

import { describe, expect, test, vi } from 'vitest';

import { never, scene } from '../testing/pods.js';

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

  test('that a call makes, which is under way, is left to the call', async () => {
    const { kernel, wired, node } = await scene();
    const a = await wired('a');
    const opening = vi.spyOn(kernel, 'open');
    const pause = kernel.pauseBefore('open');
    const attaching = node.dataplane.attach(a, never());
    await pause.reached;
    node.keeper.repairByHostInterface(a.hostInterfaceName);
    await new Promise((resolve) => setTimeout(resolve, 20));
    pause.release();
    await attaching;
    await node.keeper.stop();
    expect(opening).toHaveBeenCalledTimes(1);
  });

  test('that is told while a call only looks is mended after it', async () => {
    const { kernel, wired, node } = await scene();
    const a = await wired('a');
    const before = kernel.print();
    const pause = kernel.pauseBefore('observe');
    const checking = node.dataplane.check(a, never());
    await pause.reached;
    kernel.host.routes.splice(0);
    node.keeper.repairByHostInterface(a.hostInterfaceName);
    await new Promise((resolve) => setImmediate(resolve));
    pause.release();
    await checking;
    await expect.poll(() => kernel.print()).toBe(before);
    await node.keeper.stop();
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

  test('is none of a pod that was detached, though another’s interface was in the place of its own', async () => {
    const { kernel, wired, node, store } = await scene();
    const a = await wired('a');
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    const others = { name: a.hostInterfaceName, mac: '02:00:00:00:00:01', mtuBytes: 1500 };
    const link = kernel.host.addLink(others, 'bridge');
    await expect(node.dataplane.detach(a, never())).rejects.toMatchObject({ code: 'HOST_INTERFACE_TAKEN' });
    expect(kernel.host.links).toEqual([link]);
    kernel.host.removeLink(link);
    // By then its address may be another pod's.
    await node.keeper.check();
    expect([kernel.host.links, node.registry.all(), store.texts.size]).toEqual([[], [], 0]);
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

  test('where the kernel tells no cookies is mended as long as the wire proves the namespace', async () => {
    const { kernel, wired, node } = await scene();
    kernel.tellsCookies = false;
    const a = await wired('a');
    const before = kernel.print();
    kernel.host.routes.splice(0);
    await node.keeper.check();
    expect(kernel.print()).toBe(before);
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    await node.keeper.check();
    expect(kernel.host.links).toEqual([]);
  });
});

test('the full check stores what the store has refused before', async () => {
  const { store, wired, node, restart } = await scene();
  store.isFull = true;
  const a = await wired('a');
  await node.keeper.check();
  expect(store.texts.size).toBe(0);
  store.isFull = false;
  await node.keeper.check();
  expect((await restart()).registry.get(a.attachment)).toMatchObject({ state: 'attached', network: a });
});

describe('a host interface that was renamed by hand', () => {
  test('has its name again, with everything on it, and is told', async () => {
    const { kernel, wired, node } = await scene();
    const a = await wired('a');
    const before = kernel.print();
    kernel.host.renameLink(kernel.host.find(a.hostInterfaceName), 'foo');
    await node.keeper.check();
    expect(kernel.print()).toBe(before);
    const told = node.lines.filter(({ msg }) => String(msg).includes('was not as wanted'));
    expect(told).toMatchObject([{ object: `host link ${a.hostInterfaceName} name`, actual: 'foo' }]);
  });

  test('has it again after a start, and with what was changed besides', async () => {
    const { kernel, wired, restart } = await scene();
    const a = await wired('a');
    const before = kernel.print();
    const link = kernel.host.find(a.hostInterfaceName);
    kernel.host.setLink(link, { up: false });
    kernel.host.renameLink(link, 'foo');
    const later = await restart();
    await later.keeper.recover();
    expect(kernel.print()).toBe(before);
  });

  test('keeps its new name where another interface has the wanted one, which is told', async () => {
    const { kernel, wired, node } = await scene();
    const a = await wired('a');
    kernel.host.renameLink(kernel.host.find(a.hostInterfaceName), 'foo');
    kernel.host.addLink({ name: a.hostInterfaceName, mac: a.mac, mtuBytes: 1500 }, 'bridge');
    const before = kernel.print();
    await node.keeper.check();
    expect(kernel.print()).toBe(before);
    expect(node.lines.filter(({ level }) => level === 'error')).toHaveLength(1);
  });
});

import { describe, expect, test } from 'vitest';

import { scene } from './scene.fixture.js';

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

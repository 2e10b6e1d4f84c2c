import { describe, expect, test, vi } from 'vitest';

import { DEFAULT_ROUTE, detachRequest, never, podNetwork, scene, startNode } from '../testing/pods.js';

describe('a namespace that disappeared without a DetachPod', () => {
  test('is detected by two checks ten seconds apart, and its addresses are to be returned', async () => {
    const { kernel, attachPod, node, advance } = await scene();
    const [a, b] = [await attachPod('a', 1), await attachPod('b', 2)];
    kernel.removeNamespace(a.netns);
    await node.reconciler.sweep();
    await advance(9_999);
    await node.reconciler.sweep();
    expect(node.ended).toEqual([]);
    await advance(1);
    await node.reconciler.sweep();
    expect(node.ended).toEqual(['net/a/eth0']);
    expect(node.registry.all().map(({ state }) => state)).toEqual(['attached', 'dead']);
    expect(await node.dataplane.check(b, never())).toEqual([]);
  });

  test('is detected after the same time when the clock was set back', async () => {
    const { kernel, attachPod, node, advance, clock } = await scene();
    const { netns } = await attachPod('a');
    kernel.removeNamespace(netns);
    await node.reconciler.sweep();
    clock.setBack(3_600_000);
    await advance(9_999);
    await node.reconciler.sweep();
    expect(node.registry.all()).toMatchObject([{ state: 'attached' }]);
    await advance(1);
    await node.reconciler.sweep();
    expect(node.registry.all()).toMatchObject([{ state: 'dead' }]);
  });

  test('is distinguished from a new one with its path and inode', async () => {
    const { kernel, attachPod, node, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    kernel.addNamespace(a.netns);
    await sweepTwice();
    expect(node.ended).toEqual(['net/a/eth0']);
  });

  test('is alive while its wire is, even when its path is gone', async () => {
    const { kernel, attachPod, node, advance } = await scene();
    const a = await attachPod('a');
    kernel.unmount(a.netns);
    for (let look = 0; look < 3; look++) {
      await node.reconciler.sweep();
      await advance(60_000);
    }
    expect([node.ended, kernel.host.links.length]).toEqual([[], 1]);
  });

  test('is alive while its wire is, even when an operator renamed the wire and the path is gone', async () => {
    const { kernel, attachPod, node, sweepTwice } = await scene();
    const a = await attachPod('a');
    const living = kernel.namespace(a.netns);
    kernel.host.renameLink(kernel.host.find(a.hostInterfaceName), 'foo');
    kernel.unmount(a.netns);
    await sweepTwice();
    expect(node.registry.get(a.attachment)?.state).toBe('attached');
    expect(living.has('eth0')).toBe(true);
  });

  test('is not dead while the namespace is at its path, even when the wire was cut', async () => {
    const { kernel, attachPod, node, advance } = await scene();
    const a = await attachPod('a');
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    for (let look = 0; look < 3; look++) {
      await node.reconciler.sweep();
      await advance(60_000);
    }
    expect(node.ended).toEqual([]);
  });

  test('is not checked while a call for it is in flight, and not removed when it was attached again meanwhile', async () => {
    const { kernel, attachPod, node, advance, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    await node.reconciler.sweep();
    await advance(10_000);
    kernel.addNamespace(a.netns);
    const pause = kernel.pauseBefore('link-add');
    const attaching = node.dataplane.attach(a, never());
    await pause.reached;
    await node.reconciler.sweep();
    pause.release();
    await attaching;
    await sweepTwice();
    expect(node.ended).toEqual([]);
    expect(await node.dataplane.check(a, never())).toEqual([]);
  });

  test('is removed even when the kernel refuses another one’s', async () => {
    const { kernel, attachPod, node, advance } = await scene();
    const pods = [await attachPod('a', 1), await attachPod('b', 2)];
    for (const { netns } of pods) kernel.removeNamespace(netns);
    await node.reconciler.sweep();
    await advance(10_000);
    kernel.failNext('identify', { errno: 'EACCES' });
    await node.reconciler.sweep();
    expect(kernel.unusedFaults).toBe(0);
    expect(node.registry.all().map(({ state }) => state)).toEqual(['attached', 'dead']);
    await node.reconciler.sweep();
    expect(node.registry.all().map(({ state }) => state)).toEqual(['dead', 'dead']);
  });

  test('without podwire-ipam’s addresses has no record any more', async () => {
    const { kernel, node, store, sweepTwice } = await scene();
    const network = podNetwork('a');
    kernel.addNamespace(network.netns);
    await node.dataplane.attach(network, never());
    kernel.removeNamespace(network.netns);
    await sweepTwice();
    expect([node.ended, node.registry.all(), store.texts.size]).toEqual([[], [], 0]);
  });

  test('is not removed as garbage until its addresses are returned', async () => {
    const { kernel, attachPod, node, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    await sweepTwice();
    expect(await node.garbage.collect({ valid: [], network: undefined }, never())).toEqual({ removed: [], failed: [] });
    expect(node.registry.all()).toMatchObject([{ state: 'dead' }]);
  });

  test('needs no further work after a late DetachPod', async () => {
    const { kernel, attachPod, node, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    await sweepTwice();
    expect(await node.dataplane.detach(detachRequest(a), never())).toBe(false);
    expect(node.registry.all()).toMatchObject([{ state: 'dead' }]);
  });
});

/** The link of a dead pod after its peer was deleted. */
async function dead() {
  const stage = await scene();
  const a = await stage.attachPod('a');
  const namespace = stage.kernel.namespace(a.netns);
  const linesWith = (text: string) => stage.node.lines.filter(({ msg }) => String(msg).includes(text)).length;
  return { ...stage, a, namespace, state: () => stage.node.registry.get(a.attachment)?.state, linesWith };
}

describe('leftovers of a dead pod on the node', () => {
  test('is removed: a link of the attachment without a peer', async () => {
    const { kernel, a, sweepTwice } = await dead();
    kernel.unmount(a.netns);
    kernel.host.find(a.hostInterfaceName).peer = undefined;
    await sweepTwice();
    expect(kernel.host.links).toEqual([]);
  });

  test('does not include a foreign link of that name, which proves no life and stays', async () => {
    const { kernel, a, state, sweepTwice } = await dead();
    kernel.removeNamespace(a.netns);
    const other = { mac: '02:00:00:00:00:01', mtuBytes: 1500 } as const;
    const link = kernel.host.addLink({ ...other, name: a.hostInterfaceName }, 'veth');
    const peer = kernel.host.addLink({ ...other, name: 'peer' }, 'veth');
    link.peer = { link: peer, namespace: kernel.host };
    const before = kernel.print();
    await sweepTwice();
    expect([state(), kernel.print()]).toEqual(['dead', before]);
  });

  test('does not include its filters', async () => {
    const { lasting } = await scene();
    const filter = { install: vi.fn(), forget: vi.fn() };
    for (const method of Object.values(filter)) method.mockResolvedValue(undefined);
    const node = await startNode({ ...lasting, filters: [filter] });
    const network = podNetwork('a', { sourcePrefixes: [DEFAULT_ROUTE] });
    lasting.kernel.addNamespace(network.netns);
    await node.dataplane.attach(network, never());
    lasting.kernel.removeNamespace(network.netns);
    for (const waitMs of [10_000, 0]) {
      await node.reconciler.sweep();
      await lasting.clock.sleep(waitMs, never());
    }
    expect(filter.forget.mock.calls).toEqual([[network.hostInterfaceName]]);
  });

  test('is removed once: a death is logged once', async () => {
    const { kernel, a, sweepTwice, linesWith } = await dead();
    kernel.removeNamespace(a.netns);
    for (let round = 0; round < 3; round++) await sweepTwice();
    expect(linesWith('is dead: ')).toBe(1);
  });
});

describe('between two checks', () => {
  test('a sign of life restarts the ten seconds', async () => {
    const { kernel, node, a, namespace, advance, state } = await dead();
    const isThere = (there: boolean) => (there ? kernel.mount(a.netns, namespace) : kernel.unmount(a.netns));
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    for (const there of [false, true, false]) {
      isThere(there);
      await node.reconciler.sweep();
      await advance(5000);
    }
    await node.reconciler.sweep();
    expect(state()).toBe('attached');
    await advance(5000);
    await node.reconciler.sweep();
    expect(state()).toBe('dead');
  });

  test('a namespace that is mounted again at the last moment is not removed', async () => {
    const { kernel, node, a, namespace, advance, state } = await dead();
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    kernel.unmount(a.netns);
    await node.reconciler.sweep();
    await advance(10_000);
    const burial = kernel.pauseBefore('link-get');
    const sweeping = node.reconciler.sweep();
    await burial.reached;
    kernel.mount(a.netns, namespace);
    burial.release();
    await sweeping;
    expect(state()).toBe('attached');
  });

  test('an attachment that was attached again during the check has its own ten seconds', async () => {
    const { kernel, node, a, advance, state } = await dead();
    kernel.removeNamespace(a.netns);
    await node.reconciler.sweep();
    await advance(10_000);
    const looking = kernel.pauseBefore('identify');
    const sweeping = node.reconciler.sweep();
    await looking.reached;
    kernel.addNamespace(a.netns);
    await node.dataplane.attach(a, never());
    kernel.removeNamespace(a.netns);
    looking.release();
    await sweeping;
    expect(state()).toBe('attached');
    await node.reconciler.sweep();
    await advance(10_000);
    await node.reconciler.sweep();
    expect(state()).toBe('dead');
  });

  test('a call in flight delays no check of other attachments', async () => {
    const { kernel, node, a, attachPod, advance, state } = await dead();
    const b = await attachPod('b', 8);
    for (const { netns } of [a, b]) kernel.removeNamespace(netns);
    await node.reconciler.sweep();
    await advance(10_000);
    const pause = kernel.pauseBefore('open');
    const checking = node.dataplane.check(a, never()).catch(() => undefined);
    await pause.reached;
    await node.reconciler.sweep();
    expect([state(), node.registry.get(b.attachment)?.state]).toEqual(['attached', 'dead']);
    pause.release();
    await checking;
  });
});

test('without cookies, another namespace with the same path and inode proves no death; a missing one does', async () => {
  const { kernel, attachPod, node, sweepTwice } = await scene();
  kernel.reportsCookies = false;
  const a = await attachPod('a');
  kernel.removeNamespace(a.netns);
  kernel.addNamespace(a.netns);
  await sweepTwice();
  expect(node.registry.get(a.attachment)?.state).toBe('attached');
  kernel.removeNamespace(a.netns);
  await sweepTwice();
  expect(node.registry.get(a.attachment)?.state).toBe('dead');
});

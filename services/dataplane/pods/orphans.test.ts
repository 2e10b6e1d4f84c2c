import { describe, expect, test, vi } from 'vitest';

import { address, BOOT, DEFAULT_ROUTE, detachment, never, podNetwork, scene, startNode } from '../testing/pods.js';

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

  test('is noticed by two looks after a clock was set back, and not by one', async () => {
    const { kernel, wired, node, advance } = await scene();
    const { netns } = await wired('a');
    kernel.removeNamespace(netns);
    await node.keeper.sweep();
    await advance(-3_600_000);
    await node.keeper.sweep();
    expect(node.registry.all()).toMatchObject([{ state: 'attached' }]);
    await advance(15_000);
    await node.keeper.sweep();
    expect(node.registry.all()).toMatchObject([{ state: 'dead' }]);
  });

  test('is told from one that took its path and inode', async () => {
    const { kernel, wired, node, addressBook, lookForTheDead } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    kernel.addNamespace(a.netns);
    await lookForTheDead();
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

  test('lives as long as its wire does, though that was renamed by hand and its path is gone', async () => {
    const { kernel, wired, node, lookForTheDead } = await scene();
    const a = await wired('a');
    const living = kernel.namespace(a.netns);
    kernel.host.renameLink(kernel.host.find(a.hostInterfaceName), 'foo');
    kernel.unmount(a.netns);
    await lookForTheDead();
    expect(node.registry.get(a.attachment)?.state).toBe('attached');
    expect(living.has('eth0')).toBe(true);
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
    const { kernel, wired, node, addressBook, advance, lookForTheDead } = await scene();
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
    await lookForTheDead();
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual([]);
    expect(await node.dataplane.check(a, never())).toEqual([]);
  });

  test('is given back once IPAM answers again, also after restarts', async () => {
    const { kernel, wired, node, addressBook, restart, lookForTheDead } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    addressBook.isAway = true;
    await lookForTheDead();
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

  test('is taken away and given back though the kernel or IPAM refuses another one’s', async () => {
    const { kernel, wired, node, addressBook, advance } = await scene();
    const pods = [await wired('a', 1), await wired('b', 2)];
    for (const { netns } of pods) kernel.removeNamespace(netns);
    await node.keeper.sweep();
    await advance(10_000);
    kernel.failNext('identify', { errno: 'EACCES' });
    await node.keeper.sweep();
    expect(kernel.unusedFaults).toBe(0);
    expect(node.registry.all().map(({ state }) => state)).toEqual(['attached', 'dead']);
    await node.keeper.sweep();
    addressBook.refused.add('net/a/eth0');
    await node.keeper.giveBack();
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual(['10.65.0.2']);
    addressBook.refused.clear();
    await node.keeper.giveBack();
    expect([addressBook.released, node.registry.all()]).toEqual([['10.65.0.2', '10.65.0.1'], []]);
  });

  test('is not forgotten as garbage as long as IPAM has not had its addresses back', async () => {
    const { kernel, wired, node, addressBook, lookForTheDead } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    addressBook.isAway = true;
    await lookForTheDead();
    expect(await node.garbage.collect({ valid: [], network: undefined }, never())).toEqual({ removed: [], failed: [] });
    addressBook.isAway = false;
    await node.keeper.giveBack();
    expect([addressBook.released, node.registry.all()]).toEqual([['10.65.0.7'], []]);
  });

  test('gives nothing back that was allocated again since', async () => {
    const { kernel, wired, node, addressBook, lookForTheDead } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    addressBook.isAway = true;
    await lookForTheDead();
    await node.keeper.giveBack();
    addressBook.isAway = false;
    addressBook.allocate(a, { bootId: BOOT.id, inode: 99n });
    await node.keeper.giveBack();
    expect([addressBook.released, node.registry.all()]).toEqual([[], []]);
    expect(addressBook.endpoints.size).toBe(1);
  });

  test('keeps what it has when it is added again just before the release arrives', async () => {
    const { kernel, wired, node, addressBook, lookForTheDead } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    await lookForTheDead();
    addressBook.beforeRelease = () => void addressBook.allocate(a, { bootId: BOOT.id, inode: 99n });
    await node.keeper.giveBack();
    expect([addressBook.released, addressBook.endpoints.size, node.registry.all().length]).toEqual([[], 1, 1]);
    // Asked once more, IPAM tells of the one that lives, and the dead has nothing left.
    await node.keeper.giveBack();
    expect([addressBook.released, addressBook.endpoints.size, node.registry.all()]).toEqual([[], 1, []]);
  });

  test('that a DetachPod comes for after all is nobody’s affair any more', async () => {
    const { kernel, wired, node, addressBook, lookForTheDead } = await scene();
    const a = await wired('a');
    kernel.removeNamespace(a.netns);
    addressBook.isAway = true;
    await lookForTheDead();
    expect(await node.dataplane.detach(detachment(a), never())).toBe(false);
    addressBook.isAway = false;
    await node.keeper.giveBack();
    expect([addressBook.released, node.registry.all()]).toEqual([[], []]);
  });
});

/** Podwire's own link of a pod that died, as it is when its peer has gone and it has not. */
async function dead() {
  const stage = await scene();
  const a = await stage.wired('a');
  const namespace = stage.kernel.namespace(a.netns);
  const tells = (text: string) => stage.node.lines.filter(({ msg }) => String(msg).includes(text)).length;
  return { ...stage, a, namespace, state: () => stage.node.registry.get(a.attachment)?.state, tells };
}

describe('what is left on the node of one that died', () => {
  test('goes: a link of the attachment’s that has no other end any more', async () => {
    const { kernel, a, lookForTheDead } = await dead();
    kernel.unmount(a.netns);
    kernel.host.find(a.hostInterfaceName).peer = undefined;
    await lookForTheDead();
    expect(kernel.host.links).toEqual([]);
  });

  test('is no stranger’s link of that name, which proves no life and stays', async () => {
    const { kernel, a, state, lookForTheDead } = await dead();
    kernel.removeNamespace(a.netns);
    const other = { mac: '02:00:00:00:00:01', mtuBytes: 1500 } as const;
    const link = kernel.host.addLink({ ...other, name: a.hostInterfaceName }, 'veth');
    const peer = kernel.host.addLink({ ...other, name: 'peer' }, 'veth');
    link.peer = { link: peer, namespace: kernel.host };
    const before = kernel.print();
    await lookForTheDead();
    expect([state(), kernel.print()]).toEqual(['dead', before]);
  });

  test('is nothing of what it could send from', async () => {
    const { lasting } = await scene();
    const guard = { ready: vi.fn(), setSourcePrefixes: vi.fn(), forget: vi.fn() };
    for (const method of Object.values(guard)) method.mockResolvedValue(undefined);
    const node = await startNode({ ...lasting, guard });
    const network = podNetwork('a', { sourcePrefixes: [DEFAULT_ROUTE] });
    lasting.kernel.addNamespace(network.netns);
    await node.dataplane.attach(network, never());
    lasting.kernel.removeNamespace(network.netns);
    for (const waitMs of [10_000, 0]) {
      await node.keeper.sweep();
      await lasting.clock.sleep(waitMs, never());
    }
    expect(guard.forget.mock.calls).toEqual([[network.hostInterfaceName]]);
  });

  test('is looked for once: the dead are told once, however long IPAM is away', async () => {
    const { kernel, node, a, addressBook, lookForTheDead, tells } = await dead();
    kernel.removeNamespace(a.netns);
    addressBook.isAway = true;
    for (let round = 0; round < 3; round++) {
      await lookForTheDead();
      await node.keeper.giveBack();
    }
    expect(tells('is dead: ')).toBe(1);
  });
});

describe('what comes between two looks', () => {
  test('a sign of life ends the suspicion: the ten seconds begin anew', async () => {
    const { kernel, node, a, namespace, advance, state } = await dead();
    const isThere = (there: boolean) => (there ? kernel.mount(a.netns, namespace) : kernel.unmount(a.netns));
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    for (const there of [false, true, false]) {
      isThere(there);
      await node.keeper.sweep();
      await advance(5000);
    }
    await node.keeper.sweep();
    expect(state()).toBe('attached');
    await advance(5000);
    await node.keeper.sweep();
    expect(state()).toBe('dead');
  });

  test('one that is there again at the last moment is not buried', async () => {
    const { kernel, node, a, namespace, advance, state } = await dead();
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    kernel.unmount(a.netns);
    await node.keeper.sweep();
    await advance(10_000);
    const burial = kernel.pauseBefore('link-get');
    const sweeping = node.keeper.sweep();
    await burial.reached;
    kernel.mount(a.netns, namespace);
    burial.release();
    await sweeping;
    expect(state()).toBe('attached');
  });

  test('one that was attached anew while it was looked at has its own ten seconds', async () => {
    const { kernel, node, a, advance, state } = await dead();
    kernel.removeNamespace(a.netns);
    await node.keeper.sweep();
    await advance(10_000);
    const looking = kernel.pauseBefore('identify');
    const sweeping = node.keeper.sweep();
    await looking.reached;
    kernel.addNamespace(a.netns);
    await node.dataplane.attach(a, never());
    kernel.removeNamespace(a.netns);
    looking.release();
    await sweeping;
    expect(state()).toBe('attached');
    await node.keeper.sweep();
    await advance(10_000);
    await node.keeper.sweep();
    expect(state()).toBe('dead');
  });

  test('a call that is under way holds up no look at the others', async () => {
    const { kernel, node, a, wired, advance, state } = await dead();
    const b = await wired('b', 8);
    for (const { netns } of [a, b]) kernel.removeNamespace(netns);
    await node.keeper.sweep();
    await advance(10_000);
    const pause = kernel.pauseBefore('open');
    const checking = node.dataplane.check(a, never()).catch(() => undefined);
    await pause.reached;
    await node.keeper.sweep();
    expect([state(), node.registry.get(b.attachment)?.state]).toEqual(['attached', 'dead']);
    pause.release();
    await checking;
  });
});

describe('an attach that comes while addresses are given back', () => {
  test.each(['endpoint', 'release'] as const)('keeps its record, and what %s has not taken', async (method) => {
    const { kernel, node, a, addressBook, state, lookForTheDead } = await dead();
    kernel.removeNamespace(a.netns);
    await lookForTheDead();
    const attach = async () => {
      kernel.addNamespace(a.netns);
      await node.dataplane.attach(a, never());
    };
    if (method === 'endpoint') {
      const endpoint = addressBook.endpoints.get('net/a/eth0');
      vi.spyOn(addressBook, 'endpoint').mockImplementationOnce(() => attach().then(() => endpoint));
    } else vi.spyOn(addressBook, 'release').mockImplementationOnce(() => attach().then(() => ['10.65.0.7']));
    await node.keeper.giveBack();
    expect([state(), addressBook.released]).toEqual(['attached', []]);
  });
});

test('where the kernel tells no cookies, another namespace at the path with the inode proves no death; none there does', async () => {
  const { kernel, wired, node, lookForTheDead } = await scene();
  kernel.tellsCookies = false;
  const a = await wired('a');
  kernel.removeNamespace(a.netns);
  kernel.addNamespace(a.netns);
  await lookForTheDead();
  expect(node.registry.get(a.attachment)?.state).toBe('attached');
  kernel.removeNamespace(a.netns);
  await lookForTheDead();
  expect(node.registry.get(a.attachment)?.state).toBe('dead');
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

  test('one whose records IPAM cannot read holds up no other, and is asked about again', async () => {
    const { node, addressBook } = await scene();
    for (const [name, host] of [
      ['a', 1],
      ['b', 2],
    ] as const)
      addressBook.allocate(podNetwork(name, { addresses: [address(`10.65.0.${host}`)] }), {
        bootId: earlier,
        inode: 2n,
      });
    addressBook.refused.add('net/a/eth0');
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual(['10.65.0.2']);
    addressBook.refused.clear();
    await node.keeper.giveBack();
    expect(addressBook.released).toEqual(['10.65.0.2', '10.65.0.1']);
  });
});

import { describe, expect, test, vi } from 'vitest';

import { address, BOOT, DEFAULT_ROUTE, detachRequest, never, podNetwork, scene, startNode } from '../testing/pods.js';

describe('a namespace that disappeared without a DetachPod', () => {
  test('is detected by two checks ten seconds apart, and its addresses are released', async () => {
    const { kernel, attachPod, node, store, addressBook, advance } = await scene();
    const [a, b] = [await attachPod('a', 1), await attachPod('b', 2)];
    kernel.removeNamespace(a.netns);
    await node.reconciler.sweep();
    await advance(9_999);
    await node.reconciler.sweep();
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual([]);
    await advance(1);
    await node.reconciler.sweep();
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual(['10.65.0.1']);
    expect([...addressBook.endpoints.keys()]).toEqual(['net/b/eth0']);
    expect([store.texts.size, node.registry.all().length]).toEqual([1, 1]);
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
    const { kernel, attachPod, node, addressBook, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    kernel.addNamespace(a.netns);
    await sweepTwice();
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual(['10.65.0.7']);
  });

  test('is alive while its wire is, even when its path is gone', async () => {
    const { kernel, attachPod, node, addressBook, advance } = await scene();
    const a = await attachPod('a');
    kernel.unmount(a.netns);
    for (let look = 0; look < 3; look++) {
      await node.reconciler.sweep();
      await advance(60_000);
    }
    await node.reconciler.releaseAddresses();
    expect([addressBook.released, kernel.host.links.length]).toEqual([[], 1]);
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
    const { kernel, attachPod, node, addressBook, advance } = await scene();
    const a = await attachPod('a');
    kernel.host.removeLink(kernel.host.find(a.hostInterfaceName));
    for (let look = 0; look < 3; look++) {
      await node.reconciler.sweep();
      await advance(60_000);
    }
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual([]);
  });

  test('is not checked while a call for it is in flight, and not removed when it was attached again meanwhile', async () => {
    const { kernel, attachPod, node, addressBook, advance, sweepTwice } = await scene();
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
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual([]);
    expect(await node.dataplane.check(a, never())).toEqual([]);
  });

  test('has its addresses released once IPAM answers again, also after restarts', async () => {
    const { kernel, attachPod, node, addressBook, restart, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    addressBook.isUnreachable = true;
    await sweepTwice();
    await node.reconciler.releaseAddresses();
    await node.reconciler.releaseAddresses();
    const next = await restart();
    await next.reconciler.recover();
    await next.reconciler.releaseAddresses();
    expect(next.registry.all()).toMatchObject([{ state: 'dead' }]);
    addressBook.isUnreachable = false;
    await next.reconciler.releaseAddresses();
    expect([addressBook.released, next.registry.all()]).toEqual([['10.65.0.7'], []]);
  });

  test('is removed and released even when the kernel or IPAM refuses another one’s', async () => {
    const { kernel, attachPod, node, addressBook, advance } = await scene();
    const pods = [await attachPod('a', 1), await attachPod('b', 2)];
    for (const { netns } of pods) kernel.removeNamespace(netns);
    await node.reconciler.sweep();
    await advance(10_000);
    kernel.failNext('identify', { errno: 'EACCES' });
    await node.reconciler.sweep();
    expect(kernel.unusedFaults).toBe(0);
    expect(node.registry.all().map(({ state }) => state)).toEqual(['attached', 'dead']);
    await node.reconciler.sweep();
    addressBook.refused.add('net/a/eth0');
    await node.reconciler.releaseAddresses();
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual(['10.65.0.2']);
    addressBook.refused.clear();
    await node.reconciler.releaseAddresses();
    expect([addressBook.released, node.registry.all()]).toEqual([['10.65.0.2', '10.65.0.1'], []]);
  });

  test('is not removed as garbage until IPAM has released its addresses', async () => {
    const { kernel, attachPod, node, addressBook, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    addressBook.isUnreachable = true;
    await sweepTwice();
    expect(await node.garbage.collect({ valid: [], network: undefined }, never())).toEqual({ removed: [], failed: [] });
    addressBook.isUnreachable = false;
    await node.reconciler.releaseAddresses();
    expect([addressBook.released, node.registry.all()]).toEqual([['10.65.0.7'], []]);
  });

  test('releases nothing that was allocated again since', async () => {
    const { kernel, attachPod, node, addressBook, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    addressBook.isUnreachable = true;
    await sweepTwice();
    await node.reconciler.releaseAddresses();
    addressBook.isUnreachable = false;
    addressBook.allocate(a, { bootId: BOOT.id, inode: 99n });
    await node.reconciler.releaseAddresses();
    expect([addressBook.released, node.registry.all()]).toEqual([[], []]);
    expect(addressBook.endpoints.size).toBe(1);
  });

  test('keeps its addresses when it is added again just before the release arrives', async () => {
    const { kernel, attachPod, node, addressBook, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    await sweepTwice();
    addressBook.beforeRelease = () => void addressBook.allocate(a, { bootId: BOOT.id, inode: 99n });
    await node.reconciler.releaseAddresses();
    expect([addressBook.released, addressBook.endpoints.size, node.registry.all().length]).toEqual([[], 1, 1]);
    // At the next request IPAM returns the live pod's addresses; the dead pod has none left.
    await node.reconciler.releaseAddresses();
    expect([addressBook.released, addressBook.endpoints.size, node.registry.all()]).toEqual([[], 1, []]);
  });

  test('needs no further work after a late DetachPod', async () => {
    const { kernel, attachPod, node, addressBook, sweepTwice } = await scene();
    const a = await attachPod('a');
    kernel.removeNamespace(a.netns);
    addressBook.isUnreachable = true;
    await sweepTwice();
    expect(await node.dataplane.detach(detachRequest(a), never())).toBe(false);
    addressBook.isUnreachable = false;
    await node.reconciler.releaseAddresses();
    expect([addressBook.released, node.registry.all()]).toEqual([[], []]);
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

describe('what remains on the node of a dead pod', () => {
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

  test('does not include its guard', async () => {
    const { lasting } = await scene();
    const guard = { ready: vi.fn(), setSourcePrefixes: vi.fn(), forget: vi.fn() };
    for (const method of Object.values(guard)) method.mockResolvedValue(undefined);
    const node = await startNode({ ...lasting, guard });
    const network = podNetwork('a', { sourcePrefixes: [DEFAULT_ROUTE] });
    lasting.kernel.addNamespace(network.netns);
    await node.dataplane.attach(network, never());
    lasting.kernel.removeNamespace(network.netns);
    for (const waitMs of [10_000, 0]) {
      await node.reconciler.sweep();
      await lasting.clock.sleep(waitMs, never());
    }
    expect(guard.forget.mock.calls).toEqual([[network.hostInterfaceName]]);
  });

  test('is removed once: a death is logged once, however long IPAM is unreachable', async () => {
    const { kernel, node, a, addressBook, sweepTwice, linesWith } = await dead();
    kernel.removeNamespace(a.netns);
    addressBook.isUnreachable = true;
    for (let round = 0; round < 3; round++) {
      await sweepTwice();
      await node.reconciler.releaseAddresses();
    }
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

describe('an attach during the release of addresses', () => {
  test.each(['endpoint', 'release'] as const)(
    'keeps its record, and the addresses that %s has not released',
    async (method) => {
      const { kernel, node, a, addressBook, state, sweepTwice } = await dead();
      kernel.removeNamespace(a.netns);
      await sweepTwice();
      const attach = async () => {
        kernel.addNamespace(a.netns);
        await node.dataplane.attach(a, never());
      };
      if (method === 'endpoint') {
        const endpoint = addressBook.endpoints.get('net/a/eth0');
        vi.spyOn(addressBook, 'endpoint').mockImplementationOnce(() => attach().then(() => endpoint));
      } else vi.spyOn(addressBook, 'release').mockImplementationOnce(() => attach().then(() => ['10.65.0.7']));
      await node.reconciler.releaseAddresses();
      expect([state(), addressBook.released]).toEqual(['attached', []]);
    },
  );
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

describe('after a reboot', () => {
  const earlier = '11111111-1111-4111-8111-111111111111';

  test('the addresses of the node’s pods of earlier boots are released, and no others', async () => {
    const { attachPod, node, addressBook } = await scene();
    const wiredNow = await attachPod('wired', 1);
    addressBook.allocate(wiredNow, { bootId: earlier, inode: 1n });
    addressBook.allocate(podNetwork('died', { addresses: [address('10.65.0.2')] }), { bootId: earlier, inode: 2n });
    addressBook.allocate(podNetwork('lives', { addresses: [address('10.65.0.3')] }), { bootId: BOOT.id, inode: 3n });
    addressBook.allocate(podNetwork('untold', { addresses: [address('10.65.0.4')] }), undefined);
    const since = podNetwork('since', { addresses: [address('10.65.0.5')] });
    addressBook.allocate(since, { bootId: earlier, inode: 4n }, BOOT.startedAtMs);
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual(['10.65.0.2']);
    expect(node.lines.filter(({ msg }) => String(msg).includes('are kept: '))).toHaveLength(2);
  });

  test('they are released once IPAM answers, and not requested again', async () => {
    const { node, addressBook } = await scene();
    addressBook.allocate(podNetwork('died'), { bootId: earlier, inode: 2n });
    addressBook.isUnreachable = true;
    await node.reconciler.releaseAddresses();
    addressBook.isUnreachable = false;
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual(['10.65.0.7']);
    addressBook.allocate(podNetwork('later'), { bootId: earlier, inode: 2n });
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual(['10.65.0.7']);
  });

  test('an endpoint that IPAM cannot read blocks no other, and is retried', async () => {
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
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual(['10.65.0.2']);
    addressBook.refused.clear();
    await node.reconciler.releaseAddresses();
    expect(addressBook.released).toEqual(['10.65.0.2', '10.65.0.1']);
  });
});

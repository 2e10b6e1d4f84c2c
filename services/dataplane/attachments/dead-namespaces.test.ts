import { describe, expect, test } from 'vitest';

import { BOOT } from '../dataplane.fixture.js';
import { detachment, never, scene } from './scene.fixture.js';

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

import { describe, expect, test } from 'vitest';

import { BOOT } from '../dataplane.fixture.js';
import { address, podNetwork } from '../plan/pod-network.fixture.js';
import { scene } from './scene.fixture.js';

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

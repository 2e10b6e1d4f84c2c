import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { podNetwork } from '@podwire/dataplane/testing/pods';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { parseAddress } from '@podwire/shared/net/address';
import { expect, test } from 'vitest';

import { MemoryIpam, turns } from './testing/memory-ipam.js';
import { TestNode } from './testing/test-node.js';

test('an address of an earlier boot is returned while the pod has another one and no record', async () => {
  const clock = new ManualClock();
  const ipam = new MemoryIpam(['10.65.0.1', '10.65.0.2', '10.65.0.3', '10.65.0.4'], clock);
  const node = new TestNode('n0', ipam, clock);
  const { attachment } = podNetwork('n0-a');
  await node.start();
  await turns(20);
  expect(await node.add('a')).toBe(true);
  const earlier = ipam.allocate('n0', attachment, { bootId: 'earlier', inode: 4_026_532_100n });
  node.empty(true);
  await node.restart();
  for (let passedMs = 0; passedMs < 5000; passedMs += 100) {
    clock.advance(100);
    await turns(3);
  }
  expect(ipam.holderOf(earlier?.address ?? '')).toBeUndefined();
  const [[key, pod] = []] = node.pods;
  expect([key, ipam.holderOf(pod?.address ?? '')]).toEqual([formatAttachment(attachment), key]);
  await node.book.stop();
});

test('the address of a caller that allocated it itself stays, though the record names no allocation', async () => {
  const clock = new ManualClock();
  const ipam = new MemoryIpam(['10.65.0.1', '10.65.0.2', '10.65.0.3', '10.65.0.4'], clock);
  const node = new TestNode('n0', ipam, clock);
  await node.start();
  await turns(20);
  const network = podNetwork('n0-a');
  const { attachment } = network;
  const held = ipam.allocate('n0', attachment, { bootId: 'boot-0', inode: 4_026_532_100n });
  const other = ipam.allocate('n0', attachment, { bootId: 'boot-0', inode: 4_026_532_100n });
  const addresses = [parseAddress(held!.address)!];
  await node.registry.record({ ...network, addresses }, { device: 4n, inode: 4_026_532_100n, cookie: 1n });
  node.requestInventory();
  for (let passedMs = 0; passedMs < 5000; passedMs += 100) {
    clock.advance(100);
    await turns(3);
  }
  expect(ipam.holderOf(held!.address)).toBe(formatAttachment(attachment));
  expect(ipam.holderOf(other!.address)).not.toBe(formatAttachment(attachment));
  await node.book.stop();
});

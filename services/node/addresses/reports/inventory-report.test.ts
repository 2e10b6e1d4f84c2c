import type { ReportInventoryRequest } from '@podwire/proto/podwire/ipam/v1/lease';
import { podNetwork } from '@podwire/dataplane/testing/pods';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { parseAddress } from '@podwire/shared/net/address';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, test } from 'vitest';

import { inventoryOf } from './inventory.js';
import type { LeaseApi } from '../lease-api.js';
import { MemoryIpam, turns } from '../testing/memory-ipam.js';
import { TestNode } from '../testing/test-node.js';
import { recallView } from '../testing/views.js';

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

/** Records the reports. */
class ReportedIpam extends MemoryIpam {
  readonly reports: ReportInventoryRequest[] = [];

  override api(): LeaseApi {
    const api = super.api();
    const reportInventory: LeaseApi['reportInventory'] = (request, signal) => {
      this.reports.push(request);
      return api.reportInventory(request, signal);
    };
    return { ...api, reportInventory };
  }
}

test('a new snapshot of the cluster is followed by a report: the datastore may have been restored', async () => {
  const clock = new ManualClock();
  const ipam = new ReportedIpam(['10.65.0.1', '10.65.0.2'], clock);
  const node = new TestNode('node-1', ipam, clock);
  await node.start();
  for (let passedMs = 0; passedMs < 5000; passedMs += 100) {
    clock.advance(100);
    await turns(3);
  }
  ipam.reports.splice(0);
  node.book.follow(recallView('node-1', 0n), { blocks: 'all', hasOtherChanges: true });
  await turns(10);
  expect(ipam.reports).toHaveLength(1);
  await node.book.stop();
});

test('a report has the pods that came while the session was opened', async () => {
  const clock = new ManualClock();
  const ipam = new ReportedIpam(['10.65.0.1', '10.65.0.2'], clock);
  const node = new TestNode('node-1', ipam, clock);
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= 100) {
      clock.advance(100);
      await turns(10);
    }
  };
  await node.start();
  await pass(1000);
  expect(await node.add('a')).toBe(true);
  await pass(2000);
  ipam.faults.push('refused');
  node.requestInventory();
  await turns(5);
  // OpenSession.
  ipam.delays.push(60);
  await pass(200);
  ipam.reports.splice(0);
  expect(await node.add('b')).toBe(true);
  while (ipam.reports.length === 0) await turns(1);
  const { digest } = inventoryOf({ records: node.registry.all(), leases: [], kept: [] });
  expect(ipam.reports[0]?.digest).toEqual(digest);
  await node.book.stop();
});

import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { podNetwork } from '@podwire/dataplane/testing/pods';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { expect, test } from 'vitest';

import { MemoryIpam, turns } from '../testing/memory-ipam.js';
import { TestNode } from '../testing/test-node.js';

const IDENTITY = { device: 4n, inode: 4_026_532_999n, cookie: 9n };
const POD = { namespace: 'shop', name: 'web-0', uid: 'u' };

async function scene() {
  const clock = new ManualClock();
  const ipam = new MemoryIpam(['10.65.0.1', '10.65.0.2', '10.65.0.3'], clock);
  const node = new TestNode('node-1', ipam, clock);
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= 100) {
      clock.advance(100);
      await turns(10);
    }
  };
  await node.start();
  await pass(1000);
  /** Reports as the dataplane at the end of an ADD and a DEL. */
  const add = async (id: string, rest: Partial<PodNetwork> = { otherIpam: { pod: POD } }) => {
    await node.registry.record({ ...podNetwork(id), ...rest }, IDENTITY);
    node.book.settle(node.registry.get(podNetwork(id).attachment)!);
  };
  const del = async (id: string) => {
    const record = node.registry.get(podNetwork(id).attachment)!;
    await node.registry.end(record.network.attachment);
    node.book.settle(record);
  };
  const reported = () =>
    ipam.endpoints.get('node-1')?.map(({ attachment, pod }) => [attachment?.containerId, pod?.name]);
  return { ipam, node, pass, add, del, reported };
}

test('pods with addresses of another IPAM plugin are reported after their ADD and DEL', async () => {
  const { node, pass, add, del, reported } = await scene();
  await add('a');
  await add('b', { otherIpam: { pod: undefined } });
  // Wired by a caller that does not say whose addresses they are.
  await add('c', {});
  await node.add('own');
  await pass(3000);
  expect(reported()).toEqual([
    ['a', 'web-0'],
    ['b', undefined],
  ]);
  await del('a');
  await pass(3000);
  expect(reported()).toEqual([['b', undefined]]);
  await node.book.stop();
});

test('a report of which an endpoint was left out is repeated with the next inventory', async () => {
  const { ipam, node, pass, add } = await scene();
  ipam.leftOut = 1;
  await add('a');
  await pass(3000);
  const before = ipam.endpointReportsCount;
  await pass(60_000);
  expect(ipam.endpointReportsCount).toBe(before);
  ipam.leftOut = 0;
  await pass(300_000);
  expect(ipam.endpointReportsCount).toBe(before + 1);
  await node.book.stop();
});

test('a report that podwire-ipam misses is repeated, and the next process removes the endpoints of ended pods', async () => {
  const { ipam, node, pass, add, reported } = await scene();
  ipam.isDown = true;
  await add('a');
  await pass(60_000);
  expect(reported()).toEqual([]);
  ipam.isDown = false;
  await pass(120_000);
  expect(reported()).toEqual([['a', 'web-0']]);

  await node.registry.remove(podNetwork('a').attachment);
  await node.book.stop();
  await node.start();
  await pass(1000);
  expect(reported()).toEqual([]);
  await node.book.stop();
});

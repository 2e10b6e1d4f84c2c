import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { podNetwork } from '@podwire/dataplane/testing/pods';
import { expect, test } from 'vitest';

import { MemoryIpam, turns } from './testing/memory-ipam.js';
import { TestNode } from './testing/test-node.js';

test('an address that a pod gets while its return waits for the session stays with the node', async () => {
  const clock = new ManualClock();
  const ipam = new MemoryIpam(['10.65.0.1', '10.65.0.2'], clock);
  const node = new TestNode('node-1', ipam, clock);
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= 100) {
      clock.advance(100);
      await turns(10);
    }
  };
  await node.start();
  await pass(1000);
  expect([await node.add('a'), await node.add('b')]).toEqual([true, true]);
  await pass(2000);
  const [address] = [...node.pods.values()].map((pod) => pod.address);
  ipam.faults.push('refused');
  await node.del('b');
  await pass(300);
  // OpenSession.
  ipam.delays.push(100);
  await node.del('a');
  await pass(400);
  ipam.executed.splice(0);
  expect(await node.add('c')).toBe(true);
  while (!ipam.executed.includes('return')) await turns(1);
  const otherAddresses = ['d', 'e'].map((name) => ipam.allocate('node-2', podNetwork(name).attachment)?.address);
  expect(otherAddresses).not.toContain(address);
  await pass(2000);
  expect([...node.pods.values()]).toMatchObject([{ address }]);
  expect(ipam.holderOf(address!)).toBe('net/node-1-c/eth0');
  await node.book.stop();
});

test('a binding of a pod of another node is a condition, and is tried again every ten seconds', async () => {
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
  ipam.ofOtherNodes.add('net/node-1-a/eth0');
  expect([await node.add('a'), await node.add('b')]).toEqual([true, true]);
  await pass(2000);
  expect(ipam.holderOf(node.pods.get('net/node-1-b/eth0')!.address)).toBe('net/node-1-b/eth0');
  expect(node.book.conditions()).toMatchObject([
    { reason: 'AddressNotBound', message: expect.stringContaining('the pod is scheduled to node "node-2"') },
  ]);
  ipam.executed.splice(0);
  await pass(60_000);
  expect(ipam.executed.filter((method) => method === 'bind').length).toBeLessThanOrEqual(6);

  await node.del('a');
  await pass(2000);
  expect(node.book.conditions()).toEqual([]);
  expect(node.registry.all().map(({ network }) => network.attachment.containerId)).toEqual(['node-1-b']);
  await node.book.stop();
});

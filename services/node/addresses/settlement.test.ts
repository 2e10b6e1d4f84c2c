import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { podNetwork } from '@podwire/dataplane/testing/pods';
import { describe, expect, test } from 'vitest';

import { MemoryIpam, turns } from './testing/memory-ipam.js';
import { TestNode } from './testing/test-node.js';

async function scene({ addressCount = 3, settlement }: SceneOptions = {}) {
  const clock = new ManualClock();
  const addresses = Array.from({ length: addressCount }, (_, index) => `10.65.${index >> 8}.${index & 255}`);
  const ipam = new MemoryIpam(addresses, clock);
  ipam.settlement = settlement;
  const node = new TestNode('node-1', ipam, clock);
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= 100) {
      clock.advance(Math.min(100, left));
      await turns(10);
    }
  };
  await node.start();
  await pass(1000);
  const callsOf = (method: string) => ipam.executed.filter((each) => each === method).length;
  return { ipam, node, pass, callsOf };
}

interface SceneOptions {
  readonly addressCount?: number;
  readonly settlement?: MemoryIpam['settlement'];
}

test('an address that a pod gets while its return waits for the session stays with the node', async () => {
  const { ipam, node, pass } = await scene({ addressCount: 2 });
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
  const { ipam, node, pass } = await scene();
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

describe('an interval of podwire-ipam', () => {
  const settlement = { quietMs: 2500, longestMs: 5000 };

  test('collects the bindings and returns of pods that come and go', async () => {
    const { node, pass, callsOf } = await scene({ addressCount: 64, settlement });
    await node.add('first');
    await pass(5000);
    const before = [callsOf('bind'), callsOf('return')];
    for (let second = 0; second < 20; second++) {
      if (second > 0) await node.del(`pod-${second - 1}`);
      await node.add(`pod-${second}`);
      await pass(1000);
    }
    await pass(1000);
    const counts = [callsOf('bind') - before[0]!, callsOf('return') - before[1]!];
    expect(counts.every((count) => count >= 1 && count <= 5)).toBe(true);
    expect(node.registry.all().every(({ state, allocation }) => state === 'attached' && allocation?.isBound)).toBe(
      true,
    );
    await node.book.stop();
  });

  test('a recall, a pod without a lease and a pod that requests the address do not wait for it', async () => {
    const { ipam, node, pass, callsOf } = await scene({ addressCount: 8, settlement });
    for (const name of ['a', 'b', 'c', 'd']) await node.add(name);
    await pass(6000);
    const addressOf = (name: string) => node.pods.get(`net/node-1-${name}/eth0`)!.address;
    const returned = async (name: string, act: () => unknown) => {
      const address = addressOf(name);
      await node.del(name);
      await pass(100);
      expect(ipam.holderOf(address)).toBe(`net/node-1-${name}/eth0`);
      await act();
      await turns(40);
      expect(ipam.holderOf(address)).toBeUndefined();
    };
    const requested = addressOf('a');
    const signal = new AbortController().signal;
    await returned('a', () => node.book.returned(podNetwork('other').attachment, [requested], signal));
    await returned('b', () => node.recall(1n));
    // The node has no lease during the pause after the recall.
    await returned('c', () => node.book.take(podNetwork('next').attachment, [4], signal));
    expect(callsOf('return')).toBeGreaterThanOrEqual(3);
    await node.book.stop();
  });

  test('an inventory with pods that are not bound yet is not repeated meanwhile', async () => {
    const { node, pass, callsOf } = await scene({ addressCount: 8, settlement });
    await node.add('a');
    await pass(5000);
    const before = callsOf('report');
    await node.add('b');
    node.requestInventory();
    await pass(2000);
    // The digest, and the whole inventory.
    expect(callsOf('report') - before).toBe(2);
    await node.book.stop();
  });

  test('everything is settled before podwire-node ends, in as many calls as it takes', async () => {
    const { ipam, node, pass } = await scene({ addressCount: 700, settlement });
    for (let count = 0; count < 300; count++) await node.add(`pod-${count}`);
    await pass(6000);
    for (let count = 0; count < 300; count++) await node.del(`pod-${count}`);
    await node.add('last');
    await node.book.stop();
    expect(node.registry.all().map(({ allocation }) => allocation?.isBound)).toEqual([true]);
    expect(ipam.holderOf(node.pods.get('net/node-1-last/eth0')!.address)).toBe('net/node-1-last/eth0');
  });
});

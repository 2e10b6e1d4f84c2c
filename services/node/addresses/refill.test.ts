import { podNetwork } from '@podwire/dataplane/testing/pods';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, expect, test } from 'vitest';

import { MemoryIpam, turns } from './testing/memory-ipam.js';
import { TestNode } from './testing/test-node.js';

const started: TestNode[] = [];
afterEach(async () => {
  await Promise.all(started.splice(0).map(({ book }) => book.stop()));
});

/** A node that keeps three leases, and refills them when one is left. */
async function scene(limit?: number) {
  const clock = new ManualClock();
  const ipam = new MemoryIpam(
    Array.from({ length: 32 }, (_, index) => `10.65.0.${index + 1}`),
    clock,
  );
  ipam.limit = limit ?? ipam.limit;
  const node = new TestNode('n0', ipam, clock);
  started.push(node);
  await node.start();
  await turns(20);
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= 50) {
      clock.advance(Math.min(50, left));
      await turns(16);
    }
  };
  /** @returns whether the pod got a lease */
  const add = async (container: string) => {
    const added = node.add(container);
    await turns(20);
    await added;
    return node.registry.get(podNetwork(`n0-${container}`).attachment)?.allocation?.isBound === false;
  };
  const listingCount = () => ipam.executed.filter((method) => method === 'lease').length;
  await add('first');
  await pass(3000);
  return { ipam, node, pass, add, listingCount };
}

test('a refill begins 50 ms after the pod that reached the mark', async () => {
  const { add, pass, listingCount } = await scene();
  const before = listingCount();
  await add('a');
  await pass(49);
  expect(listingCount()).toBe(before);
  await pass(1);
  expect(listingCount()).toBe(before + 1);
});

test('a refill begins at once when the next pod would find no lease', async () => {
  const { add, listingCount } = await scene();
  const before = listingCount();
  await add('a');
  await add('b');
  expect(listingCount()).toBe(before + 1);
});

test('a listing refills nothing before the mark is reached', async () => {
  const { ipam, add, pass, listingCount } = await scene();
  const before = listingCount();
  await pass(80_000);
  expect([ipam.leaseCount, listingCount() > before]).toEqual([2, true]);
  await add('a');
  await pass(50);
  expect(ipam.leaseCount).toBeGreaterThan(2);
});

test('with a small limit, pods that follow each other find leases: earlier leases are bound first', async () => {
  const { ipam, add, pass } = await scene(2);
  for (let pod = 0; pod < 8; pod++) {
    expect(await add(`${pod}`), `pod ${pod}`).toBe(true);
    await pass(100);
  }
  expect(ipam.leaseCount).toBeLessThanOrEqual(2);
});

test('a lease that a pod of the former process got is no lease after the pod', async () => {
  const { ipam, node, add } = await scene();
  await add('a');
  const { attachment } = podNetwork('n0-a');
  const [address] = node.registry.get(attachment)?.allocation?.addresses ?? [];
  ipam.isDown = true;
  await node.restart();
  // Its address was returned.
  node.pods.delete(formatAttachment(attachment));
  await node.registry.remove(attachment);
  while (await add(`${node.pods.size}`));
  expect(node.pods.size).toBeGreaterThan(0);
  expect([...node.pods.values()].map((pod) => pod.address)).not.toContain(address?.address);
});

test('a recall leaves the addresses of pods whose records were removed by hand before they were bound', async () => {
  const { ipam, node, add, pass } = await scene();
  await add('a');
  node.empty(false);
  // The recall precedes the first listing.
  ipam.faults.push('refused');
  await node.restart();
  node.recall(1n);
  await pass(1000);
  const pods = [...node.pods].map(([key, { address }]) => [address, key]);
  expect(pods.map(([address = '']) => [address, ipam.holderOf(address)])).toEqual(pods);
});

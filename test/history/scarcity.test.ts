import { setTimeout as sleep } from 'node:timers/promises';

import { expect, test } from 'vitest';

import { until } from '../support/until.js';
import { LATE_RETURNS, LEASE_WAIT_MS, registerIdleNodes } from './lease-history.js';
import type { LeasingNode } from './leasing-node.js';
import { LeasingNodes } from './leasing-nodes.js';
import { History } from './model.js';
import { useEmbeddedReplica } from './replica.js';

/** A pool of 64 addresses for eight nodes, each of which leases some. */

const NODES = 8;
const ADDRESSES = Array.from({ length: 64 }, (_, index) => `10.66.0.${index}/32`);
const RECALL_INTERVAL_MS = 2000;

/** Above the probability of each fault of a node. */
const NO_FAULT = () => 0.5;

const { replica, folder } = useEmbeddedReplica('10.66.0.0/26');

/** Adds a pod. Only an ADD for which podwire-ipam waited for leases, which a busy machine returns late, is repeated. */
async function addUnlessLate(node: LeasingNode, describe: () => string): Promise<void> {
  for (let lateCount = 0; lateCount <= LATE_RETURNS; lateCount++) {
    const startMs = performance.now();
    if (await node.tryLasting()) return;
    expect(performance.now() - startMs, describe()).toBeGreaterThan(LEASE_WAIT_MS);
  }
  throw new Error(`a node keeps leases: ${describe()}`);
}

test('each node in turn gives its pods all addresses, and none is refused at once', async () => {
  const history = new History();
  const leasing = new LeasingNodes({ count: NODES, folder, replicas: [replica], history, random: NO_FAULT });
  const { nodes } = leasing;
  const settled = () =>
    until(
      () => nodes.every(({ isSettled }) => isSettled),
      () => `the nodes do not settle their records: ${leasing.state}`,
    );
  for (const node of nodes) await node.start();
  await registerIdleNodes(replica, ADDRESSES.length / 4);
  for (const node of nodes) {
    // Only a new process leases again soon after a recall, and podwire-ipam asks no node twice within this time.
    await sleep(RECALL_INTERVAL_MS);
    for (const each of nodes) await each.restart();
    for (const each of nodes) await each.addLasting();
    for (const each of nodes) if (each !== node) await each.deleteLasting();
    await until(
      () => nodes.every(({ leases }) => leases.length > 0),
      () => `the nodes get no leases: ${leasing.state}`,
    );
    await settled();
    for (let free = ADDRESSES.length - 1; free > 0; free--)
      await addUnlessLate(node, () => `${node.name}, with ${free} free addresses: ${leasing.state}`);
    expect([...history.held.values()].sort()).toEqual(ADDRESSES.toSorted());
    expect(await node.tryLasting()).toBe(false);
    await node.deleteLasting();
    await settled();
  }
  expect(history.violations().join('; ')).toBe('');
  leasing.kill();
}, 300_000);

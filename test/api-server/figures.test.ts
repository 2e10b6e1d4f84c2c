import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { afterAll, beforeAll, expect, test } from 'vitest';

import { Replica } from '../history/replica.js';
import { storedAddresses } from '../support/ipam-client.js';
import { LivePods } from '../support/live-pods.js';
import { Stack } from '../support/stack.js';
import { until } from '../support/until.js';
import { KubeApiServer } from './kube-apiserver.js';

/** Writes to the API server for each lifetime of a pod, by the API server's own counter. */

const START_TIMEOUT_MS = 90_000;

/** Longer than a node waits until it settles. */
const QUIET_MS = 7_000;

const folder = mkdtempSync(join(tmpdir(), 'podwire-figures-'));
let server: KubeApiServer;
let replica: Replica;
let node: Stack;

beforeAll(async () => {
  server = await KubeApiServer.start(['node-1']);
  const env = {
    ...{ PODWIRE_IPAM_STORE: 'kubernetes', PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/23' },
    ...{ PODWIRE_IPAM_UNKNOWN_NODES: 'register', ...server.env },
  };
  replica = new Replica({ name: 'leader', folder, env });
  replica.start();
  await replica.ready(START_TIMEOUT_MS);
  node = new Stack({ ipamSocket: replica.socket });
  await node.start('node');
}, START_TIMEOUT_MS * 2);

afterAll(async () => {
  await node.destroy();
  await replica.stop();
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
});

async function untilStored(count: number): Promise<void> {
  let stored: readonly string[] = [];
  const isStored = async (): Promise<boolean> => (stored = await storedAddresses(replica.socket)).length === count;
  await until(isStored, () => `podwire-ipam has ${stored.length} of ${count} addresses`);
  await sleep(QUIET_MS);
}

/** @returns the writes for each lifetime, in total and of each kind */
async function writesFor(podsCount: number, run: (pods: LivePods) => Promise<void>) {
  await untilStored(0);
  const before = server.writes();
  await run(new LivePods());
  await untilStored(0);
  const kinds = [...server.writes()]
    .map(([kind, count]) => [kind, (count - (before.get(kind) ?? 0)) / podsCount] as const)
    .filter(([, count]) => count > 0);
  return { writes: kinds.reduce((sum, [, count]) => sum + count, 0), kinds };
}

test.each([
  {
    name: '110 pods at once, in and out',
    podsCount: 110,
    most: 0.3,
    run: async (pods: LivePods) => {
      await pods.startAll(node, 110);
      await untilStored(110);
      await Promise.all(pods.living.map((pod) => pods.stop(pod)));
    },
  },
  {
    name: 'one pod each second, which lives for a second',
    podsCount: 40,
    // The node's session, which lists its leases, is written as often as its blocks.
    most: 1.2,
    run: async (pods: LivePods) => {
      for (let count = 0; count < 40; count++) {
        const pod = await pods.start(node);
        await sleep(1_000);
        await pods.stop(pod);
      }
    },
  },
  {
    name: 'a pod alone',
    podsCount: 1,
    most: 3,
    run: async (pods: LivePods) => {
      const pod = await pods.start(node);
      await untilStored(1);
      await pods.stop(pod);
    },
  },
])(
  '$name: at most $most writes for each lifetime',
  async ({ name, podsCount, most, run }) => {
    const { writes, kinds } = await writesFor(podsCount, run);
    const parts = kinds.map(([kind, count]) => `${kind} ${count.toFixed(2)}`).join(', ');
    process.stdout.write(`${name}: ${writes.toFixed(2)} writes for each lifetime (${parts})\n`);
    expect(writes).toBeLessThanOrEqual(most);
  },
  300_000,
);

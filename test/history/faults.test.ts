import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { countHeld, inconsistencies } from '@podwire/ipam/engine/testing/consistency';
import { EtcdServer } from '@podwire/ipam/engine/testing/etcd-server';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { FlakyProxy } from '../support/flaky-proxy.js';
import { Callers } from './callers.js';
import { breakEverything } from './faults.js';
import { LeasingNodes } from './leasing-nodes.js';
import { History } from './model.js';
import { seededRandom } from './random.js';
import { Replica } from './replica.js';
import { boundIn, findings, leasesIn, linesOf, storedIn } from './stored.js';

const REPLICAS = 3;
const CALLERS = 200;
/** The number of rounds of all faults, each in a new order: more with `HISTORY_ROUNDS=20`. */
const ROUNDS = Number(process.env.HISTORY_ROUNDS ?? 1);
/** The minimum of successful allocations for a meaningful run. */
const ALLOCATIONS = 600;
/** Nodes with leases beside the callers, and the minimum of pods that they add from them. */
const LEASING_NODES = 3;
const ADDS = 60;
const START_TIMEOUT_MS = 60_000;

/** One replica's clock is hours behind, one's ahead: no invariant may depend on it. */
const CLOCK_SKEWS_MS = [0, -3 * 3_600_000, 5 * 3_600_000];

const seed = Number(process.env.HISTORY_SEED ?? Date.now() % 1_000_000);

describe(`hundreds of callers of three replicas under faults (HISTORY_SEED=${seed})`, () => {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-history-'));
  const random = seededRandom(seed);
  const history = new History();
  const replicas: Replica[] = [];
  const proxies: FlakyProxy[] = [];
  let etcd: EtcdServer;

  beforeAll(async () => {
    etcd = await EtcdServer.start();
    for (let index = 0; index < REPLICAS; index++) {
      const proxy = await FlakyProxy.start(etcd.ports.client);
      const replica = new Replica({
        name: `replica-${index}`,
        folder,
        clockSkewMs: CLOCK_SKEWS_MS[index] ?? 0,
        env: {
          PODWIRE_IPAM_STORE: 'etcd',
          PODWIRE_IPAM_ETCD_ENDPOINTS: `http://127.0.0.1:${proxy.port}`,
          PODWIRE_IPAM_UNKNOWN_NODES: 'register',
          PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/22',
        },
      });
      proxies.push(proxy);
      replicas.push(replica);
      replica.start();
    }
    await Promise.all(replicas.map((replica) => replica.ready(START_TIMEOUT_MS)));
  }, START_TIMEOUT_MS * 2);

  afterAll(async () => {
    await Promise.all(replicas.map((replica) => replica.stop()));
    await Promise.all(proxies.map((proxy) => proxy.close()));
    await etcd.dispose();
    rmSync(folder, { recursive: true, force: true });
  });

  test('no address is held twice, and in the end exactly the acknowledged addresses are allocated', async () => {
    const callers = new Callers({ replicas, history, nodesCount: 12, random });
    const leasing = new LeasingNodes({ count: LEASING_NODES, folder, replicas, history, random });
    const running = Promise.all([callers.run(CALLERS), leasing.run()]);
    const count = (outcome: string): number => history.outcomes.get(outcome) ?? 0;
    const breaking = async (): Promise<void> => {
      for (let round = 0; round < ROUNDS; round++) await breakEverything({ etcd, replicas, proxies, random });
      // Every caller continues without faults, and nodes get leases, however few calls succeeded before.
      leasing.calm();
      await until(() => count('allocated') >= ALLOCATIONS && count('added with a lease') >= ADDS);
      callers.stop();
      leasing.stop();
    };
    await Promise.all([breaking(), running]);
    await leasing.settle();
    leasing.kill();

    const outcomes = Object.fromEntries(history.outcomes);
    expect(history.violations().join('; ')).toBe('');
    expect(failedAllocations(outcomes)).toBeGreaterThan(0);
    expect(count('node killed')).toBeGreaterThan(0);

    const view = storedIn(etcd);
    expect(inconsistencies(view, Date.now())).toEqual([]);
    expect(boundIn(view)).toEqual(linesOf(history.held));
    const { leases } = leasing;
    expect(leasesIn(view)).toEqual(leases);
    expect(countHeld(view)).toBe(history.held.size + leases.length);
    for (const replica of replicas) expect(await findings(replica), replica.name).toEqual([]);
  }, 300_000);
});

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await sleep(100);
}

function failedAllocations(outcomes: Readonly<Record<string, number>>): number {
  const failed = Object.entries(outcomes).filter(([outcome]) => outcome.startsWith('allocate: '));
  return failed.reduce((sum, [, count]) => sum + count, 0);
}

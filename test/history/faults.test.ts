import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { countHeld, inconsistencies, heldByHandle } from '@podwire/ipam/engine/testing/consistency';
import { EtcdServer } from '@podwire/ipam/engine/testing/etcd-server';
import { RecordKeys } from '@podwire/ipam/records/json/keys';
import { decodeRecord } from '@podwire/ipam/records/json/registry';
import { TestView } from '@podwire/ipam/testing/test-view';
import { AuditRequest, AuditServiceService } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { FlakyProxy } from '../support/flaky-proxy.js';
import { Callers } from './callers.js';
import { breakEverything } from './faults.js';
import { History } from './model.js';
import { seededRandom } from './random.js';
import { Replica } from './replica.js';

const REPLICAS = 3;
const CALLERS = 200;
/** The number of rounds of all faults, each in a new order: more with `HISTORY_ROUNDS=20`. */
const ROUNDS = Number(process.env.HISTORY_ROUNDS ?? 1);
/** The minimum of successful allocations for a meaningful run. */
const ALLOCATIONS = 600;
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
    const running = callers.run(CALLERS);
    const breaking = async (): Promise<void> => {
      for (let round = 0; round < ROUNDS; round++) await breakEverything({ etcd, replicas, proxies, random });
      // Without faults every caller continues, however few calls succeeded before.
      await until(() => (history.outcomes.get('allocated') ?? 0) >= ALLOCATIONS);
      callers.stop();
    };
    await Promise.all([breaking(), running]);

    const outcomes = Object.fromEntries(history.outcomes);
    expect(history.violations()).toEqual([]);
    expect(failedAllocations(outcomes)).toBeGreaterThan(0);

    const view = storedIn(etcd);
    expect(inconsistencies(view, Date.now())).toEqual([]);
    const held = new Map([...history.held].map(([containerId, address]) => [`net.${containerId}`, address]));
    expect(sorted(heldByHandle(view))).toEqual(sorted(held));
    expect(countHeld(view)).toBe(held.size);
    for (const replica of replicas) expect(await findings(replica), replica.name).toEqual([]);
  }, 300_000);
});

async function findings({ peer }: Replica): Promise<string[]> {
  const request = { ...AuditRequest.create(), pageSize: 1000 };
  const answer = await peer.call(AuditServiceService.audit, request, { deadlineMs: Date.now() + 30_000 });
  return answer.findings.map(({ explanation }) => explanation);
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await sleep(100);
}

function failedAllocations(outcomes: Readonly<Record<string, number>>): number {
  const failed = Object.entries(outcomes).filter(([outcome]) => outcome.startsWith('allocate: '));
  return failed.reduce((sum, [, count]) => sum + count, 0);
}

function storedIn(etcd: EtcdServer): TestView {
  const keys = new RecordKeys('/calico');
  const view = new TestView();
  for (const [key, value] of etcd.dump(keys.root)) {
    const name = keys.parse(key);
    const record = name && decodeRecord(key, name, Buffer.from(value)).record;
    if (record) view.put(record);
  }
  return view;
}

function sorted(map: ReadonlyMap<string, string>): string[] {
  return [...map].map(([handle, address]) => `${handle} ${address}`).sort();
}

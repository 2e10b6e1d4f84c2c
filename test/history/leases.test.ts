import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { EtcdServer } from '@podwire/ipam/engine/testing/etcd-server';
import { afterAll, beforeAll, describe, test } from 'vitest';

import { CalicoWriter } from '../support/calico-writer.js';
import { FlakyProxy } from '../support/flaky-proxy.js';
import { breakEverything } from './faults.js';
import { POOL, runLeaseHistory } from './lease-history.js';
import { seededRandom } from './random.js';
import { Replica } from './replica.js';
import { storedIn } from './stored.js';

const REPLICAS = 3;
const START_TIMEOUT_MS = 60_000;

/** Shorter than the faults of etcd. */
const CALICO_TIMEOUT_SECONDS = 2;

const seed = Number(process.env.HISTORY_SEED ?? Date.now() % 1_000_000);

describe(`nodes with leases, of three replicas on one etcd under faults (HISTORY_SEED=${seed})`, () => {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-history-'));
  const random = seededRandom(seed);
  const replicas: Replica[] = [];
  const proxies: FlakyProxy[] = [];
  let etcd: EtcdServer;

  beforeAll(async () => {
    etcd = await EtcdServer.start();
    for (let index = 0; index < REPLICAS; index++) {
      const proxy = await FlakyProxy.start(etcd.ports.client);
      const env = {
        PODWIRE_IPAM_STORE: 'etcd',
        PODWIRE_IPAM_ETCD_ENDPOINTS: `http://127.0.0.1:${proxy.port}`,
        PODWIRE_IPAM_UNKNOWN_NODES: 'register',
        PODWIRE_IPAM_DEFAULT_POOL_CIDR: POOL,
        PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '29',
      };
      const replica = new Replica({ name: `replica-${index}`, folder, env });
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

  test('no address is given twice or too early, and an exhausted pool gives what nodes only lease', async () => {
    await runLeaseHistory({
      replicas,
      folder,
      random,
      isHistoryDurable: true,
      calico: new CalicoWriter(etcd, CALICO_TIMEOUT_SECONDS),
      breakThings: () => breakEverything({ etcd, replicas, proxies, random }),
      stored: () => Promise.resolve(storedIn(etcd)),
    });
  }, 300_000);
});

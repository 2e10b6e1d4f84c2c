import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { ApiObjects } from '@podwire/ipam/engine/kubernetes/api-objects';
import { KubernetesStore } from '@podwire/ipam/engine/kubernetes/kubernetes-store';
import { ObjectForms } from '@podwire/ipam/engine/kubernetes/object-forms';
import { readAll } from '@podwire/ipam/engine/testing/consistency';
import type { TestView } from '@podwire/ipam/testing/test-view';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { POOL, runLeaseHistory } from '../history/lease-history.js';
import { seededRandom } from '../history/random.js';
import { Replica } from '../history/replica.js';
import { KEYS } from '../history/stored.js';
import { FlakyProxy } from '../support/flaky-proxy.js';
import { until } from '../support/until.js';
import { ForeignWriter } from './foreign-writer.js';
import { GROUP, KubeApiServer, PORT } from './kube-apiserver.js';
import { LeaderService } from './leader.js';

/** Nodes with leases and callers, on two podwire-ipam of one real API server, beside another writer of the same blocks. */

/** The number of rounds of all faults, each in a new order: more with `STORM_ROUNDS=20`. */
const ROUNDS = Number(process.env.STORM_ROUNDS ?? 1);
const seed = Number(process.env.STORM_SEED ?? Date.now() % 1_000_000);
const START_TIMEOUT_MS = 90_000;

const count = (name: string, size: number): string[] => Array.from({ length: size }, (_, index) => `${name}-${index}`);
const NODES = [...count('node', 4), ...count('leasing', 4), ...count('idle', 65)];

describe(`two podwire-ipam on an API server under faults (STORM_SEED=${seed})`, () => {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-storm-'));
  const random = seededRandom(seed);
  const replicas: Replica[] = [];
  const proxies: FlakyProxy[] = [];
  const seen = { faults: 0, foreign: 0 };
  let server: KubeApiServer;
  let service: LeaderService;

  beforeAll(async () => {
    server = await KubeApiServer.start(NODES);
    for (const name of ['first', 'second']) {
      const proxy = await FlakyProxy.start(PORT);
      const env = {
        ...{ PODWIRE_IPAM_STORE: 'kubernetes', PODWIRE_IPAM_DEFAULT_POOL_CIDR: POOL },
        ...{ PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '29', PODWIRE_IPAM_UNKNOWN_NODES: 'register' },
        ...{ KUBERNETES_SERVICE_HOST: '127.0.0.1', KUBERNETES_SERVICE_PORT: String(proxy.port) },
      };
      const replica = new Replica({ name, folder, env });
      proxies.push(proxy);
      replicas.push(replica);
      replica.start();
    }
    service = await LeaderService.start(replicas, join(folder, 'service.sock'));
    await untilLed();
  }, START_TIMEOUT_MS * 2);

  afterAll(async () => {
    await service.close();
    await Promise.all(replicas.map((replica) => replica.stop()));
    await Promise.all(proxies.map((proxy) => proxy.close()));
    await server.stop();
    rmSync(folder, { recursive: true, force: true });
  });

  const untilLed = (): Promise<void> =>
    until(
      async () => (await service.leader()) !== undefined,
      () => replicas.map((replica) => `no podwire-ipam leads: ${replica.log().slice(-2000)}`).join('\n'),
      START_TIMEOUT_MS,
    );

  /** A process that ended is started again, as the kubelet does. */
  const faults: readonly (() => Promise<void>)[] = [
    async () => {
      const leader = await service.leader();
      await leader?.kill();
      await sleep(500 * random());
      leader?.start();
    },
    async () => {
      const leader = await service.leader();
      await leader?.end();
      leader?.start();
    },
    async () => {
      await Promise.all(replicas.map((replica) => replica.kill()));
      for (const replica of replicas) replica.start();
    },
    async () => {
      // Longer than the lease: the other one leads when it continues.
      const leader = await service.leader();
      leader?.pause();
      await sleep(20_000 + 5_000 * random());
      leader?.resume();
    },
    async () => {
      for (let cut = 0; cut < 5; cut++) {
        for (const proxy of proxies) proxy.cut();
        await sleep(50 * random());
      }
    },
    async () => {
      for (const proxy of proxies) proxy.mode = 'silent';
      await sleep(1_000 + 4_000 * random());
      for (const proxy of proxies) {
        if (random() < 0.5) proxy.cut();
        proxy.mode = 'open';
      }
    },
    async () => {
      server.pause();
      await sleep(1_000 + 4_000 * random());
      server.resume();
    },
    async () => {
      await server.kill();
      await server.restart();
    },
    async () => {
      await server.etcd.kill();
      await sleep(1_000 * random());
      await server.etcd.restart();
    },
  ];

  async function breakEverything(): Promise<void> {
    const order = faults.map((fault) => ({ fault, place: random() })).sort((a, b) => a.place - b.place);
    for (const { fault } of order) {
      await sleep(300 + 900 * random());
      await fault();
      seen.faults++;
      for (const replica of replicas) replica.startAgain();
      await untilLed();
    }
  }

  async function stored(): Promise<TestView> {
    const api = server.connect();
    const forms = new ObjectForms({ keys: KEYS, group: GROUP, namespace: api.namespace, ownConditions: 'hidden' });
    const objects = new ApiObjects({
      api,
      forms,
      clock: systemClock,
      random,
      report: () => undefined,
      authorizeWrite: () => undefined,
    });
    const store = await KubernetesStore.open({ api: objects, keys: KEYS }, AbortSignal.timeout(START_TIMEOUT_MS));
    const view = await readAll(store, KEYS);
    await store.close();
    return view;
  }

  /** A node with Calico's plugin takes and frees addresses of the same blocks until the faults are over. */
  async function allocateElsewhere(writer: ForeignWriter, isOver: () => boolean): Promise<void> {
    for (let serial = 0; !isOver(); serial++) {
      await sleep(500 * random());
      try {
        const handle = `k8s-pod-network.calico-${serial}`;
        const address = await writer.allocate(handle, 'node-0');
        if (address === undefined) continue;
        seen.foreign++;
        await sleep(500 * random());
        while (!(await writer.release(address, handle).catch(() => false))) {
          const view = await stored().catch(() => undefined);
          if (view && !view.handle(handle)) break;
        }
      } catch {
        // The API server is down.
      }
    }
  }

  test('no address is given twice or too early, and an exhausted pool gives what nodes only lease', async () => {
    const writer = new ForeignWriter(server.connect(), GROUP);
    let isOver = false;
    await runLeaseHistory({
      replicas: [service],
      folder,
      random,
      isHistoryDurable: false,
      // Another tool that frees a lease leaves no cool-down, and a node reports the end of a pod up to 5 s later.
      leastCooldownMs: 0,
      // The longer cool-down leaves few leases while callers fill the pool.
      addsCount: 30,
      calico: writer,
      breakThings: async () => {
        const elsewhere = allocateElsewhere(writer, () => isOver);
        for (let round = 0; round < ROUNDS; round++) await breakEverything();
        isOver = true;
        await elsewhere;
      },
      stored,
    });
    expect(seen.faults).toBe(ROUNDS * faults.length);
    expect(seen.foreign).toBeGreaterThan(10);
  }, 600_000);
});

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';
import { readAll } from '@podwire/ipam/engine/testing/consistency';
import type { TestView } from '@podwire/ipam/testing/test-view';
import { afterAll, beforeAll, describe, test } from 'vitest';

import { POOL, runLeaseHistory } from './lease-history.js';
import { seededRandom } from './random.js';
import { Replica } from './replica.js';
import { KEYS } from './stored.js';

const FAULTS = 12;
const START_TIMEOUT_MS = 60_000;

const seed = Number(process.env.HISTORY_SEED ?? Date.now() % 1_000_000);

describe(`nodes with leases, of one podwire-ipam with the embedded store (HISTORY_SEED=${seed})`, () => {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-history-'));
  const directory = join(folder, 'store');
  const random = seededRandom(seed);
  const replica = new Replica({
    name: 'embedded',
    folder,
    env: {
      PODWIRE_IPAM_STORE: 'embedded',
      PODWIRE_IPAM_STORE_DIRECTORY: directory,
      PODWIRE_IPAM_UNKNOWN_NODES: 'register',
      PODWIRE_IPAM_DEFAULT_POOL_CIDR: POOL,
      PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '29',
    },
  });

  beforeAll(async () => {
    replica.start();
    await replica.ready(START_TIMEOUT_MS);
  }, START_TIMEOUT_MS);

  afterAll(async () => {
    await replica.stop();
    rmSync(folder, { recursive: true, force: true });
  });

  /** SIGKILL, and stops of the whole process. */
  async function breakThings(): Promise<void> {
    for (let count = 0; count < FAULTS; count++) {
      await sleep(300 + 900 * random());
      if (random() < 0.5) {
        replica.pause();
        await sleep(3000 * random());
        replica.resume();
      } else {
        await replica.kill();
        await sleep(500 * random());
        replica.start();
      }
    }
  }

  async function stored(): Promise<TestView> {
    await replica.stop();
    const store = await EmbeddedStore.open({ directory, pid: process.pid });
    try {
      return await readAll(store, KEYS);
    } finally {
      await store.close();
    }
  }

  test('no address is given twice or too early, and an exhausted pool gives what nodes only lease', async () => {
    await runLeaseHistory({ replicas: [replica], folder, random, breakThings, stored });
  }, 300_000);
});

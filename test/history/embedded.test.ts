import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';
import { readAll } from '@podwire/ipam/engine/testing/consistency';
import type { TestView } from '@podwire/ipam/testing/test-view';
import { describe, test } from 'vitest';

import { POOL, runLeaseHistory } from './lease-history.js';
import { seededRandom } from './random.js';
import { useEmbeddedReplica } from './replica.js';
import { KEYS } from './stored.js';

const FAULTS = 12;

const seed = Number(process.env.HISTORY_SEED ?? Date.now() % 1_000_000);

describe(`nodes with leases, of one podwire-ipam with the embedded store (HISTORY_SEED=${seed})`, () => {
  const { replica, folder, directory } = useEmbeddedReplica(POOL);
  const random = seededRandom(seed);

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
    await runLeaseHistory({ replicas: [replica], folder, random, isHistoryDurable: true, breakThings, stored });
  }, 300_000);
});

import { setTimeout as sleep } from 'node:timers/promises';

import type { EtcdServer } from '@podwire/ipam/engine/testing/etcd-server';

import type { FlakyProxy } from '../support/flaky-proxy.js';
import type { Replica } from './replica.js';

/** The targets of faults: the datastore, the replicas, and the connection of each replica to the datastore, in the same order. */
export interface Victims {
  readonly etcd: EtcdServer;
  readonly replicas: readonly Replica[];
  readonly proxies: readonly FlakyProxy[];
  /** A number from 0 (included) to 1 (excluded), from a seed that the test prints. */
  readonly random: () => number;
}

/** One fault: it breaks something, and repairs it before it returns. */
type Fault = (victims: Victims) => Promise<void>;

export const FAULTS = {
  'SIGKILL of a replica': async ({ replicas, random }) => {
    const replica = pick(replicas, random);
    await replica.kill();
    await sleep(300 * random());
    replica.start();
  },
  'SIGKILL of all replicas': async ({ replicas }) => {
    await Promise.all(replicas.map((replica) => replica.kill()));
    for (const replica of replicas) replica.start();
  },
  'connections cut': async ({ proxies, random }) => {
    for (let cut = 0; cut < 5; cut++) {
      pick(proxies, random).cut();
      await sleep(50 * random());
    }
  },
  'a network that drops everything': async ({ proxies, random }) => {
    const proxy = pick(proxies, random);
    proxy.mode = 'silent';
    await sleep(500 + 2500 * random());
    // Half of the time the held bytes are lost, else they arrive late.
    if (random() < 0.5) proxy.cut();
    proxy.mode = 'open';
  },
  'etcd stands still': async ({ etcd, random }) => {
    etcd.pause();
    await sleep(500 + 2500 * random());
    etcd.resume();
  },
  'etcd stands still while its clients are killed': async ({ etcd, replicas, random }) => {
    etcd.pause();
    await sleep(300 + 500 * random());
    const replica = pick(replicas, random);
    await replica.kill();
    replica.start();
    await sleep(500 * random());
    etcd.resume();
  },
  'etcd restarted': async ({ etcd, random }) => {
    await etcd.stop();
    await sleep(500 * random());
    await etcd.restart();
  },
  'SIGKILL of etcd': async ({ etcd, random }) => {
    await etcd.kill();
    await sleep(500 * random());
    await etcd.restart();
  },
  'etcd compacted': ({ etcd, random }) => {
    // Compaction has revisions to remove in any case; other clients write to the same etcd too.
    etcd.ctl('put', '/foreign', String(random()));
    etcd.compact();
    return Promise.resolve();
  },
} as const satisfies Record<string, Fault>;

/** Every fault once, in random order, with a pause without faults between them. */
export async function breakEverything(victims: Victims): Promise<void> {
  const faults = Object.values(FAULTS)
    .map((fault) => ({ fault, place: victims.random() }))
    .sort((a, b) => a.place - b.place);
  for (const { fault } of faults) {
    await sleep(300 + 900 * victims.random());
    await fault(victims);
  }
}

function pick<Item>(items: readonly Item[], random: () => number): Item {
  const item = items[Math.floor(random() * items.length)];
  if (item === undefined) throw new Error('nothing to pick from');
  return item;
}

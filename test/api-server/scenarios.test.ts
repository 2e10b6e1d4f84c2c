import { systemClock } from '@podwire/shared/runtime/clock';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';

import { ApiObjects } from '@podwire/ipam/engine/kubernetes/api-objects';
import { KubernetesStore } from '@podwire/ipam/engine/kubernetes/kubernetes-store';
import { ObjectForms } from '@podwire/ipam/engine/kubernetes/object-forms';
import { readAll } from '@podwire/ipam/engine/testing/consistency';
import { MemoryStore } from '@podwire/ipam/engine/testing/memory-store';
import { forever } from '@podwire/ipam/engine/testing/stores';
import { RecordKeys } from '@podwire/ipam/records/json/keys';
import { encodeRecord, serialize } from '@podwire/ipam/records/json/registry';
import { poolSpec, type Operation } from '@podwire/ipam/testing/interleaved-operations';
import { SCENARIOS } from '@podwire/ipam/testing/interleaved-scenarios';
import { startIpam } from '@podwire/ipam/testing/ipam';
import { GROUP, KubeApiServer } from './kube-apiserver.js';
import { answerOf, expectOwned, meaningOf } from '@podwire/ipam/testing/outcomes';

/** Operations on a real API server; the memory store is the oracle. */

const keys = new RecordKeys('/calico', { hasLock: true });

const NODES = Array.from({ length: 9 }, (_, index) => `n${index + 1}`);

let server: KubeApiServer;
beforeAll(async () => {
  server = await KubeApiServer.start(NODES);
});
afterAll(() => server.stop());
beforeEach(() => server.clear());

async function open(): Promise<KubernetesStore> {
  const api = server.connect();
  const forms = new ObjectForms({ keys, group: GROUP, namespace: api.namespace, ownConditions: 'hidden' });
  const objects = new ApiObjects({
    api,
    forms,
    clock: systemClock,
    random: Math.random,
    report: () => undefined,
    authorizeWrite: () => undefined,
  });
  return KubernetesStore.open({ api: objects, keys }, forever);
}

async function run(store: MemoryStore | KubernetesStore, operations: readonly Operation[]): Promise<string[]> {
  const { ipam, close } = await startIpam(store);
  const answers: string[] = [];
  for (const each of operations) answers.push(await answerOf(() => each.run(ipam)));
  await close();
  return answers;
}

/** Kubernetes has each node of the tests, registered or not; a node is compared by its tunnels. */
const isComparable = (line: string): boolean => line !== '' && !/^node \w+ $/.test(line);

async function meaning(store: MemoryStore | KubernetesStore): Promise<string[]> {
  const view = await readAll(store, keys);
  expectOwned(view, 'at the end');
  return meaningOf(view).split('\n').filter(isComparable);
}

/** Begin with a handle without an address, which this datastore cannot have; or delete a Node twice, which Kubernetes keeps. */
const DIFFERENT: readonly string[] = [
  ...['a repair of a coming block', 'two repairs', 'a repair among other operations'],
  ...['a node goes twice', 'an empty block whose node goes'],
];

test.each(SCENARIOS.filter(({ name }) => !DIFFERENT.includes(name)))(
  '$name: the outcome is the one of the memory store',
  async ({ before = [], damage = [], operations }) => {
    const puts = damage.map((record) => ({ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }));
    const outcomeOn = async (store: MemoryStore | KubernetesStore) => {
      const { ipam, close } = await startIpam(store);
      await ipam.pools.create(poolSpec('p', '10.0.0.0/30'), forever);
      await close();
      await run(store, before);
      if (puts.length > 0) await store.commit({ comparisons: [], puts, deletes: [] }, forever);
      return { answers: await run(store, operations), records: await meaning(store) };
    };
    const store = await open();
    const outcome = await outcomeOn(store);
    await store.close();
    expect(outcome).toEqual(await outcomeOn(new MemoryStore()));
  },
);

import { describe, expect, test } from 'vitest';

import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys, startReplica } from '../engine/testing/stores.js';
import { NOW_MS, pool } from '../testing/records.js';
import { initializeDatastore } from './datastore.js';

const defaultPools = [pool('default', '10.0.0.0/16')];
const newUid = () => '0f8fad5b-d9cb-469f-a165-70867728950e';
const MARKER = '/calico/resources/v3/projectcalico.org/clusterinformations/default';

const begin = (store: MemoryStore, rest: { readonly defaultPools?: readonly []; readonly ownsNodes?: boolean } = {}) =>
  initializeDatastore({ store, keys, ownsNodes: true, defaultPools, nowMs: NOW_MS, newUid, ...rest }, forever);

async function keysOf(store: MemoryStore): Promise<string[]> {
  return (await store.list('', forever)).records.map(({ key }) => key).sort();
}

describe('the first start', () => {
  test('creates the default pool and Calico’s ClusterInformation, in one transaction', async () => {
    const store = new MemoryStore();
    const { revision } = await store.list('', forever);
    expect(await begin(store)).toMatchObject([{ name: 'default', uid: newUid() }]);
    expect(await keysOf(store)).toEqual([MARKER, keys.pool('default')]);
    expect((await store.list('', forever)).revision).toBe(revision + 1);
    const [marker] = (await store.read([MARKER], forever)).records;
    expect(JSON.parse(Buffer.from(marker!.value).toString())).toEqual({
      kind: 'ClusterInformation',
      apiVersion: 'projectcalico.org/v3',
      metadata: { name: 'default', uid: newUid(), creationTimestamp: '2026-08-22T06:33:25Z' },
      spec: { clusterGUID: newUid().replaceAll('-', ''), clusterType: 'podwire', datastoreReady: true },
    });
    const { mirror, events } = await startReplica(store);
    expect(mirror.view.pools().map(({ name }) => name)).toEqual(['default']);
    expect(events).toEqual([]);
  });

  test('happens once: a deleted pool does not return', async () => {
    const store = new MemoryStore();
    await begin(store);
    await store.commit({ comparisons: [], puts: [], deletes: [keys.pool('default')] }, forever);
    expect(await begin(store)).toEqual([]);
    expect(await keysOf(store)).toEqual([MARKER]);
  });

  test('without a default pool counts as well', async () => {
    const store = new MemoryStore();
    expect(await begin(store, { defaultPools: [] })).toEqual([]);
    expect(await begin(store)).toEqual([]);
    expect(await keysOf(store)).toEqual([MARKER]);
  });

  test('adds no pool to a datastore in use', async () => {
    const store = new MemoryStore();
    const handle = { key: keys.handle('a.b'), value: Buffer.from('{}') };
    await store.commit({ comparisons: [], puts: [handle], deletes: [] }, forever);
    expect(await begin(store)).toEqual([]);
    expect(await keysOf(store)).toEqual([handle.key, MARKER].sort());
  });

  test('of two replicas creates one pool', async () => {
    const store = new MemoryStore();
    const made = await Promise.all([begin(store), begin(store)]);
    expect(made.flat()).toHaveLength(1);
    expect(await keysOf(store)).toHaveLength(2);
  });
});

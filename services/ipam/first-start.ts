import type { Pool } from './allocator/records.js';
import type { Store } from './engine/store.js';
import { makePool } from './pools/changes.js';
import type { PoolSpec } from './pools/rules.js';
import { wholeSeconds } from './records/block.js';
import type { JsonObject } from './records/json/json.js';
import type { RecordKeys } from './records/json/keys.js';
import { encodeRecord, serialize } from './records/json/registry.js';

export interface FirstStart {
  readonly store: Store;
  readonly keys: RecordKeys;
  /** Undefined for none. */
  readonly defaultPool: PoolSpec | undefined;
  readonly nowMs: number;
  /** Makes a UUID. */
  readonly newUid: () => string;
}

/**
 * Marks a datastore as begun, with Calico's ClusterInformation, whose absence is what tells the first start from all later ones.
 * On an empty datastore the default pool is made in the same transaction. So it is made once: a default pool that somebody
 * deleted does not come back, a datastore of Calico's does not get another pool, and of several replicas one makes it.
 * @returns the pool, when this call made it
 * @throws Failure of the store
 */
export async function beginDatastore(first: FirstStart, signal: AbortSignal): Promise<Pool | undefined> {
  const { store, keys, defaultPool, nowMs, newUid } = first;
  const marker = `${keys.root}resources/v3/projectcalico.org/clusterinformations/default`;
  const { records: begun } = await store.read([marker], signal);
  if (begun.length > 0) return undefined;
  // One record tells a datastore that is in use, however large it is.
  const { records, revision } = await store.scan({ prefix: keys.root, after: undefined, limit: 1 }, signal);
  const pool = records.length === 0 && defaultPool ? makePool({ spec: defaultPool, uid: newUid(), nowMs }) : undefined;
  const information = clusterInformation({ uid: newUid(), clusterGuid: newUid().replaceAll('-', ''), nowMs });
  const puts = [{ key: marker, value: serialize(information) }, ...(pool ? [poolPut(keys, pool)] : [])];
  const comparisons = [
    { type: 'record', key: marker, modRevision: 0 },
    { type: 'prefix', prefix: keys.root, notAfterRevision: revision },
  ] as const;
  // A lost comparison means that somebody else has begun to use the datastore, with a first start of its own.
  const { committed } = await store.commit({ comparisons, puts, deletes: [] }, signal);
  return committed ? pool : undefined;
}

function poolPut(keys: RecordKeys, value: Pool) {
  return { key: keys.pool(value.name), value: serialize(encodeRecord({ kind: 'pool', value }, undefined)) };
}

interface ClusterIdentity {
  readonly uid: string;
  /** 32 hexadecimal digits. */
  readonly clusterGuid: string;
  readonly nowMs: number;
}

/** Calico's ClusterInformation (projectcalico/api, pkg/apis/projectcalico/v3/clusterinfo.go); its tools want a ready one. */
function clusterInformation({ uid, clusterGuid, nowMs }: ClusterIdentity): JsonObject {
  const creationTimestamp = new Date(wholeSeconds(nowMs)).toISOString().replace('.000Z', 'Z');
  return {
    kind: 'ClusterInformation',
    apiVersion: 'projectcalico.org/v3',
    metadata: { name: 'default', uid, creationTimestamp },
    spec: { clusterGUID: clusterGuid, clusterType: 'podwire', datastoreReady: true },
  };
}

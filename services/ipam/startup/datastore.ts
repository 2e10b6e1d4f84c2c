import { Failure } from '@podwire/shared/failure/failure';
import { retry } from '@podwire/shared/reconcile/retry';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { KubernetesApi } from '../api-server/api.js';
import type { Config } from '../config.js';
import { EmbeddedStore } from '../engine/embedded/embedded-store.js';
import type { ClusterEvent } from '../engine/etcd/cluster.js';
import { EtcdStore, type EtcdStoreOptions } from '../engine/etcd/etcd-store.js';
import type { Events } from '../engine/events.js';
import { HandleWriter } from '../engine/kubernetes/followers/handle-writer.js';
import type { HistoryReports } from '../engine/kubernetes/history/history-segments.js';
import { PodAnnotations } from '../engine/kubernetes/followers/pod-annotations.js';
import type { SettlementInterval, Store, StoreTraits } from '../engine/store.js';
import type { SegmentedHistory } from '../history/history-log.js';
import { makePool } from '../pools/changes.js';
import type { PoolSpec } from '../pools/rules.js';
import { wholeSeconds } from '../records/block.js';
import type { JsonObject } from '../records/json/json.js';
import { RecordKeys } from '../records/json/keys.js';
import { encodeRecord, serialize } from '../records/json/registry.js';
import type { Pool } from '../records/pool.js';
import type { HistoryDestination } from '../transfer/history-import.js';
import { KubernetesDatastore, type ObjectWriter, type OpenedStore } from './kubernetes-datastore.js';

export interface OpenStoreDeps {
  readonly pid: number;
  /** Makes a UUID. */
  readonly newUid: () => string;
  readonly events: Events;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** The API server of the cluster. @throws Failure INVALID_SETTINGS outside of a cluster */
  readonly kubernetes: () => KubernetesApi;
  /** Name of this process among all processes that want to lead; undefined for a command. */
  readonly identity: string | undefined;
  /** Ends the opening of a datastore that does not answer. */
  readonly signal: AbortSignal;
  /** How many revisions a watch of the embedded datastore can go back at least. Default: the store's own. */
  readonly watchHistoryCount?: number;
}

export interface OpenStore {
  readonly store: Store;
  readonly traits: StoreTraits;
  /** The history, where a transaction does not write it with its records. */
  readonly history?: SegmentedHistory & HistoryDestination;
  /**
   * Fires when the datastore is permanently refused, as it differs from the datastore read before. Its reason is the
   * failure.
   */
  readonly refused: AbortSignal;
  /** Waits until this process may write. Can be repeated after a failure. @throws Failure of the datastore or of the signal */
  readonly lead: (signal: AbortSignal) => Promise<void>;
  /** Closes the store. Idempotent. */
  readonly close: () => Promise<void>;
  /** Writes the status of pools where other tools write pools; undefined where only podwire-ipam and Calico's tools do. */
  readonly publishPools?: KubernetesDatastore['publishPools'];
}

/** Commands of the node have the processor first. */
const SETTLEMENT: SettlementInterval = { quietMs: 250, longestMs: 1000 };

const KUBERNETES: StoreTraits = {
  // An object is one request; a transaction with more of them would make its callers wait for each other.
  maxOperationsCount: 128,
  marksReleases: false,
  // Other podwire-ipam wait until this one ends. Of other writers, the watch reports each change.
  isExclusiveWriter: true,
  hasLock: true,
  // Each binding or return writes a whole block to the API server. A node with a pod per second is never quiet for this time.
  settlement: { quietMs: 2500, longestMs: 5000 },
};

const EMBEDDED: StoreTraits = {
  // lmdb has no limit; a larger batch would make one caller wait for the decisions of more callers.
  maxOperationsCount: 1024,
  marksReleases: false,
  isExclusiveWriter: true,
  hasLock: false,
  settlement: SETTLEMENT,
};

/**
 * Opens the datastore that the settings choose.
 * @throws Failure STORE_IN_USE, STORE_CORRUPT, STORE_UNAVAILABLE, STORE_DENIED, or INVALID_SETTINGS when a configured file
 * cannot be read or used
 */
export async function openStore(config: Config, deps: OpenStoreDeps): Promise<OpenStore> {
  const lead = (): Promise<void> => Promise.resolve();
  const { pid, newUid, events, watchHistoryCount } = deps;
  if (config.store === 'embedded') {
    const history = watchHistoryCount === undefined ? {} : { watchHistoryCount };
    const store = await EmbeddedStore.open({ directory: config.storeDirectory, pid, ...history });
    const { signal: refused } = new AbortController();
    return { store, traits: EMBEDDED, refused, lead, close: () => store.close() };
  }
  const refusing = new AbortController();
  if (config.store === 'kubernetes') {
    const keys = new RecordKeys(config.datastorePrefix, KUBERNETES);
    const report = (error: unknown): void => {
      if (error instanceof Failure) events.datastoreUnavailable(error);
    };
    const lost = (failure: Failure): void => {
      if (!refusing.signal.aborted) events.processMustRestart(failure);
      refusing.abort(failure);
    };
    const { kubernetes, clock, random, identity, signal } = deps;
    const leaderObserved = (leader: string): void =>
      leader === identity ? events.leading() : events.waitingFor(leader);
    const history: HistoryReports = {
      unavailable: (failure) => events.historyUnavailable(failure),
      unreadable: (id, failure) => events.recordUnreadable(id, failure),
      writeFailed: (error) => events.upkeepFailed('write-history', error),
    };
    const rest = { api: kubernetes(), keys, clock, random };
    const startWriters = (opened: OpenedStore): ObjectWriter[] => {
      const options = { ...rest, ...opened, report: (failure: Failure) => events.objectNotWritten(failure) };
      return [
        ...(config.kubernetesHandles === 'none' ? [] : [new HandleWriter(options)]),
        ...(config.podAnnotations === 'never' ? [] : [new PodAnnotations(options)]),
      ];
    };
    const podName = identity === undefined ? '' : config.podName;
    const options = { ...rest, identity, podName, report, leaderObserved, history, lost, startWriters };
    const datastore = await KubernetesDatastore.open(options, signal);
    return {
      ...{ store: datastore.store, traits: KUBERNETES, history: datastore, refused: refusing.signal },
      lead: (until) => datastore.lead(until),
      publishPools: (statuses, until) => datastore.publishPools(statuses, until),
      close: () => datastore.close(),
    };
  }
  const store = await EtcdStore.open({
    ...etcdOptions(config),
    uid: newUid(),
    report: (event) => {
      reportClusterEvent(events, event);
      if (event.type === 'replaced') refusing.abort(event.failure);
    },
  });
  const { maxOperationsCount } = store;
  const traits = { marksReleases: true, isExclusiveWriter: false, hasLock: true, settlement: SETTLEMENT };
  const { signal: refused } = refusing;
  return { store, traits: { ...traits, maxOperationsCount }, refused, lead, close: () => store.close() };
}

function reportClusterEvent(events: Events, event: ClusterEvent): void {
  switch (event.type) {
    case 'endpointChosen':
      events.storeEndpointChosen(event.endpoint);
      break;
    case 'endpointLost':
      events.storeEndpointLost(event.endpoint, event.failure);
      break;
    case 'credentialsRefused':
      events.storeCredentialsRefused(event.failure);
      break;
    case 'replaced':
      events.datastoreReplaced(event.failure);
      break;
  }
}

function etcdOptions(config: Config): Omit<EtcdStoreOptions, 'uid'> {
  const optional = (text: string): string | undefined => (text === '' ? undefined : text);
  return {
    endpoints: config.etcdEndpoints,
    credentials: {
      caFile: optional(config.etcdCaFile),
      certFile: optional(config.etcdCertFile),
      keyFile: optional(config.etcdKeyFile),
      username: optional(config.etcdUsername),
      passwordFile: optional(config.etcdPasswordFile),
    },
    requestTimeoutMs: config.etcdRequestTimeoutMs,
    dialTimeoutMs: config.etcdDialTimeoutMs,
    maxOperationsCount: config.etcdMaxTxnOpsCount,
    maxRequestBytes: config.etcdMaxRequestBytes,
    keyPrefix: config.datastorePrefix,
  };
}

interface InitializeOptions {
  readonly store: Store;
  readonly keys: RecordKeys;
  /** Whether nodes are records of the datastore alone. */
  readonly ownsNodes: boolean;
  readonly defaultPools: readonly PoolSpec[];
  readonly nowMs: number;
  /** Makes a UUID. */
  readonly newUid: () => string;
}

/**
 * Marks a datastore as begun, with Calico's ClusterInformation; its absence identifies the first start. On an empty
 * datastore the same transaction makes the default pools. So they are made once: a deleted default pool does not return, a
 * datastore of Calico's gets no additional pool, and only one of several replicas makes them.
 * @returns the pools that this call made
 * @throws Failure of the store
 */
export async function initializeDatastore(first: InitializeOptions, signal: AbortSignal): Promise<readonly Pool[]> {
  const { store, keys, ownsNodes, defaultPools, nowMs, newUid } = first;
  const marker = `${keys.root}resources/v3/projectcalico.org/clusterinformations/default`;
  const { records: begun } = await store.read([marker], signal);
  if (begun.length > 0) return [];
  // One record proves that a datastore is in use, however large it is; but the API server has Nodes without Podwire.
  const prefix = ownsNodes ? keys.root : keys.pools;
  const { records, revision } = await store.scan({ prefix, after: undefined, limit: 1 }, signal);
  const specs = records.length === 0 ? defaultPools : [];
  const pools = specs.map((spec) => makePool({ spec, uid: newUid(), nowMs }));
  const information = clusterInformation({ uid: newUid(), clusterGuid: newUid().replaceAll('-', ''), nowMs });
  const puts = [{ key: marker, value: serialize(information) }, ...pools.map((pool) => poolPut(keys, pool))];
  const comparisons = [
    { type: 'record', key: marker, modRevision: 0 },
    { type: 'prefix', prefix, notAfterRevision: revision },
  ] as const;
  // A lost comparison means that another process has begun to use the datastore, with a separate first start.
  const { committed } = await store.commit({ comparisons, puts, deletes: [] }, signal);
  return committed ? pools : [];
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

/** Calico's ClusterInformation (projectcalico/api, pkg/apis/projectcalico/v3/clusterinfo.go); its tools require a ready one. */
function clusterInformation({ uid, clusterGuid, nowMs }: ClusterIdentity): JsonObject {
  const creationTimestamp = new Date(wholeSeconds(nowMs)).toISOString().replace('.000Z', 'Z');
  return {
    kind: 'ClusterInformation',
    apiVersion: 'projectcalico.org/v3',
    metadata: { name: 'default', uid, creationTimestamp },
    spec: { clusterGUID: clusterGuid, clusterType: 'podwire', datastoreReady: true },
  };
}

export interface StartRetry {
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Ends the waiting. */
  readonly signal: AbortSignal;
  /** Receives each transient failure. Must not throw. */
  readonly report: (failure: Failure) => void;
}

const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 5_000 };

/**
 * Repeats an idempotent step of the start until the datastore answers. A service that ended because etcd is not up yet
 * would be restarted repeatedly, with growing delays.
 * @throws a failure that is not transient; the last failure of any kind when the signal fires
 */
export async function retryUntilAvailable<Result>(
  step: () => Promise<Result>,
  retryOptions: StartRetry,
): Promise<Result> {
  const { report, ...rest } = retryOptions;
  const reportingStep = async (): Promise<Result> => {
    try {
      return await step();
    } catch (error) {
      if (isTransient(error)) report(error);
      throw error;
    }
  };
  return await retry(reportingStep, {
    ...rest,
    attempts: Number.POSITIVE_INFINITY,
    backoff: BACKOFF,
    retryable: isTransient,
  });
}

function isTransient(error: unknown): error is Failure {
  return error instanceof Failure && error.retryable;
}

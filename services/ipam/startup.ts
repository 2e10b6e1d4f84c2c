import type { Config } from './config.js';
import { EmbeddedStore } from './engine/embedded/embedded-store.js';
import type { ClusterEvent } from './engine/etcd/cluster.js';
import { EtcdStore, type EtcdStoreOptions } from './engine/etcd/etcd-store.js';
import type { Events } from './engine/events.js';
import type { Store } from './engine/store.js';

interface StoreSurroundings {
  readonly pid: number;
  /** Makes a UUID. */
  readonly newUid: () => string;
  readonly events: Events;
  /** How many revisions a watch of the embedded datastore can go back at least. Default: the store's own. */
  readonly watchHistoryCount?: number;
}

/** A datastore, and what its kind allows. */
export interface OpenStore {
  readonly store: Store;
  /** How many operations one transaction may have. */
  readonly maxOperationsCount: number;
  /** Whether it may execute a transaction after its sender gave up. */
  readonly marksReleases: boolean;
  /** Whether no other process writes to it. */
  readonly isSoleWriter: boolean;
  /** Fires when the datastore is refused for good, as it is not the one that was read before. Its reason is the failure. */
  readonly refused: AbortSignal;
}

/** lmdb has no limit; more would only make one caller wait for many others' decisions. */
const EMBEDDED_MAX_OPERATIONS_COUNT = 1024;

/**
 * Opens the datastore that the settings choose.
 * @throws Failure STORE_IN_USE, STORE_CORRUPT, STORE_UNAVAILABLE, STORE_DENIED, or INVALID_SETTINGS when a file that they name
 * cannot be read or used
 */
export async function openStore(config: Config, surroundings: StoreSurroundings): Promise<OpenStore> {
  const { pid, newUid, events, watchHistoryCount } = surroundings;
  if (config.store === 'embedded') {
    const history = watchHistoryCount === undefined ? {} : { watchHistoryCount };
    const store = await EmbeddedStore.open({ directory: config.storeDirectory, pid, ...history });
    const { signal: refused } = new AbortController();
    const limits = { maxOperationsCount: EMBEDDED_MAX_OPERATIONS_COUNT, marksReleases: false, isSoleWriter: true };
    return { store, ...limits, refused };
  }
  const refusing = new AbortController();
  const store = await EtcdStore.open({
    ...etcdOptions(config),
    uid: newUid(),
    report: (event) => {
      tell(events, event);
      if (event.type === 'replaced') refusing.abort(event.failure);
    },
  });
  const limits = { maxOperationsCount: store.maxOperationsCount, marksReleases: true, isSoleWriter: false };
  return { store, ...limits, refused: refusing.signal };
}

function tell(events: Events, event: ClusterEvent): void {
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
  const given = (text: string): string | undefined => (text === '' ? undefined : text);
  return {
    endpoints: config.etcdEndpoints,
    credentials: {
      caFile: given(config.etcdCaFile),
      certFile: given(config.etcdCertFile),
      keyFile: given(config.etcdKeyFile),
      username: given(config.etcdUsername),
      passwordFile: given(config.etcdPasswordFile),
    },
    requestTimeoutMs: config.etcdRequestTimeoutMs,
    dialTimeoutMs: config.etcdDialTimeoutMs,
    maxOperationsCount: config.etcdMaxTxnOpsCount,
    maxRequestBytes: config.etcdMaxRequestBytes,
    keyPrefix: config.datastorePrefix,
  };
}

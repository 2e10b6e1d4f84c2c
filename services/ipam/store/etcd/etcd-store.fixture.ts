import { randomUUID } from 'node:crypto';

import { EtcdStore, type EtcdStoreOptions } from '../../engine/etcd/etcd-store.js';
import type { EtcdServer } from '../../engine/testing/etcd-server.js';

const NO_CREDENTIALS = {
  caFile: undefined,
  certFile: undefined,
  keyFile: undefined,
  username: undefined,
  passwordFile: undefined,
};

/** A store on servers of a test, with etcd's own limits, and time for a disk that others write to. */
export function openEtcdStore(
  servers: readonly Pick<EtcdServer, 'url'>[],
  options: Partial<EtcdStoreOptions> = {},
): Promise<EtcdStore> {
  return EtcdStore.open({
    endpoints: servers.map(({ url }) => url),
    credentials: NO_CREDENTIALS,
    requestTimeoutMs: 20_000,
    dialTimeoutMs: 20_000,
    maxOperationsCount: 128,
    maxRequestBytes: 1_572_864,
    keyPrefix: '/calico',
    uid: randomUUID(),
    ...options,
  });
}

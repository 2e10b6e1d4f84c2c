import { randomUUID } from 'node:crypto';
import { createServer } from 'node:net';

import { EtcdStore } from '@podwire/ipam/engine/etcd/etcd-store';

import { ServingProcess, type Place } from './processes.js';

export interface Etcd {
  readonly process: ServingProcess;
  readonly url: string;
}

/** A bench writes more than etcd's usual 2 GiB: it keeps each value that was overwritten. */
const QUOTA_BYTES = 8 * 2 ** 30;

/** Starts one etcd on the loopback interface, with etcd's own settings: each commit is synced to the disk. */
export async function startEtcd(place: Place): Promise<Etcd> {
  const [port, peerPort] = [await freePort(), await freePort()];
  const [url, peerUrl] = [`http://127.0.0.1:${port}`, `http://127.0.0.1:${peerPort}`];
  const process = await ServingProcess.start(
    [
      'etcd',
      `--data-dir=${place.path('etcd')}`,
      `--listen-client-urls=${url}`,
      `--advertise-client-urls=${url}`,
      `--listen-peer-urls=${peerUrl}`,
      `--initial-advertise-peer-urls=${peerUrl}`,
      `--initial-cluster=default=${peerUrl}`,
      `--quota-backend-bytes=${QUOTA_BYTES}`,
      '--log-level=error',
    ],
    { endpoint: port, logFile: place.path('etcd.log') },
  );
  return { process, url };
}

/** Podwire's store on it. @param keyPrefix - prefix of the datastore's keys */
export function openEtcdStore({ url }: Pick<Etcd, 'url'>, keyPrefix: string): Promise<EtcdStore> {
  const none = { caFile: undefined, certFile: undefined, keyFile: undefined };
  return EtcdStore.open({
    endpoints: [url],
    credentials: { ...none, username: undefined, passwordFile: undefined },
    requestTimeoutMs: 5000,
    dialTimeoutMs: 5000,
    maxOperationsCount: 128,
    maxRequestBytes: 1_572_864,
    keyPrefix,
    uid: randomUUID(),
  });
}

/** A free port of the loopback interface. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => {
        if (address !== null && typeof address === 'object') resolve(address.port);
        else reject(new Error('no port was given'));
      });
    });
  });
}

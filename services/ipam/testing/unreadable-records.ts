import process from 'node:process';

import { AuditRequest, AuditServiceService, FindingKind } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { afterEach, vi } from 'vitest';

import { EmbeddedStore } from '../engine/embedded/embedded-store.js';
import type { Store } from '../engine/store.js';
import { openEtcdStore } from '../engine/testing/etcd-faults.js';
import { EtcdServer } from '../engine/testing/etcd-server.js';
import { RecordKeys } from '../records/json/keys.js';
import type { RunningService } from '../service.js';
import { Caller, Place } from './service.js';

/** A service whose datastore gets invalid records from other writers. */

export const keys = new RecordKeys('/calico');
const { signal } = new AbortController();

const cleanups: (() => Promise<void> | void)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

interface Bench {
  readonly caller: Caller;
  /** Reads or changes the datastore, as an operator does: beside the service where it can be shared. */
  readonly inStore: <Result>(act: (store: Store) => Promise<Result>) => Promise<Result>;
}

/** The datastore has one process, so the service is stopped for it. */
export async function onEmbedded(): Promise<Bench> {
  const place = new Place();
  cleanups.push(() => place.remove());
  let service: RunningService = await place.start();
  cleanups.push(() => service.stop());
  const caller = new Caller(place.address);
  cleanups.push(() => caller.close());
  const inStore = async <Result>(act: (store: Store) => Promise<Result>): Promise<Result> => {
    await service.stop();
    const store = await EmbeddedStore.open({ directory: place.storeDirectory, pid: process.pid });
    try {
      return await act(store);
    } finally {
      await store.close();
      service = await place.start();
    }
  };
  return { caller, inStore };
}

export async function onEtcd(): Promise<Bench> {
  const server = await EtcdServer.start();
  cleanups.push(() => server.dispose());
  const place = new Place();
  cleanups.push(() => place.remove());
  const service = await place.start({
    PODWIRE_IPAM_STORE: 'etcd',
    PODWIRE_IPAM_ETCD_ENDPOINTS: server.url,
    PODWIRE_IPAM_UNKNOWN_NODES: 'register',
  });
  cleanups.push(() => service.stop());
  const caller = new Caller(place.address);
  cleanups.push(() => caller.close());
  const store = await openEtcdStore([server]);
  cleanups.push(() => store.close());
  return { caller, inStore: (act) => act(store) };
}

export async function textOf(store: Store, key: string): Promise<string> {
  const { records } = await store.read([key], signal);
  return Buffer.from(records[0]?.value ?? '').toString();
}

async function write(store: Store, key: string, text: string): Promise<void> {
  await store.commit({ comparisons: [], puts: [{ key, value: Buffer.from(text) }], deletes: [] }, signal);
}

export const limits = () => ({ deadlineMs: Date.now() + 30_000 });

/** The keys that the audit reports as unreadable. */
export async function unreadable({ peer }: Caller): Promise<string[]> {
  const kinds = [FindingKind.FINDING_KIND_RECORD_UNREADABLE];
  const { findings } = await peer.call(AuditServiceService.audit, AuditRequest.fromPartial({ kinds }), limits());
  return findings.map(({ objects: [first] }) => first?.name ?? '');
}

/** Writes beside the service, and waits until it has seen that. */
export async function spoil({ caller, inStore }: Bench, key: string): Promise<string> {
  const text = await inStore(async (store) => {
    const before = await textOf(store, key);
    await write(store, key, '{"cidr": nonsense');
    return before;
  });
  await vi.waitUntil(async () => (await unreadable(caller)).includes(key), { timeout: 40_000 });
  return text;
}

export async function correct({ caller, inStore }: Bench, key: string, text: string): Promise<void> {
  await inStore((store) => write(store, key, text));
  await vi.waitUntil(async () => (await unreadable(caller)).length === 0, { timeout: 40_000 });
}

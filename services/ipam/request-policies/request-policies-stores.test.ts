import process from 'node:process';

import { AuditRequest, AuditServiceService, FindingKind } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { RequestPolicy, RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { EmbeddedStore } from '../engine/embedded/embedded-store.js';
import type { Store } from '../engine/store.js';
import { openEtcdStore } from '../engine/testing/etcd-faults.js';
import { EtcdServer } from '../engine/testing/etcd-server.js';
import { exported, forever, imported, recordLines } from '../testing/archives.js';
import { Caller, Place } from '../testing/service.js';

/** Request policies on a real etcd with two replicas, and exported from there to an embedded datastore. */

const KEY = '/calico/podwire/requestpolicies';
const { createRequestPolicy, listRequestPolicies, updateRequestPolicy } = RequestPolicyServiceService;

const cleanups: (() => Promise<void> | void)[] = [];
let etcd: Store;
let first: Caller;
let startReplica: () => Promise<Caller>;

beforeEach(async () => {
  const server = await EtcdServer.start();
  cleanups.push(() => server.dispose());
  startReplica = () =>
    serve(new Place(), {
      PODWIRE_IPAM_STORE: 'etcd',
      PODWIRE_IPAM_ETCD_ENDPOINTS: server.url,
      PODWIRE_IPAM_UNKNOWN_NODES: 'register',
    });
  first = await startReplica();
  const store = await openEtcdStore([server]);
  cleanups.push(() => store.close());
  etcd = store;
});

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(place: Place, env: Record<string, string> = {}): Promise<Caller> {
  cleanups.push(() => place.remove());
  const service = await place.start(env);
  cleanups.push(() => service.stop());
  const caller = new Caller(place.address);
  cleanups.push(() => caller.close());
  return caller;
}

const limits = () => ({ deadlineMs: Date.now() + 60_000 });

async function create(policy: Parameters<typeof RequestPolicy.fromPartial>[0]): Promise<RequestPolicy> {
  const message = { requestPolicy: RequestPolicy.fromPartial(policy) };
  return (await first.peer.call(createRequestPolicy, message, limits())).requestPolicy!;
}

async function list({ peer }: Caller): Promise<readonly RequestPolicy[]> {
  return (await peer.call(listRequestPolicies, { pageSize: 0, pageToken: '' }, limits())).requestPolicies;
}

async function stored(store: Store): Promise<string> {
  const { records } = await store.read([KEY], forever);
  return Buffer.from(records[0]?.value ?? '').toString();
}

const write = (store: Store, text: string) =>
  store.commit({ comparisons: [], puts: [{ key: KEY, value: Buffer.from(text) }], deletes: [] }, forever);

const askPool = (caller: Caller, id: string, namespace: string) =>
  caller.allocateAddress(id, { pod: { namespace, name: 'web-0', uid: '' }, pools: ['default'] });

test('a policy created on one replica on etcd applies on the other at once, and unknown fields of the record stay', async () => {
  const second = await startReplica();
  const made = await create({ name: 'red-only', namespaces: ['blue', 'red'], pools: {} });
  await create({ name: 'red', namespaces: ['red'], pools: { names: ['default'] } });
  await expect(askPool(second, 'c1', 'blue')).rejects.toMatchObject({ code: 'REQUEST_DENIED' });
  expect(await askPool(second, 'c2', 'red')).toMatch(/^10\.65\.0\./);

  const annotated = (await stored(etcd))
    .replace('"name":"red-only"', '"name":"red-only","annotations":{"by":"ops"},"later":18446744073709551615')
    .replace('"items"', '"resourceHint":"x","items"');
  await write(etcd, annotated);
  // The other replica may not have received it yet: its comparison finds it.
  await second.peer.call(updateRequestPolicy, { requestPolicy: { ...made, namespaces: ['blue'] } }, limits());
  expect(await stored(etcd)).toBe(annotated.replace('["blue","red"]', '["blue"]'));
  await expect(askPool(first, 'c3', 'blue')).rejects.toMatchObject({ code: 'REQUEST_DENIED' });
  await expect(
    first.peer.call(updateRequestPolicy, { requestPolicy: { ...made, namespaces: [] } }, limits()),
  ).rejects.toMatchObject({ code: 'STALE_VERSION' });
});

/** The service on an embedded datastore after an import of the export. */
async function moved(file: Buffer): Promise<{ readonly caller: Caller; readonly lines: string }> {
  const place = new Place();
  const store = await EmbeddedStore.open({ directory: place.storeDirectory, pid: process.pid });
  await imported(store, file);
  const lines = recordLines(await exported(store));
  await store.close();
  return { caller: await serve(place), lines };
}

test('they are exported from etcd and imported into an embedded datastore byte for byte, and apply there', async () => {
  await create({ name: 'closed', addresses: { cidrs: ['10.65.0.7', 'fd00::/64'] }, pools: { selector: 'has(open)' } });
  await create({ name: 'red', namespaces: ['red'], pools: { names: ['default'] } });
  await write(etcd, (await stored(etcd)).replace('"name":"red"', '"name" : "red","later":18446744073709551615'));
  const file = await exported(etcd);
  const { caller, lines } = await moved(file);
  expect(lines).toBe(recordLines(file));
  expect(lines).toContain(KEY);
  expect(await list(caller)).toEqual(await list(first));
  await expect(askPool(caller, 'c1', 'blue')).rejects.toMatchObject({ code: 'REQUEST_DENIED' });
  expect(await askPool(caller, 'c2', 'red')).toMatch(/^10\.65\.0\./);

  // Malformed ones are moved unchanged, reported by the audit, and forbid all requests they may apply to.
  const text = (await stored(etcd)).replace('"namespaces"', '"serviceAccounts":["x"],"namespaces"');
  await write(etcd, text);
  const spoiled = await moved(await exported(etcd));
  expect(spoiled.lines).toContain(JSON.stringify(text).slice(1, -1));
  await expect(askPool(spoiled.caller, 'c1', 'red')).rejects.toMatchObject({
    code: 'STORE_CORRUPT',
    message: expect.stringContaining(KEY),
  });
  await expect(list(spoiled.caller)).rejects.toMatchObject({ code: 'STORE_CORRUPT' });
  expect(await spoiled.caller.allocateAddress('c2')).toMatch(/^10\.65\.0\./);
  const kinds = [FindingKind.FINDING_KIND_RECORD_UNREADABLE];
  const { findings } = await spoiled.caller.peer.call(
    AuditServiceService.audit,
    AuditRequest.fromPartial({ kinds }),
    limits(),
  );
  expect(findings.map(({ objects: [object] }) => object?.name)).toEqual([KEY]);
});

import { formatAddress } from '@podwire/shared/net/address';
import { expect, test } from 'vitest';

import { continueAddressRelease } from '../addresses/release.js';
import { readAll } from '../engine/testing/consistency.js';
import type { Store } from '../engine/store.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys, settleEvents } from '../engine/testing/stores.js';
import { encodeRecord, serialize } from '../records/json/registry.js';
import { address } from '../testing/allocations.js';
import { startIpam } from '../testing/ipam.js';
import { poolSpec } from '../testing/interleaved-operations.js';
import { NOW_MS, request } from '../testing/records.js';

/** Frees an address as another tool does, which knows no sessions. */
async function releaseByOtherTool(store: MemoryStore, text: string): Promise<void> {
  const view = await readAll(store, keys);
  for (const { value } of view.all('nodeSession')) view.remove({ kind: 'nodeSession', name: value.name });
  const releases = [{ address: address(text), handleId: undefined, sequenceNumber: undefined }];
  const records = continueAddressRelease(view, { releases, nowMs: NOW_MS }).changes.flatMap((change) =>
    change.type === 'put' || change.type === 'delete' ? [{ ...change, key: keys.of(change.record) }] : [],
  );
  const puts = records.flatMap(({ type, key, record }) =>
    type === 'put' ? [{ key, value: serialize(encodeRecord(record, undefined)) }] : [],
  );
  const deletes = records.flatMap(({ type, key }) => (type === 'delete' ? [key] : []));
  await store.commit({ comparisons: [], puts, deletes }, forever);
}

/** A connection to the store whose watch brings nothing before the promise ends. */
function laggingBy(store: MemoryStore, end: Promise<void>): Store {
  return {
    list: (...args) => store.list(...args),
    read: (...args) => store.read(...args),
    scan: (...args) => store.scan(...args),
    revision: (...args) => store.revision(...args),
    commit: (...args) => store.commit(...args),
    close: () => store.close(),
    async *watch(...args) {
      await end;
      yield* store.watch(...args);
    },
  };
}

test('a replica whose watch lags gives a lease that another tool released to no pod', async () => {
  const store = new MemoryStore();
  const { ipam } = await startIpam(store);
  await ipam.pools.create(poolSpec('p', '10.0.0.0/26'), forever);
  const session = { bootId: 'b1', generation: 1, revision: 0 };
  // Session and block exist before the other replica starts.
  await ipam.addresses.allocate(request('c1', { nodeName: 'n1' }), forever);
  const opening = { ...session, nodeName: 'n1', machineId: 'm1', expectedGeneration: 0, last: undefined, address: '' };
  await ipam.leases.openSession(opening, forever);
  let letWatchGo = (): void => undefined;
  const watched = new Promise<void>((resolve) => (letWatchGo = resolve));
  const lagging = await startIpam(laggingBy(store, watched));

  const { leases } = await ipam.leases.lease({ nodeName: 'n1', bootId: 'b1', family: 4, count: 1, session }, forever);
  expect(leases).toHaveLength(1);
  const lease = formatAddress(leases[0]!.address);
  await releaseByOtherTool(store, lease);

  const asked = request('c2', { nodeName: 'n2', addresses: [address(lease)] });
  const allocating = lagging.ipam.addresses.allocate(asked, forever);
  allocating.catch(() => undefined);
  await settleEvents();
  letWatchGo();
  await expect(allocating).rejects.toMatchObject({ code: 'ADDRESS_IN_USE' });
});

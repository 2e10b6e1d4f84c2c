import {
  AddressServiceService,
  AssignAddressesRequest,
  SetAttributesRequest,
  type AddressHolder,
} from '@podwire/proto/podwire/ipam/v1/address';
import { AddressUse } from '@podwire/proto/podwire/ipam/v1/pool';
import { afterEach, expect, test } from 'vitest';

import { EtcdServer } from '../engine/testing/etcd-server.js';
import { Caller, Place } from '../testing/service.js';

/** An address that moves from one owner to another, like a migrating virtual machine's, on each kind of datastore. */

const { assignAddresses, getAddress, setAttributes } = AddressServiceService;
const HANDLE = 'net.vmi.vms.a';
const SOURCE = { pod: 'launcher-1', namespace: 'vms' };
const TARGET = { pod: 'launcher-2', namespace: 'vms', node: 'n2' };

const cleanups: (() => Promise<void> | void)[] = [];
const limits = () => ({ deadlineMs: Date.now() + 60_000 });

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function start(store: 'embedded' | 'etcd'): Promise<() => Promise<Caller>> {
  const server = store === 'etcd' ? await EtcdServer.start() : undefined;
  if (server) cleanups.push(() => server.dispose());
  const place = new Place();
  cleanups.push(() => place.remove());
  const etcd = { PODWIRE_IPAM_ETCD_ENDPOINTS: server?.url ?? '', PODWIRE_IPAM_UNKNOWN_NODES: 'register' };
  let end = () => Promise.resolve();
  cleanups.push(() => end());
  return async () => {
    await end();
    const service = await place.start(server ? { PODWIRE_IPAM_STORE: 'etcd', ...etcd } : {});
    const caller = new Caller(place.address);
    end = () => {
      caller.close();
      return service.stop();
    };
    return caller;
  };
}

test.each(['embedded', 'etcd'] as const)('an address changes its owner, on %s', async (store) => {
  const restart = await start(store);
  let caller = await restart();
  const asked = {
    handleId: HANDLE,
    nodeName: 'n1',
    ipv4Count: 1,
    attributes: SOURCE,
    use: AddressUse.ADDRESS_USE_WORKLOAD,
  };
  const { addresses } = await caller.peer.call(assignAddresses, AssignAddressesRequest.fromPartial(asked), limits());
  const address = addresses[0]!.address.split('/')[0]!;
  const get = async () => (await caller.peer.call(getAddress, { address }, limits())).holder!;
  const set = async (change: Parameters<typeof SetAttributesRequest.fromPartial>[0]): Promise<AddressHolder> => {
    const message = SetAttributesRequest.fromPartial({ address, handleId: HANDLE, ...change });
    return (await caller.peer.call(setAttributes, message, limits())).holder!;
  };
  const source = (await get()).attributes;
  expect(await get()).toMatchObject({ attributes: SOURCE, alternateAttributes: {} });

  // One of two concurrent targets is accepted.
  const requests = ['launcher-2', 'launcher-3'].map((pod) =>
    set({ expectedAlternate: { values: {} }, alternate: { values: { ...TARGET, pod } } }),
  );
  expect((await Promise.allSettled(requests)).map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
  await set({ alternate: { values: TARGET } });
  caller = await restart();
  expect(await get()).toMatchObject({ attributes: source, alternateAttributes: TARGET });

  const swap = {
    ...{ expected: { values: source }, attributes: { values: TARGET } },
    ...{ expectedAlternate: { values: TARGET }, alternate: { values: source } },
  };
  expect(await set(swap)).toMatchObject({ attributes: TARGET, alternateAttributes: source });
  await expect(set(swap)).rejects.toMatchObject({ code: 'ALLOCATION_MISMATCH' });
  await expect(set({ handleId: 'net.other', alternate: { values: {} } })).rejects.toMatchObject({
    code: 'ALLOCATION_MISMATCH',
  });
  await expect(set({})).rejects.toMatchObject({ violations: [{ field: 'attributes' }] });
  expect(await get()).toMatchObject({ attributes: TARGET, alternateAttributes: source });
  expect(await set({ alternate: { values: {} } })).toMatchObject({ attributes: TARGET, alternateAttributes: {} });
});

import {
  AddressReleaseResult,
  AddressServiceService,
  AddressState,
  type AddressRelease,
} from '@podwire/proto/podwire/ipam/v1/address';
import { AffinityReleaseResult, AffinityServiceService, OwnerKind } from '@podwire/proto/podwire/ipam/v1/affinity';
import { HandleServiceService, ListHandlesRequest } from '@podwire/proto/podwire/ipam/v1/handle';
import { HistoryServiceService } from '@podwire/proto/podwire/ipam/v1/history';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import type { RunningService } from '../service.js';
import { Caller, Place } from '../testing/service.js';

let place: Place;
let service: RunningService;
let caller: Caller;

beforeEach(async () => {
  place = new Place();
  service = await place.start({ PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/26' });
  caller = new Caller(place.address);
});

afterEach(async () => {
  caller.close();
  await service.stop();
  place.remove();
});

const limits = () => ({ deadlineMs: Date.now() + 30_000 });
const page = { pageSize: 0, pageToken: '' };

/** The invalid fields of an answer. */
async function wrongFields(call: Promise<unknown>): Promise<string[]> {
  const error: unknown = await call.then(
    () => undefined,
    (failure: unknown) => failure,
  );
  expect(error).toMatchObject({ code: 'INVALID_REQUEST' });
  return JSON.parse(JSON.stringify(error)).violations.map(({ field }: { field: string }) => field);
}

const releaseAddresses = (...releases: AddressRelease[]) =>
  caller.peer.call(AddressServiceService.releaseAddresses, { releases }, limits());
const getAddress = (address: string) => caller.peer.call(AddressServiceService.getAddress, { address }, limits());

describe('addresses', () => {
  test('are reported, released under conditions, and recorded in the history', async () => {
    const given = await caller.allocate('c1');
    const { sequenceNumber = 0n } = given.endpoint?.addresses[0] ?? {};
    expect(await getAddress('10.65.0.0')).toMatchObject({
      state: AddressState.ADDRESS_STATE_ALLOCATED,
      blockCidr: '10.65.0.0/26',
      poolName: 'default',
      holder: { handleId: 'net.c1', attributes: { node: 'node-1', interface: 'eth0' }, sequenceNumber },
    });
    const { addresses } = await releaseAddresses(
      { address: '10.65.0.0', sequenceNumber: sequenceNumber + 1n },
      { address: '10.65.0.9' },
      { address: '10.65.0.9' },
    );
    expect(addresses.map(({ address, result, holder }) => [address, result, holder?.handleId])).toEqual([
      ['10.65.0.0', AddressReleaseResult.ADDRESS_RELEASE_RESULT_MISMATCH, 'net.c1'],
      ['10.65.0.9', AddressReleaseResult.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED, undefined],
    ]);
    const released = await releaseAddresses({ address: '10.65.0.0', handleId: 'net.c1', sequenceNumber });
    expect(released.addresses[0]?.result).toBe(AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED);
    expect((await getAddress('10.65.0.0')).state).toBe(AddressState.ADDRESS_STATE_FREE);
    const asked = { subject: { $case: 'address', value: '10.65.0.0' }, from: undefined, until: undefined } as const;
    const history = await caller.peer.call(HistoryServiceService.getAddressHistory, { ...asked, ...page }, limits());
    expect(history.tenures).toMatchObject([{ handleId: 'net.c1', sequenceNumber, releaseTime: expect.any(Date) }]);
    const at = { address: '10.65.0.0', time: history.tenures[0]?.allocateTime };
    expect(await caller.peer.call(HistoryServiceService.queryAt, at, limits())).toMatchObject({
      tenure: { handleId: 'net.c1' },
      covered: true,
    });
  });

  test('that are malformed are all refused in one answer', async () => {
    const call = releaseAddresses(
      { address: 'x' },
      { address: '10.0.0.1', handleId: 'a/b' },
      { address: '10.0.0.2', handleId: 'a' },
      { address: '10.0.0.2', handleId: 'b' },
      { address: '10.0.0.3', netns: { bootId: 'x', inode: 0n } },
      { address: '10.0.0.3' },
    );
    const wrongNetns = ['releases[4].netns.boot_id', 'releases[4].netns.inode', 'releases[5]'];
    const wrong = ['releases[0].address', 'releases[1].handle_id', 'releases[3]', ...wrongNetns];
    expect(await wrongFields(call)).toEqual(wrong);
    const many = Array.from({ length: 1001 }, () => ({ address: '10.0.0.1' }));
    expect(await wrongFields(releaseAddresses(...many))).toEqual(['releases']);
    expect(await wrongFields(getAddress('10.0.0.0/32'))).toEqual(['address']);
  });

  test('keep or change their attributes', async () => {
    await caller.allocate('c1');
    const { holder } = await getAddress('10.65.0.0');
    const set = (values: Record<string, string>, expected?: Record<string, string>) => {
      const change = { address: '10.65.0.0', attributes: { values }, expected: expected && { values: expected } };
      return caller.peer.call(AddressServiceService.setAttributes, change, limits());
    };
    const before = holder?.attributes ?? {};
    expect(await set({ ...before, note: 'x' }, before)).toMatchObject({ holder: { attributes: { note: 'x' } } });
    await expect(set({ ...before, note: 'y' }, before)).rejects.toMatchObject({ code: 'ALLOCATION_MISMATCH' });
    const missing = caller.peer.call(
      AddressServiceService.setAttributes,
      { address: 'x', attributes: undefined },
      limits(),
    );
    expect(await wrongFields(missing)).toEqual(['attributes', 'address']);
  });
});

test('handles are listed, read and released', async () => {
  for (const id of ['c1', 'c2']) await caller.allocate(id);
  const listed = (rest: Partial<ListHandlesRequest>) =>
    caller.peer.call(HandleServiceService.listHandles, ListHandlesRequest.fromPartial(rest), limits());
  const list = await listed({ pageSize: 1 });
  expect(list.handles).toEqual([{ handleId: 'net.c1', blocks: [{ cidr: '10.65.0.0/26', addressCount: 1 }] }]);
  const next = { pageSize: 5, pageToken: list.nextPageToken };
  const rest = await listed(next);
  expect([rest.handles.map(({ handleId }) => handleId), rest.nextPageToken]).toEqual([['net.c2'], '']);
  expect((await listed({ prefix: 'net.c2' })).handles).toMatchObject([{ handleId: 'net.c2' }]);
  expect((await listed({ prefix: 'podwire-lease.' })).handles).toEqual([]);
  expect(await wrongFields(listed({ ...next, prefix: 'net.' }))).toEqual(['page_token']);
  expect(await wrongFields(listed({ prefix: 'x'.repeat(513) }))).toEqual(['prefix']);
  const get = () => caller.peer.call(HandleServiceService.getHandle, { handleId: 'net.c1', ...page }, limits());
  expect((await get()).addresses).toMatchObject([{ address: '10.65.0.0', blockCidr: '10.65.0.0/26' }]);
  const release = (handleId: string) =>
    caller.peer.call(HandleServiceService.releaseHandle, { handleId, searchAllBlocks: false }, limits());
  expect(await release('net.c1')).toMatchObject({ addresses: ['10.65.0.0/32'], keptAddresses: 0n });
  expect(await release('net.c1')).toMatchObject({ addresses: [] });
  await expect(get()).rejects.toMatchObject({ code: 'HANDLE_NOT_FOUND' });
  expect(await wrongFields(release(''))).toEqual(['handle_id']);
});

test('blocks are claimed, listed and released', async () => {
  await caller.createPool({ name: 'second', cidr: '10.66.0.0/25' });
  const claimed = await caller.peer.call(
    AffinityServiceService.claimAffinity,
    { cidr: '10.66.0.0/25', nodeName: 'node-9' },
    limits(),
  );
  expect(claimed).toEqual({ claimed: ['10.66.0.0/26', '10.66.0.64/26'], refused: [] });
  const query = { pageSize: 1, pageToken: '', nodeName: 'node-9', poolName: 'second' };
  const first = await caller.peer.call(AffinityServiceService.listAffinities, query, limits());
  const second = { ...query, pageToken: first.nextPageToken };
  const { affinities, nextPageToken } = await caller.peer.call(AffinityServiceService.listAffinities, second, limits());
  expect([affinities[0]?.blockCidr, affinities[0]?.backed, nextPageToken]).toEqual(['10.66.0.64/26', true, '']);
  const owner = { kind: OwnerKind.OWNER_KIND_HOST, name: 'node-9' };
  const scope = { $case: 'owner', value: owner } as const;
  const release = { scope, mustBeEmpty: true };
  const ended = await caller.peer.call(AffinityServiceService.releaseAffinity, release, limits());
  expect(ended.affinities.map(({ result }) => result)).toEqual([
    AffinityReleaseResult.AFFINITY_RELEASE_RESULT_REMOVED,
    AffinityReleaseResult.AFFINITY_RELEASE_RESULT_REMOVED,
  ]);
  const none = caller.peer.call(
    AffinityServiceService.releaseAffinity,
    { scope: undefined, mustBeEmpty: false },
    limits(),
  );
  expect(await wrongFields(none)).toEqual(['scope']);
});

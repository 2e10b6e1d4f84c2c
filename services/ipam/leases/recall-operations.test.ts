import { AddressServiceService, AssignAddressesRequest, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import {
  LeaseAddressesRequest,
  LeaseServiceService,
  ReturnAddressesRequest,
  type LeasedAddress,
  type NodeSession,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { NodeServiceService, RegisterNodeRequest, TunnelKind } from '@podwire/proto/podwire/ipam/v1/node';
import { AddressUse, EncapsulationMode } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { FakeClock } from '@podwire/shared/testing/clock';
import { recordingLog } from '@podwire/shared/testing/server';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { needOf } from '../addresses/allocate/allocate.js';
import { Events } from '../engine/events.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, instantClock, startReplica } from '../engine/testing/stores.js';
import type { RecordValue } from '../records/view.js';
import { claimedBlock, fullBlock, NOW_MS, nodeRecord, poolRecord, request } from '../testing/records.js';
import { clientLimits, failureOf, Served } from '../testing/service.js';
import { LeaseRecalls } from './recall-operations.js';

/** A service with one pool of 16 addresses, of which node-1 leases two and uses the rest. */

const served = new Served();
let leased: readonly LeasedAddress[];
let session: NodeSession;

const BOOT = '11111111-1111-4111-8111-111111111111';

beforeEach(async () => {
  await served.begin({ PODWIRE_IPAM_DEFAULT_POOL_CIDR: '' });
  const vxlanMode = EncapsulationMode.ENCAPSULATION_MODE_ALWAYS;
  await served.caller.createPool({ name: 'small', cidr: '10.65.0.0/28', blockSize: 29, vxlanMode });
  session = await served.caller.openSession('node-1', BOOT);
  const message = LeaseAddressesRequest.fromPartial({
    nodeName: 'node-1',
    bootId: BOOT,
    session,
    family: IpFamily.IP_FAMILY_IPV4,
    count: 4,
  });
  ({ addresses: leased } = await served.caller.peer.call(LeaseServiceService.leaseAddresses, message, clientLimits()));
  expect(leased).toHaveLength(2);
  await Promise.all(
    Array.from({ length: 14 }, (_, index) => served.caller.allocateAddress(`c${index}`, { nodeName: 'node-1' })),
  );
  const node = RegisterNodeRequest.fromPartial({ name: 'node-2', ipv4Address: '192.0.2.2/24' });
  await served.caller.peer.call(NodeServiceService.registerNode, node, clientLimits());
});

afterEach(() => served.end());

const allocate = (id: string, addresses: string[] = []) =>
  served.caller.allocateAddress(id, { nodeName: 'node-2', addresses });

async function recalls(): Promise<bigint> {
  const { node } = await served.caller.peer.call(NodeServiceService.getNode, { name: 'node-1' }, clientLimits());
  return node!.leaseRecallCount;
}

async function untilRecalled(): Promise<void> {
  while ((await recalls()) === 0n);
}

async function giveBack(...leases: readonly LeasedAddress[]): Promise<void> {
  const returns = leases.map(({ address, sequenceNumber }) => ({ allocation: { address, sequenceNumber } }));
  const message = ReturnAddressesRequest.fromPartial({ nodeName: 'node-1', session, returns });
  await served.caller.peer.call(LeaseServiceService.returnAddresses, message, clientLimits());
}

test('an allocation without a free address gets a lease that its node returns', async () => {
  const waiting = [allocate('new'), allocate('other')];
  await untilRecalled();
  await giveBack(...leased);
  const given = await Promise.all(waiting);
  expect(given.sort()).toEqual(leased.map(({ address }) => `${address}/32`).sort());
  // The second allocation finds the node asked.
  expect(await recalls()).toBe(1n);
  expect(served.place.log).toContain('recalled 2 unbound leases of 1 node');
});

test('a requested address that is leased comes as well', async () => {
  const [first] = leased;
  const waiting = allocate('new', [first!.address]);
  await untilRecalled();
  await giveBack(first!);
  expect(await waiting).toBe(`${first!.address}/32`);
});

test('a tunnel gets a lease that its node returns', async () => {
  const tunnel = { nodeName: 'node-2', kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV4 };
  const waiting = served.caller.peer.call(NodeServiceService.allocateTunnelAddress, tunnel, clientLimits());
  await untilRecalled();
  await giveBack(...leased);
  expect(leased.map(({ address }) => `${address}/32`)).toContain((await waiting).address);
});

test('a handle gets as many as there are, and the answer explains the rest', async () => {
  const message = AssignAddressesRequest.fromPartial({
    handleId: 'manual',
    nodeName: 'node-2',
    use: AddressUse.ADDRESS_USE_WORKLOAD,
    ipv4Count: 3,
  });
  const waiting = served.caller.peer.call(AddressServiceService.assignAddresses, message, clientLimits());
  await untilRecalled();
  const [first, second] = leased;
  await giveBack(first!);
  await giveBack(second!);
  const { addresses, families } = await waiting;
  expect(addresses.map(({ address }) => address).sort()).toEqual(leased.map(({ address }) => `${address}/32`).sort());
  expect(families).toMatchObject([{ requested: 3, assigned: 2, explanation: expect.stringContaining('small') }]);
});

test('an operator recalls the leases of a node; a node without leases is not asked', async () => {
  const recall = (nodeName: string) =>
    served.caller.peer.call(LeaseServiceService.recallLeases, { nodeName }, clientLimits());
  expect(await recall('node-1')).toEqual({ recalled: true });
  expect(await recalls()).toBe(1n);
  expect(await recall('node-2')).toEqual({ recalled: false });
  expect(await recall('unknown')).toEqual({ recalled: false });
  await expect(recall('')).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
});

/** Recalls of a service without gRPC, with other clocks. */
async function recallsOf(clock: Clock, ...records: readonly RecordValue[]): Promise<LeaseRecalls> {
  const { updater } = await startReplica(new MemoryStore());
  const changes = records.map((record) => ({ type: 'put', record }) as const);
  await updater.update('records', () => ({ changes, outcome: undefined }), { signal: forever });
  const { log } = recordingLog();
  return new LeaseRecalls({
    updates: updater,
    events: new Events(log),
    clock,
    newUid: () => 'uid',
    unknownNodes: 'refuse',
  });
}

test('a request that was refused before the return of a lease is repeated', async () => {
  const recalls = await recallsOf(instantClock);
  const refusal = new Failure('ADDRESS_IN_USE', 'another attachment has the address');
  const answers: (() => Promise<string>)[] = [() => Promise.reject(refusal), () => Promise.resolve('given')];
  const need = { demands: () => [], addresses: [{ family: 4, value: 1n }] } as const;
  expect(await recalls.attempt(need, () => answers.shift()!(), forever)).toBe('given');
});

test('is refused for the first reason when none comes', async () => {
  const started = performance.now();
  expect(await failureOf(allocate('new'))).toMatchObject({
    code: 'POOLS_EXHAUSTED',
    message: expect.stringContaining('no IPv4 address for net/new/eth0'),
  });
  expect(performance.now() - started).toBeGreaterThan(1900);
});

test('is refused without a wait when no node has a lease', async () => {
  const clock = new FakeClock();
  const pool = poolRecord('p', '10.0.0.0/29', { blockSizeBits: 29 });
  const recalls = await recallsOf(clock, pool, nodeRecord('n1'), ...claimedBlock(fullBlock('10.0.0.0/29', 'n1')));
  const refusal = new Failure('POOLS_EXHAUSTED', 'no address');
  const refused = recalls.attempt(needOf(request('new'), NOW_MS), () => Promise.reject(refusal), forever);
  await expect(refused).rejects.toBe(refusal);
  expect(clock.sleepsMs).toEqual([]);
});

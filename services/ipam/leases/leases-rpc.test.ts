import { setTimeout as sleep } from 'node:timers/promises';

import {
  AddressReleaseResult,
  AddressServiceService,
  AddressState,
  IpFamily,
} from '@podwire/proto/podwire/ipam/v1/address';
import { ConfigServiceService, UpdateConfigRequest } from '@podwire/proto/podwire/ipam/v1/config';
import { HistoryServiceService } from '@podwire/proto/podwire/ipam/v1/history';
import {
  AddressBinding,
  AddressReturn,
  BindAddressesRequest,
  LeaseAddressesRequest,
  LeaseServiceService,
  OpenSessionRequest,
  ReportInventoryRequest,
  ReturnAddressesRequest,
  type LeasedAddress,
  type NodeSession,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { beforeEach, describe, expect, test } from 'vitest';

import { attachment, clientLimits, failureOf, faultsOf, servedForEachTest } from '../testing/service.js';

/** Leases over gRPC, on a service with one pool 10.65.0.0/24. */

const served = servedForEachTest();

const BOOT = '11111111-1111-4111-8111-111111111111';
const NODE = 'node-1';
const ATTACHED = new Date('2026-08-22T06:33:25.250Z');

/** The sessions that the tests have opened, by node. */
const sessions = new Map<string, NodeSession>();

beforeEach(async () => {
  sessions.clear();
  sessions.set(NODE, await served.caller.openSession(NODE, BOOT));
});

const open = (rest: Partial<OpenSessionRequest> = {}) => {
  const { machineId } = served.caller;
  const message = OpenSessionRequest.fromPartial({ nodeName: NODE, machineId, bootId: BOOT, ...rest });
  return served.caller.peer.call(LeaseServiceService.openSession, message, clientLimits());
};

const lease = (rest: Partial<LeaseAddressesRequest> = {}) => {
  const session = sessions.get(rest.nodeName ?? NODE);
  const usual = { nodeName: NODE, bootId: BOOT, family: IpFamily.IP_FAMILY_IPV4, count: 4, session };
  const message = LeaseAddressesRequest.fromPartial({ ...usual, ...rest });
  return served.caller.peer.call(LeaseServiceService.leaseAddresses, message, clientLimits());
};

const bind = (bindings: readonly Partial<AddressBinding>[]) => {
  const messages = bindings.map((each) => AddressBinding.fromPartial({ attachTime: ATTACHED, ...each }));
  const message = BindAddressesRequest.fromPartial({ nodeName: NODE, session: sessions.get(NODE), bindings: messages });
  return served.caller.peer.call(LeaseServiceService.bindAddresses, message, clientLimits());
};

const giveBack = (returns: readonly Partial<AddressReturn>[]) => {
  const messages = returns.map((each) => AddressReturn.fromPartial(each));
  const message = ReturnAddressesRequest.fromPartial({
    nodeName: NODE,
    session: sessions.get(NODE),
    returns: messages,
  });
  return served.caller.peer.call(LeaseServiceService.returnAddresses, message, clientLimits());
};

/** A time on the clock that all share, later than what happened before. */
const laterTime = async (): Promise<Date> => {
  await sleep(5);
  return new Date();
};

const nameOf = ({ address, sequenceNumber }: LeasedAddress) => ({ address, sequenceNumber });

const stateOf = async (address: string): Promise<AddressState> =>
  (await served.caller.peer.call(AddressServiceService.getAddress, { address }, clientLimits())).state;

describe('an address', () => {
  test('is leased, bound and returned, and the history has the times of the node', async () => {
    const change = UpdateConfigRequest.fromPartial({ cooldownSeconds: 30 });
    await served.caller.peer.call(ConfigServiceService.updateConfig, change, clientLimits());
    const { addresses, explanation } = await lease();
    expect(explanation).toBe('');
    expect(addresses).toHaveLength(4);
    expect(addresses[0]).toMatchObject({ poolName: 'default', outdated: false });
    const [first, second] = addresses.map(nameOf);
    const attachTime = await laterTime();
    const pod = { namespace: 'default', name: 'web', uid: 'u' };
    const netns = { bootId: BOOT, inode: 7n };
    await laterTime();
    const { results } = await bind([
      { attachment: attachment('c1'), pod, netns, addresses: [first!], attachTime },
      { attachment: attachment('c2'), addresses: [{ ...second!, address: '10.64.0.1' }] },
    ]);
    expect(results[0]).toMatchObject({
      endpoint: { addresses: [{ address: `${first!.address}/32`, sequenceNumber: first!.sequenceNumber }], pod, netns },
      refusalCode: '',
      refusal: '',
    });
    expect(results[1]).toMatchObject({ endpoint: undefined, refusalCode: 'ALLOCATION_MISMATCH' });
    expect(results[1]!.refusal).toContain('10.64.0.1');
    expect((await lease({ count: 0 })).addresses.map(nameOf)).toEqual(addresses.slice(1).map(nameOf));

    const detachTime = await laterTime();
    await laterTime();
    const returned = await giveBack([
      { allocation: first!, attachment: attachment('c1'), netns, detachTime },
      { allocation: second! },
      { allocation: { address: '10.65.0.200', sequenceNumber: 1n } },
    ]);
    expect(returned.results).toEqual([
      AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED,
      AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED,
      AddressReleaseResult.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED,
    ]);
    expect(await stateOf(first!.address)).toBe(AddressState.ADDRESS_STATE_COOLING);
    expect(await stateOf(second!.address)).toBe(AddressState.ADDRESS_STATE_FREE);
    const subject = { $case: 'address', value: first!.address } as const;
    const asked = { subject, from: undefined, until: undefined, pageSize: 0, pageToken: '' };
    const { tenures } = await served.caller.peer.call(HistoryServiceService.getAddressHistory, asked, clientLimits());
    expect(tenures).toMatchObject([{ handleId: 'net.c1', allocateTime: attachTime, releaseTime: detachTime }]);
  });

  test('is leased to one node only', async () => {
    const counts = await Promise.all(
      ['a', 'b', 'c'].map(async (nodeName) => {
        sessions.set(nodeName, await served.caller.openSession(nodeName, BOOT));
        return (await lease({ nodeName, count: 20 })).addresses.map(nameOf);
      }),
    );
    const all = counts.flat().map(({ address }) => address);
    expect(new Set(all).size).toBe(all.length);
    expect(all.length).toBeGreaterThan(60 - 3);
  });

  test('leases of a former boot end, and many are bound in one call', async () => {
    const before = await lease({ count: 24 });
    const bootId = '22222222-2222-4222-8222-222222222222';
    const former = sessions.get(NODE)!;
    sessions.set(NODE, { ...(await open({ bootId, expectedGeneration: 1n })), bootId });
    const { addresses } = await lease({ bootId, count: 24 });
    expect(addresses).toHaveLength(24);
    const bindings = addresses.map((each, index) => ({
      attachment: attachment(`c${index}`),
      addresses: [nameOf(each)],
    }));
    const { results } = await bind(bindings);
    expect(results.map(({ refusalCode }) => refusalCode)).toEqual(bindings.map(() => ''));
    expect((await lease({ bootId, count: 0 })).addresses).toEqual([]);
    sessions.set(NODE, former);
    const late = bind([{ attachment: attachment('late'), addresses: [nameOf(before.addresses[0]!)] }]);
    expect((await failureOf(late)).code).toBe('SESSION_SUPERSEDED');
  });
});

describe('a node with a session', () => {
  const report = (rest: Partial<ReportInventoryRequest>) => {
    const message = ReportInventoryRequest.fromPartial({ nodeName: NODE, digest: Buffer.alloc(32), ...rest });
    return served.caller.peer.call(LeaseServiceService.reportInventory, message, clientLimits());
  };

  test('leases, and reports what it holds', async () => {
    const session = sessions.get(NODE)!;
    const { generation, revision } = session;
    expect(generation).toBe(1n);
    expect(await open()).toMatchObject({ opened: false, generation: 1n });
    const late = { ...session, generation: 0n };
    expect((await failureOf(lease({ session: late }))).code).toBe('SESSION_SUPERSEDED');
    const leased = await lease({ count: 2 });
    expect(leased).toMatchObject({ limit: 32, validFor: { seconds: 3600n }, coolDown: { seconds: 0n } });
    expect(leased.sessionRevision).toBeGreaterThan(revision);
    const leases = leased.addresses.map(nameOf);
    expect(await report({ session, whole: true, leases })).toMatchObject({ equal: true, findings: [], unknown: [] });
    const pod = {
      attachment: attachment('c1'),
      addresses: [{ address: '10.65.0.200', sequenceNumber: 9n }],
      ended: false,
    };
    const { findings, unknown } = await report({ session, whole: true, leases: leases.slice(1), attachments: [pod] });
    expect(findings).toMatchObject([{ attachment: attachment('c1'), allocation: pod.addresses[0], holder: '' }]);
    expect(unknown).toMatchObject([{ allocation: leases[0], attachment: undefined }]);
    expect(await faultsOf(report({ digest: Buffer.alloc(3) }))).toEqual([
      'digest has 3 bytes; must have 32',
      'session is missing',
    ]);
  });
});

describe('a request is refused with every fault', () => {
  test('for leases', async () => {
    const session = undefined;
    const wrong = { nodeName: 'A', bootId: 'x', count: 257, family: IpFamily.UNRECOGNIZED, session };
    expect(await faultsOf(lease(wrong))).toEqual([
      expect.stringContaining('node_name '),
      'boot_id is not a UUID in lower case',
      'count is 257; at most 256 are allowed',
      'family is -1; must be 4 (IPv4) or 6 (IPv6)',
      'session is missing',
    ]);
    const ofOtherBoot = { bootId: '22222222-2222-4222-8222-222222222222', generation: 1n, revision: 1n };
    expect(await faultsOf(lease({ session: ofOtherBoot }))).toEqual(['session.boot_id differs from boot_id']);
  });

  test('for bindings', async () => {
    const name = { address: '10.65.0.1', sequenceNumber: 1n };
    const faults = await faultsOf(
      bind([
        { attachment: attachment('c1'), addresses: [name] },
        { attachment: attachment('c1'), addresses: [name, { ...name, address: '10.65.0.2' }], attachTime: undefined },
        { pod: { namespace: 'A', name: 'x', uid: '' }, addresses: [{ ...name, address: 'x' }] },
        { attachment: attachment('c3'), netns: { bootId: BOOT, inode: 0n } },
      ]),
    );
    expect(faults).toEqual([
      'bindings[1].addresses[1] is a second IPv4 address; an attachment has one of each family',
      'bindings[1].attach_time is missing',
      'bindings[1].attachment is repeated; bind all of its addresses together',
      'bindings[2].attachment is missing',
      expect.stringContaining('bindings[2].pod.namespace '),
      'bindings[2].addresses[0].address must be an IPv4 or IPv6 address without prefix length',
      'bindings[3].netns.inode is 0; inodes are numbered from 1',
      'bindings[3].addresses is empty',
    ]);
  });

  test('for returns', async () => {
    const allocation = { address: '10.65.0.1', sequenceNumber: 1n };
    const faults = await faultsOf(
      giveBack([
        { allocation },
        { allocation, netns: { bootId: BOOT, inode: 7n } },
        { attachment: attachment('c1', '') },
      ]),
    );
    expect(faults).toEqual([
      'returns[1].netns is set without an attachment',
      'returns[1].allocation.address is 10.65.0.1 a second time',
      'returns[2].allocation.address must be an IPv4 or IPv6 address without prefix length',
      expect.stringContaining('returns[2].attachment.interface_name '),
      'returns[2].detach_time is missing',
    ]);
  });

  test('beyond the limit of a call', async () => {
    const allocation = { address: '10.65.0.1', sequenceNumber: 1n };
    const many = Array.from({ length: 257 }, () => ({ allocation }));
    expect(await faultsOf(giveBack(many))).toContain('returns has 257 entries; at most 256 are allowed');
  });
});

test('a node that is not registered gets no session, and without one no lease', async () => {
  expect((await failureOf(open({ nodeName: 'other' }))).code).toBe('NODE_NOT_FOUND');
  const session = { bootId: BOOT, generation: 1n, revision: 1n };
  expect((await failureOf(lease({ nodeName: 'other', session }))).code).toBe('SESSION_SUPERSEDED');
});

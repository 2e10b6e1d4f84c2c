import {
  AddressServiceService,
  AddressState,
  AssignAddressesRequest,
  BlockOrigin,
  BlockVerdict,
  ExplainAllocationRequest,
  IpFamily,
  type AllocateRequest,
} from '@podwire/proto/podwire/ipam/v1/address';
import { LeaseServiceService } from '@podwire/proto/podwire/ipam/v1/lease';
import { AddressUse, AssignmentMode } from '@podwire/proto/podwire/ipam/v1/pool';
import { describe, expect, test } from 'vitest';

import { attachment, clientLimits, failureOf, Served, servedForEachTest } from '../../testing/service.js';

/** Allocation over gRPC, on a service with one pool 10.65.0.0/24. */

const served = servedForEachTest();

const assign = (rest: Partial<AssignAddressesRequest>) => {
  const usual = { handleId: 'vm-1', nodeName: 'node-1', use: AddressUse.ADDRESS_USE_WORKLOAD };
  const message = AssignAddressesRequest.fromPartial({ ...usual, ...rest });
  return served.caller.peer.call(AddressServiceService.assignAddresses, message, clientLimits());
};

const explain = (
  request: Partial<AllocateRequest> | undefined,
  maxBlocks = 0,
  rest: Partial<ExplainAllocationRequest> = {},
) => {
  const usual = { attachment: attachment('c1'), nodeName: 'node-1' };
  const asked = { request: request && { ...usual, ...request }, maxBlocks, ...rest };
  const message = ExplainAllocationRequest.fromPartial(asked);
  return served.caller.peer.call(AddressServiceService.explainAllocation, message, clientLimits());
};

/** A boot of a node. */
const BOOT = '0f8fad5b-d9cb-469f-a165-70867728950e';

describe('Allocate', () => {
  test('takes from requested pools, by name and by CIDR', async () => {
    await served.caller.createPool({
      name: 'm',
      cidr: '10.66.0.0/24',
      assignmentMode: AssignmentMode.ASSIGNMENT_MODE_MANUAL,
    });
    expect(await served.caller.allocateAddress('c1')).toMatch(/^10\.65\./);
    expect(await served.caller.allocateAddress('c2', { pools: ['m'] })).toMatch(/^10\.66\./);
    expect(await served.caller.allocateAddress('c3', { pools: ['10.66.0.0/24'] })).toMatch(/^10\.66\./);
  });

  test('respects the labels of the namespace', async () => {
    const allowedUses = [AddressUse.ADDRESS_USE_WORKLOAD];
    await served.caller.createPool({
      name: 'blue',
      cidr: '10.64.0.0/24',
      namespaceSelector: 'team == "blue"',
      allowedUses,
    });
    expect(await served.caller.allocateAddress('c1', { namespaceLabels: { team: 'blue' } })).toMatch(/^10\.64\./);
    expect(await served.caller.allocateAddress('c2', { namespaceLabels: { team: 'red' } })).toMatch(/^10\.65\./);
    expect(await served.caller.allocateAddress('c3')).toMatch(/^10\.65\./);
  });

  test('allocates a requested address, and names its holder when it is in use', async () => {
    expect(await served.caller.allocateAddress('c1', { addresses: ['10.65.0.77'] })).toBe('10.65.0.77/32');
    expect(await served.caller.allocateAddress('c1', { addresses: ['10.65.0.77'] })).toBe('10.65.0.77/32');
    expect(await failureOf(served.caller.allocate('c2', { addresses: ['10.65.0.77'] }))).toMatchObject({
      code: 'ADDRESS_IN_USE',
      message: expect.stringContaining('10.65.0.77 is held by handle net.c1 on node node-1'),
      details: { address: '10.65.0.77', handle: 'net.c1' },
    });
  });

  test('implies the families of the requested addresses', async () => {
    await served.caller.createPool({ name: 'six', cidr: 'fd00::/64' });
    const { endpoint } = await served.caller.allocate('c1', { addresses: ['fd00::5'] });
    expect(endpoint?.addresses.map(({ address }) => address)).toEqual(['fd00::5/128']);
  });

  test('refuses invalid requests with every error, and changes nothing', async () => {
    const failure = await failureOf(
      served.caller.allocate('c1', {
        families: [IpFamily.IP_FAMILY_IPV6],
        addresses: ['10.65.0.1/32', '10.65.0.1', '10.65.0.2'],
        pools: ['Not_A_Pool', '10.65.0.1/24', 'default'],
        namespaceLabels: { ['x'.repeat(400)]: '', ok: 'y'.repeat(64) },
        maxBlocksPerNode: 1_000_001,
      }),
    );
    expect(failure.code).toBe('INVALID_REQUEST');
    expect(failure.violations.map(({ field }) => field)).toEqual([
      'addresses[0]',
      'addresses[0]',
      'addresses[1]',
      'addresses[1]',
      'pools[0]',
      'pools[1]',
      'namespace_labels',
      'namespace_labels["ok"]',
      'max_blocks_per_node',
    ]);
    expect(await served.caller.allBlocks()).toEqual([]);
  });

  test('refuses pools that do not exist, by their place in the request', async () => {
    const failure = await failureOf(served.caller.allocate('c1', { pools: ['default', 'nope'] }));
    expect(failure.violations.map(({ field }) => field)).toEqual(['pools[1]']);
  });
});

describe('a node that is not registered', () => {
  test('is refused where the settings say so, with the next step', async () => {
    const strict = new Served();
    await strict.begin({ PODWIRE_IPAM_UNKNOWN_NODES: 'refuse' });
    try {
      expect(await failureOf(strict.caller.allocate('c1'))).toMatchObject({
        code: 'NODE_NOT_FOUND',
        message: expect.stringContaining('node "node-1" is not registered; register it'),
      });
    } finally {
      await strict.end();
    }
  });
});

describe('AssignAddresses', () => {
  test('gives a handle addresses of both families, and a repeat returns them', async () => {
    await served.caller.createPool({ name: 'six', cidr: 'fd00::/120' });
    const asked = { ipv4Count: 70, ipv6Count: 2, maxPerHandle: 70, attributes: { 'vmi-name': 'db' } };
    const first = await assign(asked);
    expect(first.addresses).toHaveLength(72);
    expect(first.families).toEqual([
      { family: IpFamily.IP_FAMILY_IPV4, requested: 70, assigned: 70, explanation: '', pools: [] },
      { family: IpFamily.IP_FAMILY_IPV6, requested: 2, assigned: 2, explanation: '', pools: [] },
    ]);
    expect(first.addresses.every(({ alreadyHeld }) => !alreadyHeld)).toBe(true);
    const again = await assign({ ...asked, ipv6Count: 0 });
    expect(again.addresses).toHaveLength(70);
    expect(again.addresses.every(({ alreadyHeld }) => alreadyHeld)).toBe(true);
    const [block] = await served.caller.allBlocks();
    expect(block?.allocations[0]).toMatchObject({
      handleId: 'vm-1',
      attributes: { 'vmi-name': 'db', node: 'node-1', timestamp: expect.stringMatching(/ \+0000 UTC$/) },
    });
  });

  test('answers 256 of 257 with the pools and blocks that were looked at', async () => {
    const { addresses, families } = await assign({ ipv4Count: 257 });
    expect(addresses).toHaveLength(256);
    expect(families).toMatchObject([
      {
        requested: 257,
        assigned: 256,
        explanation: expect.stringContaining('pool "default" 10.65.0.0/24: all 4 blocks are full'),
        pools: [{ name: 'default', blocks: [{ verdict: BlockVerdict.BLOCK_VERDICT_FULL }, {}, {}, {}] }],
      },
    ]);
    expect(await failureOf(assign({ handleId: 'vm-2', ipv4Count: 1, allOrNothing: true }))).toMatchObject({
      code: 'POOLS_EXHAUSTED',
    });
  });

  test('gives load balancers addresses of their own pools, and no node', async () => {
    await served.caller.createPool({
      name: 'lb',
      cidr: '10.99.0.0/28',
      allowedUses: [AddressUse.ADDRESS_USE_LOAD_BALANCER],
      blockSize: 30,
    });
    const { addresses } = await assign({ nodeName: '', use: AddressUse.ADDRESS_USE_LOAD_BALANCER, ipv4Count: 1 });
    expect(addresses[0]?.poolName).toBe('lb');
  });

  test('refuses invalid requests with every error', async () => {
    const failure = await failureOf(
      assign({
        handleId: 'a/b',
        nodeName: 'N',
        use: AddressUse.ADDRESS_USE_UNSPECIFIED,
        ipv4Count: 4097,
        maxPerHandle: 5,
        addresses: ['10.65.0.1', '10.65.0.1'],
        pools: ['x_y'],
        attributes: { node: 'other', network: 'net', '': 'x', long: 'x'.repeat(1025) },
      }),
    );
    expect(failure.violations.map(({ field }) => field)).toEqual([
      'handle_id',
      'use',
      'ipv4_count',
      'ipv4_count',
      'ipv4_count',
      'node_name',
      'addresses',
      'pools[0]',
      'attributes["node"]',
      'attributes["network"]',
      'attributes',
      'attributes["long"]',
    ]);
    const nothing = await failureOf(assign({}));
    expect(nothing.violations.map(({ field }) => field)).toEqual(['ipv4_count']);
    expect(await served.caller.allBlocks()).toEqual([]);
  });

  test('refuses the handles of leases', async () => {
    const failure = await failureOf(assign({ handleId: 'podwire-lease.node-1', ipv4Count: 1 }));
    expect(failure.violations).toMatchObject([{ field: 'handle_id' }]);
  });
});

describe('ExplainAllocation', () => {
  test('returns the address and its block’s origin, and allocates nothing', async () => {
    const before = await explain({});
    expect(before).toMatchObject({ alreadyAllocated: false, refusalCode: '', families: [{ morePools: 0 }] });
    expect(before.families[0]?.grant?.origin).toBe(BlockOrigin.BLOCK_ORIGIN_CLAIMED);
    expect(before.families[0]?.pools).toMatchObject([{ passedOverReason: '', blocks: [], noClaimReason: '' }]);
    expect(await served.caller.allBlocks()).toEqual([]);
    expect(await served.caller.allocateAddress('c1')).toBe(before.families[0]?.grant?.address);
    const held = await explain({});
    expect(held.alreadyAllocated).toBe(true);
    expect(held.families[0]?.grant?.origin).toBe(BlockOrigin.BLOCK_ORIGIN_UNSPECIFIED);
    const next = await explain({ attachment: attachment('c2') });
    expect(next.families[0]?.grant?.origin).toBe(BlockOrigin.BLOCK_ORIGIN_OWN);
    expect(next.families[0]?.pools[0]?.blocks).toMatchObject([
      { verdict: BlockVerdict.BLOCK_VERDICT_OPEN, reason: 'has room (1 of 64 addresses in use)' },
    ]);
  });

  test('returns a refusal with its code, and every pool and block', async () => {
    await served.caller.createPool({ name: 'off', cidr: '10.66.0.0/24', disabled: true });
    await assign({ ipv4Count: 256 });
    const { refusalCode, refusal, families } = await explain({}, 3);
    expect(refusalCode).toBe('POOLS_EXHAUSTED');
    expect(refusal).toContain('no IPv4 address for net/c1/eth0 on node node-1');
    expect(families[0]).toMatchObject({
      grant: undefined,
      pools: [
        {
          name: 'default',
          blocks: [{ verdict: BlockVerdict.BLOCK_VERDICT_FULL }, {}, {}],
          moreBlocks: [{ verdict: BlockVerdict.BLOCK_VERDICT_FULL, count: 1 }],
        },
        { name: 'off', passedOverReason: 'disabled', blocks: [] },
      ],
    });
  });

  test('returns the leases that an exhausted pool would recall, which count as available', async () => {
    const session = await served.caller.openSession('node-2', BOOT);
    const leases = { nodeName: 'node-2', bootId: BOOT, family: IpFamily.IP_FAMILY_IPV4, count: 32, session };
    const { leaseAddresses } = LeaseServiceService;
    const { addresses } = await served.caller.peer.call(leaseAddresses, leases, clientLimits());
    await assign({ ipv4Count: 224 });
    const { refusalCode, families } = await explain({ nodeName: 'node-3' });
    const recalled = { leased: 32n, nodes: [{ nodeName: 'node-2', leased: 32n }] };
    expect([refusalCode, families[0]?.recall]).toEqual(['', recalled]);
    expect(families[0]?.pools[0]?.blocks.flatMap((block) => block.leases)).toEqual(recalled.nodes);
    const counts = { allocated: 224n, available: '32', free: '32', leased: 32n };
    expect((await served.caller.getPool('default')).pool?.utilization).toMatchObject(counts);
    const blocks = await served.caller.allBlocks();
    expect(blocks.map(({ utilization }) => utilization?.leased).sort()).toEqual([0, 0, 0, 32]);
    const address = addresses[0]?.address ?? '';
    expect(await served.caller.peer.call(AddressServiceService.getAddress, { address }, clientLimits())).toMatchObject({
      state: AddressState.ADDRESS_STATE_LEASED,
      holder: { handleId: 'podwire-lease.node-2', attributes: { node: 'node-2', 'boot-id': BOOT } },
      allocateTime: expect.any(Date),
    });
  });

  test('ignores namespace selectors when any_namespace is set', async () => {
    await assign({ ipv4Count: 256 });
    const allowedUses = [AddressUse.ADDRESS_USE_WORKLOAD];
    const selects = { namespaceSelector: 'team == "blue"', allowedUses };
    await served.caller.createPool({ name: 'blue', cidr: '10.66.0.0/24', ...selects });
    expect(await explain({})).toMatchObject({ refusalCode: 'POOLS_EXHAUSTED' });
    const { refusalCode, families } = await explain({}, 0, { anyNamespace: true });
    expect([refusalCode, families[0]?.grant?.poolName]).toEqual(['', 'blue']);
  });

  test('refuses unreadable values', async () => {
    expect((await failureOf(explain(undefined))).violations.map(({ field }) => field)).toEqual(['request']);
    const failure = await failureOf(explain({ nodeName: '', pools: ['A'] }, 10_001));
    expect(failure.violations.map(({ field }) => field)).toEqual(['max_blocks', 'node_name', 'pools[0]']);
  });
});

import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import { takeOrdinals } from '../records/block.js';
import type { RecordValue } from '../records/view.js';
import { sessionOf } from '../testing/allocations.js';
import {
  block,
  claimedBlock,
  config,
  failureOf,
  host,
  NOW_MS,
  nodeRecord,
  poolRecord,
  prefix,
  request,
  session,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { leaseAddresses, type LeaseRequest } from './leases.js';

const BOOT = 'b1';

interface Leased {
  readonly addresses: readonly string[];
  readonly outdated: readonly string[];
  readonly explanation: string;
  readonly claimed: readonly string[];
}

/** All steps of a request, with consistent records after each. */
function lease(view: TestView, rest: Partial<LeaseRequest> = {}, nowMs = NOW_MS): Leased {
  const claimed: string[] = [];
  for (;;) {
    const { bootId = BOOT } = rest;
    const session = sessionOf(view, 'n1', bootId);
    const asked = { nodeName: 'n1', bootId, family: 4, count: 4, session, ...rest } as const;
    const step = view.apply(leaseAddresses(view, { request: asked, unknownNodes: { policy: 'refuse' }, nowMs }));
    expect(inconsistencies(view, nowMs)).toEqual([]);
    claimed.push(...step.claimed.map(formatPrefix));
    if (step.state === 'more') continue;
    const outdated = step.leases.filter(({ isOutdated }) => isOutdated);
    return {
      addresses: step.leases.map(({ address }) => formatAddress(address)),
      outdated: outdated.map(({ address }) => formatAddress(address)),
      explanation: step.explanation,
      claimed,
    };
  }
}

const allocateOn = (view: TestView, id: string, nodeName: string): string => {
  const decision = allocate(view, { request: request(id, { nodeName }), nowMs: NOW_MS });
  return view
    .apply(decision)
    .endpoint.addresses.map(({ address }) => formatAddress(address))
    .join();
};

const withPool = (...rest: readonly RecordValue[]) =>
  new TestView([poolRecord('p', '10.0.0.0/24', { blockSizeBits: 29 }), nodeRecord('n1'), nodeRecord('n2'), ...rest]);

describe('leasing', () => {
  test('claims a block, and takes addresses in the order of allocations', () => {
    const view = withPool();
    const { addresses, claimed, explanation } = lease(view);
    const [first] = claimed;
    expect(claimed).toHaveLength(1);
    expect(explanation).toBe('');
    const all = view.block(prefix(first!))!;
    expect(addresses).toEqual(
      [0n, 1n, 2n, 3n].map((offset) => formatAddress({ family: 4, value: all.prefix.value + offset })),
    );
    expect(all.attributes).toEqual([
      {
        handleId: 'podwire-lease.n1',
        owner: { node: 'n1', type: 'podwireLease', 'boot-id': BOOT, timestamp: '2026-08-22 06:33:25.1 +0000 UTC' },
        releasedAtMs: undefined,
      },
    ]);
    expect(view.handle('podwire-lease.n1')?.blocks).toEqual(new Map([[first!, 4]]));
    expect(view.history).toEqual([]);
  });

  test('is idempotent, and takes only missing leases', () => {
    const view = withPool();
    const before = lease(view);
    const records = view.snapshot();
    expect(lease(view)).toEqual({ ...before, claimed: [] });
    expect(lease(view, { count: 0 }).addresses).toEqual(before.addresses);
    expect(view.snapshot()).toEqual(records);
    const more = lease(view, { count: 12 }, NOW_MS + 5000);
    expect(more.addresses.slice(0, 4)).toEqual(before.addresses);
    expect(more.addresses).toHaveLength(12);
    expect(more.claimed).toHaveLength(1);
  });

  test('orders the addresses as their block allocates them, not by their numbers', () => {
    const unallocated = [5, 1, 7, 0, 2, 3, 4, 6];
    const view = withPool(...claimedBlock(block('10.0.0.0/29', 'n1', { unallocated })));
    expect(lease(view).addresses).toEqual(['10.0.0.5', '10.0.0.1', '10.0.0.7', '10.0.0.0']);
    expect(lease(view).addresses).toEqual(['10.0.0.5', '10.0.0.1', '10.0.0.7', '10.0.0.0']);
  });

  test('frees the leases of other boots first, with their cool-down, and without history', () => {
    const view = withPool(config({ cooldownSeconds: 30 }));
    const before = lease(view);
    expect(lease(view, { bootId: 'b2', count: 0 }).addresses).toEqual([]);
    expect(view.handle('podwire-lease.n1')).toBeUndefined();
    expect(view.history).toEqual([]);
    const after = lease(view, { bootId: 'b2', count: 8 });
    expect(after.addresses).toHaveLength(8);
    // A pod of the former boot may have had one, and its binding may have been on the way.
    expect(after.addresses.filter((address) => before.addresses.includes(address))).toEqual([]);
  });

  test('keeps families apart', () => {
    const view = withPool(poolRecord('six', 'fd00::/112'));
    lease(view);
    expect(lease(view, { family: 6, count: 2 }).addresses).toHaveLength(2);
    expect(lease(view, { count: 0 }).addresses).toHaveLength(4);
  });

  test('takes nothing from blocks of other nodes, neither borrowed nor reclaimed', () => {
    const pool = poolRecord('p', '10.0.0.0/28', { blockSizeBits: 29 });
    const idle = claimedBlock(block('10.0.0.8/29', 'n2', { claimTimeMs: NOW_MS - 3_600_000 }));
    const view = new TestView([pool, nodeRecord('n1'), nodeRecord('n2'), ...idle]);
    allocateOn(view, 'c1', 'n2');
    const own = claimedBlock(block('10.0.0.0/29', 'n2', { claimTimeMs: NOW_MS - 3_600_000 }));
    own.forEach((record) => view.put(record));
    const { addresses, explanation } = lease(view, { count: 1 });
    expect(addresses).toEqual([]);
    expect(explanation).toContain('the blocks of node n1 and the unclaimed ones have no further free address');
  });

  test('takes at most an eighth of the free addresses', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/28', { blockSizeBits: 29 }), nodeRecord('n1')]);
    const { addresses, explanation } = lease(view);
    expect(addresses).toHaveLength(2);
    expect(explanation).toBe('a node may lease an eighth of the free addresses, which is 2 of 16');
    expect(lease(view)).toMatchObject({ addresses, explanation });
  });

  test('counts addresses without a holder as free, whether their cool-down is over or not', () => {
    const released = (agoMs: number) => ({ handleId: undefined, owner: {}, releasedAtMs: NOW_MS - agoMs });
    const used = {
      allocations: [0, 0, 0, 0, 0, 0, 1, 1],
      unallocated: [],
      attributes: [released(60_000), released(0)],
    };
    const view = new TestView([
      poolRecord('p', '10.0.0.0/28', { blockSizeBits: 29 }),
      nodeRecord('n1'),
      config({ cooldownSeconds: 30 }),
      ...claimedBlock(block('10.0.0.0/29', 'n1', used)),
    ]);
    expect(lease(view).addresses).toEqual(['10.0.0.0', '10.0.0.1']);
  });

  test('does not count reserved addresses as free, and does not lease them', () => {
    const reservation: RecordValue = {
      kind: 'reservation',
      value: { name: 'r', prefixes: [prefix('10.0.0.0/29')], uid: 'u', createTimeMs: NOW_MS },
    };
    const pool = poolRecord('p', '10.0.0.0/28', { blockSizeBits: 28 });
    const view = new TestView([pool, nodeRecord('n1'), reservation]);
    expect(lease(view).addresses).toEqual(['10.0.0.8']);
  });

  test('leases nothing where the pool of a pod depends on its namespace', () => {
    const view = withPool(poolRecord('q', '10.1.0.0/24', { namespaceSelector: 'team == "blue"' }));
    const { addresses, explanation } = lease(view);
    expect(addresses).toEqual([]);
    expect(explanation).toContain(
      'pool "q" serves only namespaces that "team == \\"blue\\"" selects'.replaceAll('\\', ''),
    );
    view.put(poolRecord('q', '10.1.0.0/24', { namespaceSelector: 'team == "blue"', disabled: true }));
    expect(lease(view).addresses).toHaveLength(4);
  });

  test.each([
    ['there is no pool', [nodeRecord('n1')], 'there is no IPv4 pool'],
    ['its pool is disabled', [nodeRecord('n1'), poolRecord('p', '10.0.0.0/24', { disabled: true })], 'disabled'],
  ])('explains why there is none when %s', (_, records, text) => {
    expect(lease(new TestView(records))).toMatchObject({ addresses: [], explanation: expect.stringContaining(text) });
  });

  test('is refused to a node that is unknown, or is being deleted', () => {
    expect(failureOf(() => lease(new TestView([]))).code).toBe('NODE_NOT_FOUND');
    expect(failureOf(() => lease(withPool(nodeRecord('n1', { deletionTimeMs: NOW_MS })))).code).toBe(
      'NODE_BEING_DELETED',
    );
  });

  test('does not take an attachment of the same handle for a lease', () => {
    const view = withPool();
    const attachment = { network: 'podwire-lease', containerId: 'n1', interfaceName: 'eth0' };
    const given = view.apply(allocate(view, { request: request('c', { attachment }), nowMs: NOW_MS }));
    const [address] = given.endpoint.addresses.map((each) => formatAddress(each.address));
    const { addresses } = lease(view, { bootId: 'b9' });
    expect(addresses).toHaveLength(4);
    expect(addresses).not.toContain(address);
  });
});

describe('a lease is outdated when a pod would not get its address', () => {
  const pool = (rest: Parameters<typeof poolRecord>[2]) =>
    poolRecord('p', '10.0.0.0/24', { blockSizeBits: 29, ...rest });

  test.each<readonly [string, RecordValue]>([
    ['its pool is disabled', pool({ disabled: true })],
    ['its pool is being deleted', pool({ deletionTimeMs: NOW_MS })],
    ['its pool does not select the node', pool({ nodeSelector: 'rack == "r1"' })],
    ['its pool is not for pods', pool({ allowedUses: ['Tunnel'] })],
    ['its pool serves requests that name it', pool({ assignmentMode: 'Manual' })],
    ['its pool has a namespace selector', pool({ namespaceSelector: 'team == "blue"' })],
    ['a namespace selector of another pool decides', poolRecord('q', '10.1.0.0/24', { namespaceSelector: 'has(x)' })],
  ])('because %s', (_, change) => {
    const view = withPool();
    const { addresses, outdated } = lease(view);
    expect(outdated).toEqual([]);
    view.put(change);
    expect(lease(view)).toMatchObject({ addresses, outdated: addresses });
  });

  test('because it is reserved, or its pool is gone', () => {
    const view = withPool();
    const { addresses } = lease(view);
    const [first] = addresses;
    const prefixes = [prefix(`${first}/32`)];
    view.put({ kind: 'reservation', value: { name: 'r', prefixes, uid: 'u', createTimeMs: NOW_MS } });
    expect(lease(view).outdated).toEqual([first]);
    view.remove({ kind: 'pool', name: 'p' });
    const asked = { nodeName: 'n1', bootId: BOOT, family: 4, count: 0, session: sessionOf(view) } as const;
    const { outcome } = leaseAddresses(view, { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS });
    expect(outcome.leases.map(({ poolName, isOutdated }) => [poolName, isOutdated])).toEqual(
      addresses.map(() => ['', true]),
    );
  });
});

test('an allocation compares the node, so that none is leased to a node that is being deleted', () => {
  const view = withPool();
  const asked = { nodeName: 'n1', bootId: BOOT, family: 4, count: 1, session: sessionOf(view) } as const;
  const { changes } = leaseAddresses(view, { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS });
  expect(changes).toContainEqual({ type: 'expect', record: nodeRecord('n1') });
  expect(view.affinitiesOf(host('n1'))).toEqual([]);
});

describe('a node holds two leases at most', () => {
  const podOfCalico = {
    handleId: 'k8s-pod-network.c',
    owner: { node: 'n2', pod: 'p', namespace: 'd' },
    releasedAtMs: undefined,
  };
  const limitOf = (view: TestView, count = 8) => {
    const asked = { nodeName: 'n1', bootId: BOOT, family: 4, count, session: sessionOf(view) } as const;
    return leaseAddresses(view, { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS }).outcome;
  };

  test('where less than a quarter of the addresses is free', () => {
    const view = new TestView([
      poolRecord('p', '10.0.0.0/25', { blockSizeBits: 29 }),
      nodeRecord('n1'),
      nodeRecord('n2'),
    ]);
    for (let index = 0; index < 96; index++) allocateOn(view, `c${index}`, 'n2');
    expect(limitOf(view)).toMatchObject({ limit: 4 });
    allocateOn(view, 'last', 'n2');
    expect(limitOf(view)).toMatchObject({
      limit: 2,
      newCount: 2,
      explanation: expect.stringContaining('less than a quarter of the addresses of its pools is free, 31 of 128'),
    });
  });

  test('where another program allocates on a node without a session', () => {
    const view = withPool();
    const [record] = claimedBlock(takeOrdinals(block('10.0.0.0/29', 'n2'), [0], podOfCalico));
    view.put(record!);
    expect(limitOf(view)).toMatchObject({ limit: 2, explanation: expect.stringContaining('on node n2') });
    view.put({ kind: 'nodeSession', value: session('n2') });
    expect(limitOf(view)).toMatchObject({ limit: 31, explanation: '' });
  });

  test.each([
    ['a tunnel', { ...podOfCalico, owner: { node: 'n2', type: 'vxlanTunnelAddress' } }],
    ['a pod of Podwire', { ...podOfCalico, owner: { node: 'n2', network: 'k8s-pod-network', interface: 'eth0' } }],
    ['a handle without a node', { ...podOfCalico, owner: {} }],
  ])('but not because of %s', (_, attributes) => {
    const view = withPool();
    const [record] = claimedBlock(takeOrdinals(block('10.0.0.0/29', 'n2'), [0], attributes));
    view.put(record!);
    expect(limitOf(view)).toMatchObject({ limit: 31 });
  });
});

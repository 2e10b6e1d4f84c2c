import { formatAddress } from '@podwire/shared/net/address';
import { describe, expect, test } from 'vitest';

import { getAddress } from '../addresses/addresses.js';
import { allocate } from '../addresses/allocate/allocate.js';
import type { AddressReleaseResult } from '../addresses/release.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import { continueNodeRelease } from '../nodes/deletion.js';
import { releaseOutOfBand, sessionOf } from '../testing/allocations.js';
import { attachment, config, NOW_MS, nodeRecord, poolRecord, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { bindAddresses } from './bindings.js';
import { leaseAddresses, leasesOf, type Lease } from './leases.js';
import { continueReturn, type AddressReturn } from './returns.js';

const ATTACHED_MS = NOW_MS + 2000;
const DETACHED_MS = NOW_MS + 3000;
const LATER_MS = NOW_MS + 60_000;
const NETNS = { bootId: 'b1', inode: 7n };

function world(): { view: TestView; leases: readonly Lease[] } {
  const view = new TestView([
    poolRecord('p', '10.0.0.0/24'),
    nodeRecord('n1'),
    nodeRecord('n2'),
    config({ cooldownSeconds: 30 }),
  ]);
  const asked = { nodeName: 'n1', bootId: 'b1', family: 4, count: 4, session: sessionOf(view) } as const;
  const input = { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS } as const;
  return { view, leases: view.apply(leaseAddresses(view, input)).leases };
}

const nameOf = ({ address, sequenceNumber }: Lease) => ({ address, sequenceNumber });

function bind(view: TestView, id: string, lease: Lease): void {
  const bound = {
    attachment: attachment(id),
    pod: { namespace: 'default', name: `pod-${id}`, uid: '' },
    netns: NETNS,
    addresses: [nameOf(lease)],
    attachedAtMs: ATTACHED_MS,
  };
  view.apply(bindAddresses(view, { nodeName: 'n1', session: sessionOf(view), binding: bound, nowMs: DETACHED_MS }));
}

const use = (id: string, rest: Partial<NonNullable<AddressReturn['use']>> = {}) => ({
  attachment: attachment(id),
  netns: undefined,
  attachedAtMs: ATTACHED_MS,
  detachedAtMs: DETACHED_MS,
  ...rest,
});

function giveBack(view: TestView, returns: readonly AddressReturn[], nodeName = 'n1'): AddressReleaseResult['state'][] {
  const { results } = view.apply(
    continueReturn(view, { nodeName, session: sessionOf(view, nodeName), returns, nowMs: LATER_MS }),
  );
  expect(inconsistencies(view, LATER_MS)).toEqual([]);
  return results.map(({ state }) => state);
}

const stateOf = (view: TestView, lease: Lease): string => getAddress(view, lease.address, LATER_MS).state.kind;

describe('an unbound lease', () => {
  test('is free at once, without an entry in the history', () => {
    const { view, leases } = world();
    const [first, ...rest] = leases;
    expect(giveBack(view, [{ allocation: nameOf(first!), use: undefined }])).toEqual(['released']);
    expect(stateOf(view, first!)).toBe('free');
    expect(view.blocks()[0]!.unallocated[0], 'the next one to use').toBe(0);
    expect(view.history).toEqual([]);
    expect(leasesOf(view, 'n1')).toHaveLength(rest.length);
    expect(giveBack(view, [{ allocation: nameOf(first!), use: undefined }])).toEqual(['notAllocated']);
  });

  test('that a pod had cools down, and the history names the attachment', () => {
    const { view, leases } = world();
    const [first] = leases;
    expect(giveBack(view, [{ allocation: nameOf(first!), use: use('c1', { netns: NETNS }) }])).toEqual(['released']);
    expect(stateOf(view, first!)).toBe('cooling');
    expect(view.history).toMatchObject([
      {
        handleId: 'net.c1',
        owner: { node: 'n1', network: 'net', interface: 'eth0' },
        allocatedAtMs: ATTACHED_MS,
        releasedAtMs: DETACHED_MS,
        sequenceNumber: first!.sequenceNumber,
      },
    ]);
  });

  test.each([
    ['before its lease', { attachedAtMs: NOW_MS - 3_600_000 }, [NOW_MS, DETACHED_MS]],
    ['at a time that the node does not name', { attachedAtMs: undefined }, [NOW_MS, DETACHED_MS]],
    ['in the future', { attachedAtMs: LATER_MS + 3_600_000 }, [LATER_MS, LATER_MS]],
    ['after its end', { attachedAtMs: DETACHED_MS + 1000 }, [DETACHED_MS + 1000, DETACHED_MS + 1000]],
  ])('that a pod had from a moment %s has possible times in the history', (_, times, [allocatedAtMs, releasedAtMs]) => {
    const { view, leases } = world();
    giveBack(view, [{ allocation: nameOf(leases[0]!), use: use('c1', times) }]);
    expect(view.history).toMatchObject([{ allocatedAtMs, releasedAtMs }]);
  });

  test('of another node stays', () => {
    const { view, leases } = world();
    const [first, second] = leases;
    const returns = [
      { allocation: nameOf(first!), use: undefined },
      { allocation: nameOf(second!), use: use('c1') },
    ];
    expect(giveBack(view, returns, 'n2')).toEqual(['mismatch', 'mismatch']);
    expect(leasesOf(view, 'n1')).toHaveLength(4);
  });

  test('ends with its node, without an entry in the history', () => {
    const { view, leases } = world();
    while (view.apply(continueNodeRelease(view, { nodeName: 'n1', nowMs: NOW_MS })).state === 'more');
    expect(view.handle('podwire-lease.n1')).toBeUndefined();
    expect(view.history).toEqual([]);
    // A container may have had it: its binding may have been on the way.
    expect(leases.map((lease) => getAddress(view, lease.address, NOW_MS).state.kind)).toEqual(
      leases.map(() => 'cooling'),
    );
  });
});

describe('a bound address', () => {
  test('cools down, and the history has the times of the attachment', () => {
    const { view, leases } = world();
    const [first] = leases;
    bind(view, 'c1', first!);
    expect(giveBack(view, [{ allocation: nameOf(first!), use: use('c1', { netns: NETNS }) }])).toEqual(['released']);
    expect(stateOf(view, first!)).toBe('cooling');
    expect(getAddress(view, first!.address, LATER_MS).state).toMatchObject({ untilMs: expect.any(Number) });
    expect(view.all('endpoint')).toEqual([]);
    expect(view.handle('net.c1')).toBeUndefined();
    expect(view.history).toMatchObject([
      { handleId: 'net.c1', owner: { pod: 'pod-c1' }, allocatedAtMs: ATTACHED_MS, releasedAtMs: DETACHED_MS },
    ]);
  });

  test('cools down from the time at which IPAM learns of it', () => {
    const { view, leases } = world();
    bind(view, 'c1', leases[0]!);
    giveBack(view, [{ allocation: nameOf(leases[0]!), use: use('c1') }]);
    const { state } = getAddress(view, leases[0]!.address, LATER_MS);
    expect(state).toMatchObject({ kind: 'cooling', releasedAtMs: Math.floor(LATER_MS / 1000) * 1000 });
  });

  test.each([
    ['before its begin', ATTACHED_MS - 5000, ATTACHED_MS],
    ['in the future', LATER_MS + 5000, LATER_MS],
  ])('never ends %s', (_, detachedAtMs, releasedAtMs) => {
    const { view, leases } = world();
    bind(view, 'c1', leases[0]!);
    giveBack(view, [{ allocation: nameOf(leases[0]!), use: use('c1', { detachedAtMs }) }]);
    expect(view.history).toMatchObject([{ releasedAtMs }]);
  });

  test.each([
    ['no attachment', undefined],
    ['another attachment', use('c2')],
    ['another interface', use('c1', { attachment: attachment('c1', { interfaceName: 'eth1' }) })],
    ['another namespace', use('c1', { netns: { bootId: 'b1', inode: 8n } })],
  ])('stays when %s is named', (_, named) => {
    const { view, leases } = world();
    bind(view, 'c1', leases[0]!);
    const records = view.snapshot();
    expect(giveBack(view, [{ allocation: nameOf(leases[0]!), use: named }])).toEqual(['mismatch']);
    expect(view.snapshot()).toEqual(records);
  });

  test('is freed when a repair wrote its endpoint, which names no namespace', () => {
    const { view, leases } = world();
    bind(view, 'c1', leases[0]!);
    for (const record of view.all('endpoint')) view.put({ ...record, value: { ...record.value, netns: undefined } });
    const named = use('c1', { netns: NETNS });
    expect(giveBack(view, [{ allocation: nameOf(leases[0]!), use: named }])).toEqual(['released']);
    expect(view.all('endpoint')).toEqual([]);
  });

  test('that Allocate gave is freed too', () => {
    const { view } = world();
    const { endpoint } = view.apply(allocate(view, { request: request('c9'), nowMs: NOW_MS }));
    const [given] = endpoint.addresses;
    const allocation = { address: given!.address, sequenceNumber: given!.sequenceNumber };
    expect(giveBack(view, [{ allocation, use: use('c9') }])).toEqual(['released']);
  });
});

describe('an allocation that is not the named one', () => {
  test('stays', () => {
    const { view, leases } = world();
    const allocation = { ...nameOf(leases[0]!), sequenceNumber: leases[0]!.sequenceNumber + 1n };
    expect(giveBack(view, [{ allocation, use: undefined }])).toEqual(['mismatch']);
    expect(leasesOf(view, 'n1')).toHaveLength(4);
    bind(view, 'c1', leases[0]!);
    expect(giveBack(view, [{ allocation, use: use('c1') }])).toEqual(['mismatch']);
    expect(stateOf(view, leases[0]!)).toBe('allocated');
  });

  test('loses its place in the endpoint, if it ended otherwise', () => {
    const { view, leases } = world();
    bind(view, 'c1', leases[0]!);
    releaseOutOfBand(view, formatAddress(leases[0]!.address));
    expect(view.all('endpoint')).toHaveLength(1);
    const named = use('c1', { netns: NETNS });
    expect(giveBack(view, [{ allocation: nameOf(leases[0]!), use: named }])).toEqual(['notAllocated']);
    expect(view.all('endpoint')).toEqual([]);
  });

  test('is left alone when its block cannot be read', () => {
    const { view, leases } = world();
    const [block] = view.blocks();
    view.remove({ kind: 'block', prefix: block!.prefix });
    view.setAside({ kind: 'block', prefix: block!.prefix }, 'damaged');
    const { results } = view.apply(
      continueReturn(view, {
        nodeName: 'n1',
        session: sessionOf(view),
        returns: [{ allocation: nameOf(leases[0]!), use: undefined }],
        nowMs: LATER_MS,
      }),
    );
    expect(results).toEqual([{ state: 'unreadable' }]);
  });
});

import { formatAddress } from '@podwire/shared/net/address';
import { addressAt } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { listHandleAddresses, listHandles } from '../handles/handles.js';
import { validateBlock } from '../records/block.js';
import { leaseAttributes } from '../records/lease.js';
import { address, calico, withAllocations, handleRecord } from '../testing/allocations.js';
import { attachment, block, claimedBlock, config, NOW_MS, poolRecord, prefix, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { getAddress, setAttributes, type AttributesChange } from './addresses.js';
import { allocate } from './allocate/allocate.js';
import { continueHandleRelease, release } from './release.js';

const VM = { node: 'n1', pod: 'launcher-1', namespace: 'vms' };

/** A block in which a virtual machine has two addresses, and a container of Podwire's one. */
function start() {
  const held = withAllocations(
    block('10.0.0.0/29', 'n1'),
    { ordinals: [0, 1], attributes: calico('net.vmi.vms.a', VM) },
    { ordinals: [2], attributes: calico('net.c', { network: 'net', interface: 'eth0', node: 'n1', note: 'x' }) },
  );
  return new TestView([poolRecord('p', '10.0.0.0/26', { blockSizeBits: 29 }), ...claimedBlock(held)]);
}

const change = (rest: Partial<AttributesChange> = {}): AttributesChange => ({
  address: address('10.0.0.0'),
  handleId: undefined,
  sequenceNumber: undefined,
  expected: undefined,
  attributes: {},
  expectedAlternate: undefined,
  alternate: undefined,
  ...rest,
});

test('a leased address has its node as its holder', () => {
  const attributes = leaseAttributes({ nodeName: 'n2', bootId: 'b', nowMs: NOW_MS });
  const leased = withAllocations(block('10.0.0.0/29', 'n1'), { ordinals: [3], attributes });
  const view = new TestView([poolRecord('p', '10.0.0.0/26', { blockSizeBits: 29 }), ...claimedBlock(leased)]);
  expect(getAddress(view, address('10.0.0.3'), NOW_MS).state).toEqual({
    kind: 'leased',
    holder: { handleId: 'podwire-lease.n2', owner: attributes.owner, sequenceNumber: leased.sequenceNumbers[3] },
    sinceMs: NOW_MS,
  });
});

describe('the attributes of an address', () => {
  test('are replaced, as the same allocation, and addresses of another handle that shared them stay', () => {
    const view = start();
    const before = view.blocks()[0]!;
    const attributes = { node: 'n2', pod: 'launcher-2', namespace: 'vms' };
    const holder = view.apply(setAttributes(view, change({ handleId: 'net.vmi.vms.a', expected: VM, attributes })));
    const sequenceNumber = before.sequenceNumbers[0];
    expect(holder).toEqual({ handleId: 'net.vmi.vms.a', owner: attributes, sequenceNumber });
    expect(getAddress(view, address('10.0.0.0'), NOW_MS).state).toMatchObject({ kind: 'allocated', holder });
    expect(getAddress(view, address('10.0.0.1'), NOW_MS).state).toMatchObject({ holder: { owner: VM } });
    const after = view.blocks()[0]!;
    expect(after).toMatchObject({
      sequenceNumber: before.sequenceNumber + 1n,
      sequenceNumbers: before.sequenceNumbers,
    });
    expect(validateBlock(after, NOW_MS)).toEqual([]);
  });

  test('are removed, and added to an address without any', () => {
    const view = start();
    view.apply(setAttributes(view, change({ attributes: {} })));
    expect(getAddress(view, address('10.0.0.0'), NOW_MS).state).toMatchObject({ holder: { owner: {} } });
    view.apply(setAttributes(view, change({ expected: {}, attributes: VM })));
    expect(view.blocks()[0]!.attributes).toHaveLength(2);
  });

  test('that are unchanged are not written', () => {
    expect(setAttributes(start(), change({ attributes: { ...VM } })).changes).toEqual([]);
  });

  test.each([
    ['another handle holds it', { handleId: 'net.x' }, /held by handle net.vmi.vms.a, not by net.x/],
    ['it was allocated at another time', { sequenceNumber: 1n }, /with sequence number \d+, not 1/],
    ['they had other attributes before', { expected: { pod: 'y' } }, /has the attributes .*launcher-1/],
    ['they had attributes before', { expected: {} }, /has the attributes/],
    ['there is no such second owner', { expectedAlternate: { pod: 'y' } }, /has the attributes {} of a second owner/],
    [
      'they would become a container’s with the second owner’s',
      { alternate: VM, expectedAlternate: VM },
      /a second owner/,
    ],
    [
      'they would become a container’s',
      { attributes: { interface: 'eth0', network: 'net' } },
      /keeps its attributes network, interface/,
    ],
    ['its endpoint depends on them', { address: address('10.0.0.2') }, /keeps its attributes network, interface, node/],
  ])('stay when %s', (_, rest, message) => {
    const view = start();
    const before = view.snapshot();
    expect(() => setAttributes(view, change({ attributes: { note: 'new' }, ...rest }))).toThrow(
      expect.objectContaining({ code: 'ALLOCATION_MISMATCH', message: expect.stringMatching(message) }),
    );
    expect(view.snapshot()).toEqual(before);
  });

  test('of a second owner are set, swapped with the first owner’s, and removed separately', () => {
    const view = start();
    const target = { node: 'n2', pod: 'launcher-2', namespace: 'vms' };
    const step = (rest: Partial<AttributesChange>) => {
      const { owner, alternateOwner } = view.apply(setAttributes(view, change({ attributes: undefined, ...rest })));
      const { state } = getAddress(view, address('10.0.0.0'), NOW_MS);
      expect(state).toMatchObject({ holder: { owner, alternateOwner } });
      expect(validateBlock(view.blocks()[0]!, NOW_MS)).toEqual([]);
      return [owner, alternateOwner];
    };
    expect(step({ alternate: target, expectedAlternate: {} })).toEqual([VM, target]);
    const swap = { attributes: target, alternate: VM, expected: VM, expectedAlternate: target };
    expect(step(swap)).toEqual([target, VM]);
    expect(() => step(swap)).toThrow(expect.objectContaining({ code: 'ALLOCATION_MISMATCH' }));
    expect(setAttributes(view, change({ ...swap, expected: undefined, expectedAlternate: undefined })).changes).toEqual(
      [],
    );
    expect(step({ attributes: {} })).toEqual([{}, VM]);
    expect(step({ alternate: {} })).toEqual([{}, undefined]);
    // The address that shared them never had a second owner.
    expect(getAddress(view, address('10.0.0.1'), NOW_MS).state).toMatchObject({
      holder: { owner: VM, alternateOwner: undefined },
    });
  });

  test('of addresses that differ in the second owner only stay separate, and are removed with the release', () => {
    const view = start();
    view.apply(setAttributes(view, change({ attributes: undefined, alternate: { pod: 'b' } })));
    expect(view.blocks()[0]!.attributes).toHaveLength(3);
    view.apply(setAttributes(view, change({ attributes: undefined, alternate: {} })));
    expect(view.blocks()[0]!.attributes).toHaveLength(2);
    view.apply(setAttributes(view, change({ attributes: undefined, alternate: { pod: 'b' } })));
    view.apply(continueHandleRelease(view, { handleId: 'net.vmi.vms.a', searchesAllBlocks: true, nowMs: NOW_MS }));
    expect(view.blocks()[0]!.attributes.map(({ alternateOwner }) => alternateOwner)).toEqual([undefined]);
  });

  test('that a container’s endpoint does not depend on can be changed', () => {
    const view = start();
    const attributes = { network: 'net', interface: 'eth0', node: 'n1', note: 'y' };
    view.apply(setAttributes(view, change({ address: address('10.0.0.2'), attributes })));
    expect(getAddress(view, address('10.0.0.2'), NOW_MS).state).toMatchObject({ holder: { owner: attributes } });
  });

  test.each(['10.0.0.3', '10.0.0.60', '10.9.0.0'])('of an address that is not allocated do not exist: %s', (text) => {
    expect(() => setAttributes(start(), change({ address: address(text) }))).toThrow(
      expect.objectContaining({ code: 'ADDRESS_NOT_ALLOCATED' }),
    );
  });
});

describe('an address is reported as', () => {
  const view = () => {
    const started = new TestView([poolRecord('p', '10.0.0.0/24'), config({ cooldownSeconds: 60 })]);
    for (const id of ['c1', 'c2']) started.apply(allocate(started, { request: request(id), nowMs: NOW_MS }));
    started.apply(release(started, attachment('c1'), NOW_MS));
    started.put({
      kind: 'reservation',
      value: {
        name: 'gateways',
        uid: 'u',
        createTimeMs: 0,
        prefixes: [prefix('10.0.0.62/31'), prefix('10.0.0.200/32')],
      },
    });
    return started;
  };
  const stamp = Math.floor(NOW_MS / 1000) * 1000;
  test.each([
    ['10.0.0.1', NOW_MS, { kind: 'allocated', sinceMs: NOW_MS, holder: { handleId: 'net.c2' } }, 'p'],
    ['10.0.0.0', NOW_MS + 59_000, { kind: 'cooling', releasedAtMs: stamp, untilMs: stamp + 60_000 }, 'p'],
    ['10.0.0.0', NOW_MS + 60_000, { kind: 'free' }, 'p'],
    ['10.0.0.2', NOW_MS, { kind: 'free' }, 'p'],
    ['10.0.0.100', NOW_MS, { kind: 'free' }, 'p'],
    ['10.0.0.63', NOW_MS, { kind: 'reserved', reservationNames: ['gateways'] }, 'p'],
    ['10.0.0.200', NOW_MS, { kind: 'reserved', reservationNames: ['gateways'] }, 'p'],
    ['10.9.0.0', NOW_MS, { kind: 'unmanaged' }, undefined],
  ])('%s at %i: %o', (text, nowMs, state, poolName) => {
    expect(getAddress(view(), address(text), nowMs)).toMatchObject({ state, poolName });
  });
});

describe('handles', () => {
  const view = () => {
    const started = new TestView([poolRecord('four', '10.0.0.0/26'), poolRecord('six', 'fd00::/122')]);
    for (const id of ['b', 'a', 'c'])
      started.apply(allocate(started, { request: request(id, { families: [6, 4] }), nowMs: NOW_MS }));
    return started;
  };

  test('are listed in the order of their names, in pages', () => {
    const first = listHandles(view(), { after: '', limit: 2, prefix: '' });
    expect([first.items.map(({ id }) => id), first.more]).toEqual([['net.a', 'net.b'], true]);
    const second = listHandles(view(), { after: 'net.b', limit: 2, prefix: 'net.' });
    expect([second.items.map(({ id }) => id), second.more]).toEqual([['net.c'], false]);
  });

  test('list their addresses in order, in pages, and are not found when they have none', () => {
    const started = view();
    const list = (handleId: string, after?: string) => {
      const { items, more } = listHandleAddresses(started, {
        handleId,
        after: after ? address(after) : undefined,
        limit: 1,
      });
      return [...items.map(({ block: { prefix: each }, ordinal }) => formatAddress(addressAt(each, ordinal))), more];
    };
    expect(list('net.a')).toEqual(['10.0.0.1', true]);
    expect(list('net.a', '10.0.0.1')).toEqual(['fd00::1', false]);
    started.put(handleRecord('orphan', ['10.0.0.0/26', 1]));
    for (const id of ['orphan', 'unknown'])
      expect(() => list(id)).toThrow(expect.objectContaining({ code: 'HANDLE_NOT_FOUND' }));
  });
});

import { formatAddress } from '@podwire/shared/net/address';
import { describe, expect, test } from 'vitest';

import { validateBlock } from '../records/block.js';
import { MapView } from '../records/testing/map-view.js';
import {
  address,
  calico,
  countedHandles,
  withAllocations,
  handleRecord,
  storedHandles,
} from '../testing/allocations.js';
import { attachment, block, claimedBlock, config, NOW_MS, poolRecord, request } from '../testing/records.js';
import { getAddress } from './addresses.js';
import { allocate } from './allocate.js';
import { continueAddressRelease, release, type AddressRelease } from './release.js';

const of = (text: string, rest: Partial<AddressRelease> = {}): AddressRelease => ({
  address: address(text),
  handleId: undefined,
  sequenceNumber: undefined,
  ...rest,
});

/** Releases all of them, step by step. @returns the states in their order */
function releaseAll(view: MapView, releases: readonly AddressRelease[]) {
  const states: string[] = [];
  let steps = 0;
  while (states.length < releases.length) {
    const decision = continueAddressRelease(view, { releases: releases.slice(states.length), nowMs: NOW_MS });
    expect(decision.changes.length).toBeLessThanOrEqual(128);
    const { results } = view.apply(decision);
    expect(results.length).toBeGreaterThan(0);
    states.push(...results.map(({ state }) => state));
    steps++;
  }
  return { states, steps };
}

function withOne() {
  const view = new MapView([poolRecord('p', '10.0.0.0/26')]);
  const { endpoint } = view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
  return { view, sequenceNumber: endpoint.addresses[0]!.sequenceNumber };
}

describe('an address', () => {
  test.each([
    ['there is no condition', {}, true],
    ['its handle is named', { handleId: 'net.c1' }, true],
    ['another handle is named', { handleId: 'net.c2' }, false],
    ['its sequence number is named', { offset: 0n }, true],
    ['another sequence number is named', { offset: 1n }, false],
    ['both are right', { handleId: 'net.c1', offset: 0n }, true],
    ['one of them is wrong', { handleId: 'net.c1', offset: -1n }, false],
  ])('when %s: %o', (_, { handleId, offset }: { handleId?: string; offset?: bigint }, isReleased) => {
    const { view, sequenceNumber } = withOne();
    const before = view.snapshot();
    const asked = { handleId, sequenceNumber: offset === undefined ? undefined : sequenceNumber + offset };
    const { outcome, changes } = continueAddressRelease(view, { releases: [of('10.0.0.0', asked)], nowMs: NOW_MS });
    view.apply({ outcome, changes });
    expect(outcome.results).toEqual([
      {
        state: isReleased ? 'released' : 'mismatch',
        holder: { handleId: 'net.c1', owner: expect.objectContaining({ pod: 'pod-c1' }), sequenceNumber },
      },
    ]);
    if (!isReleased) expect(view.snapshot()).toEqual(before);
    expect(view.all('handle')).toHaveLength(isReleased ? 0 : 1);
    expect(view.all('endpoint')).toHaveLength(isReleased ? 0 : 1);
    expect(view.history).toHaveLength(isReleased ? 1 : 0);
  });

  test.each([
    ['of its record', { bootId: 'one', inode: 7n }, 'released'],
    ['of another inode', { bootId: 'one', inode: 8n }, 'mismatch'],
    ['of another boot', { bootId: 'two', inode: 7n }, 'mismatch'],
  ])('is released for the namespace %s', (_, netns, state) => {
    const view = new MapView([poolRecord('p', '10.0.0.0/26')]);
    const wanted = request('c1', { netns: { bootId: 'one', inode: 7n } });
    view.apply(allocate(view, { request: wanted, nowMs: NOW_MS }));
    expect(releaseAll(view, [of('10.0.0.0', { netns })]).states).toEqual([state]);
  });

  test('whose endpoint has no network namespace is not released for one', () => {
    const { view } = withOne();
    expect(releaseAll(view, [of('10.0.0.0', { netns: { bootId: 'one', inode: 7n } })]).states).toEqual(['mismatch']);
    const held = withAllocations(block('10.9.0.0/28', 'n1'), { ordinals: [3], attributes: calico('h') });
    for (const record of [...claimedBlock(held), handleRecord('h', ['10.9.0.0/28', 1])]) view.put(record);
    expect(releaseAll(view, [of('10.9.0.3', { netns: { bootId: 'one', inode: 7n } })]).states).toEqual(['mismatch']);
  });

  test('that was released and allocated to another is not freed by the old sequence number', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/32', { blockSizeBits: 32 })]);
    const { endpoint } = view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    view.apply(release(view, attachment('c1'), NOW_MS));
    view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS + 1 }));
    const { sequenceNumber } = endpoint.addresses[0]!;
    expect(releaseAll(view, [of('10.0.0.0', { handleId: 'net.c1', sequenceNumber })]).states).toEqual(['mismatch']);
  });

  test.each([
    ['in no pool', '10.9.0.0'],
    ['in no block', '10.0.0.64'],
    ['free', '10.0.0.1'],
  ])('that is %s is not allocated, and nothing is changed', (_, text) => {
    const { view } = withOne();
    const before = view.snapshot();
    expect(releaseAll(view, [of(text)]).states).toEqual(['notAllocated']);
    expect(view.snapshot()).toEqual(before);
  });

  test('in no pool is found by its block', () => {
    const held = withAllocations(block('10.9.0.0/28', 'n1'), { ordinals: [3], attributes: calico('h') });
    const view = new MapView([...claimedBlock(held), handleRecord('h', ['10.9.0.0/28', 1])]);
    expect(releaseAll(view, [of('10.9.0.3')]).states).toEqual(['released']);
    expect([view.all('handle'), view.blocks(), view.all('affinity')]).toEqual([[], [], []]);
  });

  test('without a handle can be released', () => {
    const held = withAllocations(block('10.0.0.0/28', 'n1'), {
      ordinals: [3],
      attributes: calico(undefined, { note: 'gateway' }),
    });
    const view = new MapView([poolRecord('p', '10.0.0.0/26'), ...claimedBlock(held)]);
    expect(releaseAll(view, [of('10.0.0.3', { handleId: 'h' })]).states).toEqual(['mismatch']);
    expect(releaseAll(view, [of('10.0.0.3')]).states).toEqual(['released']);
    expect(view.history).toMatchObject([{ handleId: undefined, owner: { note: 'gateway' } }]);
  });

  test('that cools down is not allocated, and continues cooling', () => {
    const { view } = withOne();
    view.put(config({ cooldownSeconds: 60 }));
    expect(releaseAll(view, [of('10.0.0.0')]).states).toEqual(['released']);
    const before = view.snapshot();
    expect(releaseAll(view, [of('10.0.0.0')]).states).toEqual(['notAllocated']);
    expect(view.snapshot()).toEqual(before);
  });

  test('of two leaves the other to the endpoint', () => {
    const view = new MapView([poolRecord('four', '10.0.0.0/26'), poolRecord('six', 'fd00::/122')]);
    view.apply(allocate(view, { request: request('c1', { families: [4, 6] }), nowMs: NOW_MS }));
    expect(releaseAll(view, [of('10.0.0.0')]).states).toEqual(['released']);
    const [endpoint] = view.all('endpoint');
    expect(endpoint!.value.addresses.map(({ address: each }) => formatAddress(each))).toEqual(['fd00::']);
    expect(storedHandles(view)).toEqual(countedHandles(view));
    expect(releaseAll(view, [of('fd00::')]).states).toEqual(['released']);
    expect(view.all('endpoint')).toEqual([]);
  });
});

describe('addresses', () => {
  test('one with another holder does not affect the others, in the same block or not', () => {
    const held = withAllocations(
      block('10.0.0.0/30', 'n1'),
      { ordinals: [0, 1], attributes: calico('a') },
      { ordinals: [2], attributes: calico('b') },
    );
    const view = new MapView([
      poolRecord('p', '10.0.0.0/26', { blockSizeBits: 30 }),
      ...claimedBlock(held),
      handleRecord('a', ['10.0.0.0/30', 2]),
      handleRecord('b', ['10.0.0.0/30', 1]),
    ]);
    const asked = ['10.0.0.0', '10.0.0.2', '10.0.0.3', '10.0.0.1'].map((text) => of(text, { handleId: 'a' }));
    expect(releaseAll(view, asked).states).toEqual(['released', 'mismatch', 'notAllocated', 'released']);
    expect(storedHandles(view)).toEqual({ b: { '10.0.0.0/30': 1 } });
    expect(view.blocks().flatMap((each) => validateBlock(each, NOW_MS))).toEqual([]);
  });

  test('66 over two blocks, and 100 over 100 blocks, of which half are in a disabled pool, are all freed', () => {
    const view = new MapView([
      poolRecord('p', '10.0.0.0/24'),
      poolRecord('on', '10.1.0.0/24', { blockSizeBits: 30 }),
      poolRecord('off', '10.2.0.0/24', { blockSizeBits: 30 }),
    ]);
    for (let i = 0; i < 66; i++)
      view.apply(allocate(view, { request: request(`c${i}`, { pools: ['p'] }), nowMs: NOW_MS }));
    const asked = Array.from({ length: 66 }, (_, i) => of(`10.0.0.${i}`));
    for (let i = 0; i < 100; i++) {
      const cidr = `10.${1 + (i % 2)}.0.${(i >> 1) * 4}/30`;
      const held = withAllocations(block(cidr, 'n1'), { ordinals: [1], attributes: calico(`h${i}`) });
      for (const record of [...claimedBlock(held), handleRecord(`h${i}`, [cidr, 1])]) view.put(record);
      asked.push(of(`10.${1 + (i % 2)}.0.${(i >> 1) * 4 + 1}`));
    }
    view.put(poolRecord('off', '10.2.0.0/24', { blockSizeBits: 30, disabled: true }));
    const before = view.blocks().length;
    expect(before).toBe(102);
    const { states, steps } = releaseAll(view, asked);
    expect(new Set(states)).toEqual(new Set(['released']));
    expect(steps).toBeGreaterThan(1);
    expect([view.all('handle'), view.all('endpoint'), countedHandles(view)]).toEqual([[], [], {}]);
    expect(view.blocks()).toHaveLength(before);
    expect(view.history).toHaveLength(166);
  });
});

test('an address in an unreadable block is not treated as free, nor released', () => {
  const view = new MapView([poolRecord('p', '10.0.0.0/24')]);
  const key = '/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26';
  const { prefix } = block('10.0.0.0/26', 'n1');
  view.setAside.push({ key, name: { kind: 'block', prefix }, reason: 'it is not JSON' });
  const corrupt = expect.objectContaining({ code: 'STORE_CORRUPT', details: { key, reason: 'it is not JSON' } });
  expect(() => getAddress(view, address('10.0.0.7'), NOW_MS)).toThrow(corrupt);
  expect(releaseAll(view, [of('10.0.0.7'), of('10.0.0.70')]).states).toEqual(['unreadable', 'notAllocated']);
  expect(getAddress(view, address('10.0.0.70'), NOW_MS).state).toEqual({ kind: 'free' });
});

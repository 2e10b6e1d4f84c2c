import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { validateBlock } from '../records/block.js';
import type { View } from '../records/view.js';
import {
  address,
  calico,
  countedHandles,
  handleRecord,
  storedHandles,
  withAllocations,
} from '../testing/allocations.js';
import {
  affinity,
  attachment,
  block,
  claimedBlock,
  config,
  host,
  NOW_MS,
  poolRecord,
  prefix,
  request,
  takeAddress,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { getAddress } from './addresses.js';
import { allocate, type AllocationRequest } from './allocate/allocate.js';
import { type AddressRelease, continueAddressRelease, continueHandleRelease, release } from './release.js';

const add = (view: TestView, asked: AllocationRequest) => view.apply(allocate(view, { request: asked, nowMs: NOW_MS }));
/** Prevents an allocation in flight from completing after the release. */
const onlyMark = (handleId: string) => ({
  changes: [{ type: 'release', handleId, nowMs: NOW_MS }],
  outcome: { addresses: [] },
});
const onePool = () => new TestView([poolRecord('p', '10.0.0.0/26')]);

test('releases every address, the handle and the endpoint; the block stays with its node', () => {
  const view = new TestView([poolRecord('four', '10.0.0.0/26'), poolRecord('six', 'fd00::/122')]);
  add(view, request('c1', { families: [4, 6] }));
  const { addresses } = view.apply(release(view, attachment('c1'), NOW_MS));
  expect(addresses.map(formatPrefix)).toEqual(['10.0.0.0/32', 'fd00::/128']);
  expect(view.all('handle')).toEqual([]);
  expect(view.all('endpoint')).toEqual([]);
  expect(view.affinitiesOf(host('n1'))).toEqual([affinity('10.0.0.0/26', 'n1'), affinity('fd00::/122', 'n1')]);
  expect(view.blocks().map(({ unallocated }) => unallocated.at(-1))).toEqual([0, 0]);
});

test('of nothing, or a second time, changes nothing', () => {
  const view = onePool();
  add(view, request('c1'));
  view.apply(release(view, attachment('c1'), NOW_MS));
  expect(release(view, attachment('c1'), NOW_MS)).toEqual(onlyMark('net.c1'));
  expect(release(view, attachment('never'), NOW_MS)).toEqual(onlyMark('net.never'));
});

test('a late second release does not free the address that another got meanwhile', () => {
  const view = new TestView([poolRecord('p', '10.0.0.0/32', { blockSizeBits: 32 })]);
  add(view, request('c1'));
  view.apply(release(view, attachment('c1'), NOW_MS));
  const second = add(view, request('c2'));
  expect(release(view, attachment('c1'), NOW_MS)).toEqual(onlyMark('net.c1'));
  expect(view.endpoint({ namespace: 'default', name: 'n1-k8s-pod--c2-eth0' })).toEqual(second.endpoint);
});

test('frees addresses that Calico’s plugin recorded under the container ID alone, and nothing else of that name', () => {
  const tunnel = calico('vxlan-tunnel-addr-n1', { node: 'n1', type: 'vxlanTunnelAddress' });
  const holders = [calico('net.c1', { node: 'n1' }), calico('c1'), tunnel];
  const held = holders.map((attributes, ordinal) => ({ ordinals: [ordinal], attributes }));
  const view = new TestView([
    poolRecord('p', '10.0.0.0/26'),
    ...claimedBlock(withAllocations(block('10.0.0.0/26', 'n1'), ...held)),
    ...['net.c1', 'c1', 'vxlan-tunnel-addr-n1'].map((id) => handleRecord(id, ['10.0.0.0/26', 1])),
  ]);
  const { addresses } = view.apply(release(view, attachment('c1'), NOW_MS));
  expect(addresses.map(formatPrefix)).toEqual(['10.0.0.0/32', '10.0.0.1/32']);
  view.apply(release(view, attachment('vxlan-tunnel-addr-n1'), NOW_MS));
  expect(storedHandles(view)).toEqual({ 'vxlan-tunnel-addr-n1': { '10.0.0.0/26': 1 } });
});

test('deletes a block without an owner when it becomes empty, not before', () => {
  const view = onePool();
  add(view, request('c1'));
  add(view, request('c2'));
  const [owned] = view.blocks();
  view.put({ kind: 'block', value: { ...owned!, owner: undefined } });
  view.apply(release(view, attachment('c1'), NOW_MS));
  expect(view.blocks()).toHaveLength(1);
  view.apply(release(view, attachment('c2'), NOW_MS));
  expect(view.blocks()).toEqual([]);
});

test('works after the pool was deleted', () => {
  const view = onePool();
  add(view, request('c1'));
  view.remove({ kind: 'pool', name: 'p' });
  expect(view.apply(release(view, attachment('c1'), NOW_MS)).addresses.map(formatPrefix)).toEqual(['10.0.0.0/32']);
});

describe('wrong counts of a handle', () => {
  test('are deleted with the release: a missing block, and a count that is too high', () => {
    const view = onePool();
    add(view, request('c1'));
    const blocks = new Map([
      ['10.0.0.0/26', 5],
      ['10.9.0.0/26', 1],
    ]);
    view.put({ kind: 'handle', value: { id: 'net.c1', blocks } });
    view.apply(release(view, attachment('c1'), NOW_MS));
    expect(view.all('handle')).toEqual([]);
  });

  test('are deleted also when there is nothing to release', () => {
    const view = onePool();
    view.put({ kind: 'handle', value: { id: 'net.c1', blocks: new Map([['10.9.0.0/26', 1]]) } });
    const { addresses } = view.apply(release(view, attachment('c1'), NOW_MS));
    expect(addresses).toEqual([]);
    expect(view.all('handle')).toEqual([]);
  });
});

test('leaves addresses that cool down in the same block, and their queue, unchanged', () => {
  const cooling = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 1000 };
  const taken = takeAddress(block('10.0.0.0/26', 'n1'), cooling)!.block;
  const config = { strictAffinity: false, autoAllocateBlocks: true, maxBlocksPerHostCount: 0, cooldownSeconds: 60 };
  const view = new TestView([
    poolRecord('p', '10.0.0.0/26'),
    ...claimedBlock(taken),
    { kind: 'config', value: config },
  ]);
  add(view, request('c1'));
  view.apply(release(view, attachment('c1'), NOW_MS));
  expect(view.block(prefix('10.0.0.0/26'))).toMatchObject({
    attributes: [cooling, { ...cooling, releasedAtMs: Date.parse('2026-08-22T06:33:25Z') }],
    sequenceNumber: taken.sequenceNumber + 2n,
  });
  expect(view.block(prefix('10.0.0.0/26'))!.unallocated).not.toContain(0);
});

const handleStep = (view: View, handleId: string, searchesAllBlocks = false) =>
  continueHandleRelease(view, { handleId, nowMs: NOW_MS, searchesAllBlocks });

/** Releases to the end. @returns the released addresses, and the number of steps */
function releaseHandle(view: TestView, handleId: string, searchesAllBlocks = false) {
  const addresses: string[] = [];
  for (let steps = 1; ; steps++) {
    const decision = handleStep(view, handleId, searchesAllBlocks);
    expect(decision.changes.length).toBeLessThanOrEqual(128);
    const outcome = view.apply(decision);
    addresses.push(...outcome.addresses.map(formatPrefix));
    if (outcome.state === 'done') return { addresses, steps };
  }
}

describe('a handle', () => {
  test('of a container is deleted with its addresses of both families and its endpoint, in one step', () => {
    const view = new TestView([poolRecord('four', '10.0.0.0/26'), poolRecord('six', 'fd00::/122')]);
    view.apply(allocate(view, { request: request('c1', { families: [4, 6] }), nowMs: NOW_MS }));
    view.apply(allocate(view, { request: request('c2'), nowMs: NOW_MS }));
    expect(releaseHandle(view, 'net.c1')).toEqual({ addresses: ['10.0.0.0/32', 'fd00::/128'], steps: 1 });
    expect(Object.keys(storedHandles(view))).toEqual(['net.c2']);
    expect(view.all('endpoint').map(({ value }) => value.attachment.containerId)).toEqual(['c2']);
    expect(view.history.map(({ handleId }) => handleId)).toEqual(['net.c1', 'net.c1']);
  });

  test.each(['default.web-0', '9f2c0a', 'lb-9f2c', 'ipip-tunnel-addr-n1', 'vxlan-tunnel-addr-n1'])(
    'of an old or other kind of Calico is deleted: %s',
    (id) => {
      const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [0, 2], attributes: calico(id) });
      const view = new TestView([poolRecord('p', '10.0.0.0/26'), ...claimedBlock(held)]);
      view.put(handleRecord(id, ['10.0.0.0/30', 2]));
      expect(releaseHandle(view, id)).toEqual({ addresses: ['10.0.0.0/32', '10.0.0.2/32'], steps: 1 });
      expect(view.all('handle')).toEqual([]);
      expect(view.blocks()[0]).toMatchObject({ unallocated: [1, 3, 0, 2], attributes: [] });
    },
  );

  test('that does not exist has nothing, and changes nothing', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    expect(handleStep(view, 'net.c1')).toEqual({
      changes: [{ type: 'release', handleId: 'net.c1', nowMs: NOW_MS }],
      outcome: { state: 'done', addresses: [] },
    });
  });

  test.each([
    ['a block that is gone', [['10.9.0.0/26', 1]], []],
    ['more than it has', [['10.0.0.0/30', 7]], ['10.0.0.1/32']],
    [
      'both',
      [
        ['10.0.0.0/30', 7],
        ['10.9.0.0/26', 1],
      ],
      ['10.0.0.1/32'],
    ],
    ['a CIDR that is none', [['x', 1]], []],
  ] as const)('with a wrong count is deleted: %s', (_, counts, addresses) => {
    const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [1], attributes: calico('h') });
    const view = new TestView([...claimedBlock(addresses.length > 0 ? held : block('10.0.0.0/30', 'n1'))]);
    view.put(handleRecord('h', ...counts));
    expect(releaseHandle(view, 'h').addresses).toEqual(addresses);
    expect(view.all('handle')).toEqual([]);
  });

  test('whose name has a carriage return from an old migration is deleted', () => {
    const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [1], attributes: calico('h') });
    const view = new TestView([...claimedBlock(held), handleRecord('h\r', ['10.0.0.0/30', 1])]);
    expect(releaseHandle(view, 'h').addresses).toEqual(['10.0.0.1/32']);
    expect(view.all('handle')).toEqual([]);
  });

  test('whose record was lost is found by searching all blocks, if requested', () => {
    const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [1], attributes: calico('h') });
    const view = new TestView(claimedBlock(held));
    expect(releaseHandle(view, 'h').addresses).toEqual([]);
    expect(releaseHandle(view, 'h', true).addresses).toEqual(['10.0.0.1/32']);
  });

  test('in more blocks than a transaction holds is deleted in steps, with correct counts after each', () => {
    const blocks = Array.from({ length: 300 }, (_, i) => `10.0.${i >> 6}.${(i & 63) * 4}/30`);
    const view = new TestView([poolRecord('p', '10.0.0.0/16', { blockSizeBits: 30 })]);
    for (const cidr of blocks) {
      const held = withAllocations(
        block(cidr, 'n1'),
        { ordinals: [1], attributes: calico('h') },
        { ordinals: [2], attributes: calico('other') },
      );
      for (const record of claimedBlock(held)) view.put(record);
    }
    for (const id of ['h', 'other']) view.put(handleRecord(id, ...blocks.map((cidr) => [cidr, 1] as const)));
    for (let state = 'more'; state === 'more';) {
      const decision = handleStep(view, 'h');
      expect(decision.changes.length).toBeLessThanOrEqual(128);
      ({ state } = view.apply(decision));
      expect(storedHandles(view)).toEqual(countedHandles(view));
    }
    expect(Object.keys(storedHandles(view))).toEqual(['other']);
  });

  test('in many missing blocks is deleted in steps', () => {
    const gone = Array.from({ length: 250 }, (_, i) => [`10.9.${i}.0/26`, 1] as const);
    const view = new TestView([handleRecord('h', ...gone)]);
    expect(releaseHandle(view, 'h')).toEqual({ addresses: [], steps: 3 });
    expect(view.all('handle')).toEqual([]);
  });

  test('does not include another one whose name begins with its own', () => {
    const held = withAllocations(
      block('10.0.0.0/30', 'n1'),
      { ordinals: [0], attributes: calico('net.c1') },
      { ordinals: [1], attributes: calico('net.c10') },
    );
    const view = new TestView([
      ...claimedBlock(held),
      handleRecord('net.c1', ['10.0.0.0/30', 1]),
      handleRecord('net.c10', ['10.0.0.0/30', 1]),
    ]);
    expect(releaseHandle(view, 'net.c1').addresses).toEqual(['10.0.0.0/32']);
    expect(storedHandles(view)).toEqual({ 'net.c10': { '10.0.0.0/30': 1 } });
  });
});

test('addresses cool down where that is configured', () => {
  const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [0, 1], attributes: calico('h') });
  const view = new TestView([
    ...claimedBlock(held),
    handleRecord('h', ['10.0.0.0/30', 2]),
    config({ cooldownSeconds: 5 }),
  ]);
  releaseHandle(view, 'h');
  expect(view.blocks()[0]).toMatchObject({
    unallocated: [2, 3],
    attributes: [{ handleId: undefined, owner: {}, releasedAtMs: Math.floor(NOW_MS / 1000) * 1000 }],
    allocations: [0, 0, null, null],
  });
});

const of = (text: string, rest: Partial<AddressRelease> = {}): AddressRelease => ({
  address: address(text),
  handleId: undefined,
  sequenceNumber: undefined,
  ...rest,
});

/** Releases all of them, step by step. @returns the states in their order */
function releaseEach(view: TestView, releases: readonly AddressRelease[]) {
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
  const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
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
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    const wanted = request('c1', { netns: { bootId: 'one', inode: 7n } });
    view.apply(allocate(view, { request: wanted, nowMs: NOW_MS }));
    expect(releaseEach(view, [of('10.0.0.0', { netns })]).states).toEqual([state]);
  });

  test('whose endpoint has no network namespace is not released for one', () => {
    const { view } = withOne();
    expect(releaseEach(view, [of('10.0.0.0', { netns: { bootId: 'one', inode: 7n } })]).states).toEqual(['mismatch']);
    const held = withAllocations(block('10.9.0.0/28', 'n1'), { ordinals: [3], attributes: calico('h') });
    for (const record of [...claimedBlock(held), handleRecord('h', ['10.9.0.0/28', 1])]) view.put(record);
    expect(releaseEach(view, [of('10.9.0.3', { netns: { bootId: 'one', inode: 7n } })]).states).toEqual(['mismatch']);
  });

  test('that was released and allocated to another is not freed by the old sequence number', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/32', { blockSizeBits: 32 })]);
    const { endpoint } = view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    view.apply(release(view, attachment('c1'), NOW_MS));
    view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS + 1 }));
    const { sequenceNumber } = endpoint.addresses[0]!;
    expect(releaseEach(view, [of('10.0.0.0', { handleId: 'net.c1', sequenceNumber })]).states).toEqual(['mismatch']);
  });

  test.each([
    ['in no pool', '10.9.0.0'],
    ['in no block', '10.0.0.64'],
    ['free', '10.0.0.1'],
  ])('that is %s is not allocated, and nothing is changed', (_, text) => {
    const { view } = withOne();
    const before = view.snapshot();
    expect(releaseEach(view, [of(text)]).states).toEqual(['notAllocated']);
    expect(view.snapshot()).toEqual(before);
  });

  test('in no pool is found by its block', () => {
    const held = withAllocations(block('10.9.0.0/28', 'n1'), { ordinals: [3], attributes: calico('h') });
    const view = new TestView([...claimedBlock(held), handleRecord('h', ['10.9.0.0/28', 1])]);
    expect(releaseEach(view, [of('10.9.0.3')]).states).toEqual(['released']);
    expect([view.all('handle'), view.blocks(), view.all('affinity')]).toEqual([[], [], []]);
  });

  test('without a handle can be released', () => {
    const held = withAllocations(block('10.0.0.0/28', 'n1'), {
      ordinals: [3],
      attributes: calico(undefined, { note: 'gateway' }),
    });
    const view = new TestView([poolRecord('p', '10.0.0.0/26'), ...claimedBlock(held)]);
    expect(releaseEach(view, [of('10.0.0.3', { handleId: 'h' })]).states).toEqual(['mismatch']);
    expect(releaseEach(view, [of('10.0.0.3')]).states).toEqual(['released']);
    expect(view.history).toMatchObject([{ handleId: undefined, owner: { note: 'gateway' } }]);
  });

  test('that cools down is not allocated, and continues cooling', () => {
    const { view } = withOne();
    view.put(config({ cooldownSeconds: 60 }));
    expect(releaseEach(view, [of('10.0.0.0')]).states).toEqual(['released']);
    const before = view.snapshot();
    expect(releaseEach(view, [of('10.0.0.0')]).states).toEqual(['notAllocated']);
    expect(view.snapshot()).toEqual(before);
  });

  test('of two leaves the other to the endpoint', () => {
    const view = new TestView([poolRecord('four', '10.0.0.0/26'), poolRecord('six', 'fd00::/122')]);
    view.apply(allocate(view, { request: request('c1', { families: [4, 6] }), nowMs: NOW_MS }));
    expect(releaseEach(view, [of('10.0.0.0')]).states).toEqual(['released']);
    const [endpoint] = view.all('endpoint');
    expect(endpoint!.value.addresses.map(({ address: each }) => formatAddress(each))).toEqual(['fd00::']);
    expect(storedHandles(view)).toEqual(countedHandles(view));
    expect(releaseEach(view, [of('fd00::')]).states).toEqual(['released']);
    expect(view.all('endpoint')).toEqual([]);
  });
});

describe('addresses', () => {
  test('one with another holder does not affect further addresses, in the same block or not', () => {
    const held = withAllocations(
      block('10.0.0.0/30', 'n1'),
      { ordinals: [0, 1], attributes: calico('a') },
      { ordinals: [2], attributes: calico('b') },
    );
    const view = new TestView([
      poolRecord('p', '10.0.0.0/26', { blockSizeBits: 30 }),
      ...claimedBlock(held),
      handleRecord('a', ['10.0.0.0/30', 2]),
      handleRecord('b', ['10.0.0.0/30', 1]),
    ]);
    const asked = ['10.0.0.0', '10.0.0.2', '10.0.0.3', '10.0.0.1'].map((text) => of(text, { handleId: 'a' }));
    expect(releaseEach(view, asked).states).toEqual(['released', 'mismatch', 'notAllocated', 'released']);
    expect(storedHandles(view)).toEqual({ b: { '10.0.0.0/30': 1 } });
    expect(view.blocks().flatMap((each) => validateBlock(each, NOW_MS))).toEqual([]);
  });

  test('66 over two blocks, and 100 over 100 blocks, of which half are in a disabled pool, are all freed', () => {
    const view = new TestView([
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
    const { states, steps } = releaseEach(view, asked);
    expect(new Set(states)).toEqual(new Set(['released']));
    expect(steps).toBeGreaterThan(1);
    expect([view.all('handle'), view.all('endpoint'), countedHandles(view)]).toEqual([[], [], {}]);
    expect(view.blocks()).toHaveLength(before);
    expect(view.history).toHaveLength(166);
  });
});

test('an address in an unreadable block is not treated as free, nor released', () => {
  const view = new TestView([poolRecord('p', '10.0.0.0/24')]);
  const key = '/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26';
  const { prefix } = block('10.0.0.0/26', 'n1');
  view.setAside({ kind: 'block', prefix }, 'it is not JSON');
  const corrupt = expect.objectContaining({ code: 'STORE_CORRUPT', details: { key, reason: 'it is not JSON' } });
  expect(() => getAddress(view, address('10.0.0.7'), NOW_MS)).toThrow(corrupt);
  expect(releaseEach(view, [of('10.0.0.7'), of('10.0.0.70')]).states).toEqual(['unreadable', 'notAllocated']);
  expect(getAddress(view, address('10.0.0.70'), NOW_MS).state).toEqual({ kind: 'free' });
});

import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { release } from '../addresses/release.js';
import { collectCooledBlock } from '../blocks/release-changes.js';
import { smallestItems } from '../records/page.js';
import { calico, countedHandles, withAllocations, handleRecord, storedHandles } from '../testing/allocations.js';
import {
  attachment,
  block,
  claimedBlock,
  config,
  host,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import {
  continueAffinityClaim,
  continueAffinityRelease,
  listAffinities,
  type AffinityClaim,
  type AffinityScope,
  type OwnedBlock,
} from './affinities.js';

const REGISTERED = { policy: 'register', uid: 'uid-n' } as const;

function claim(view: TestView, cidr: string, rest: Partial<AffinityClaim> = {}) {
  const claimed: string[] = [];
  const refused: string[] = [];
  for (let after: AffinityClaim['after']; ;) {
    const asked = { cidr: prefix(cidr), nodeName: 'n1', unknownNodes: REGISTERED, nowMs: NOW_MS, after, ...rest };
    const decision = continueAffinityClaim(view, asked);
    expect(decision.changes.length).toBeLessThanOrEqual(128);
    const step = view.apply(decision);
    claimed.push(...step.claimed.map(formatPrefix));
    refused.push(...step.refused.map(({ block: each, reason }) => `${formatPrefix(each)}: ${reason}`));
    if (!step.next) return { claimed, refused };
    after = step.next;
  }
}

function end(view: TestView, scope: AffinityScope, mustBeEmpty = false) {
  const results: string[] = [];
  for (let after: OwnedBlock | undefined; ;) {
    const decision = continueAffinityRelease(view, { scope, mustBeEmpty, nowMs: NOW_MS, after });
    expect(decision.changes.length).toBeLessThanOrEqual(128);
    const step = view.apply(decision);
    results.push(
      ...step.results.map(({ block: each, owner, result }) => `${formatPrefix(each)} ${owner.name} ${result}`),
    );
    if (!step.next) return results;
    after = step.next;
  }
}

const ofNode = (name = 'n1'): AffinityScope => ({ kind: 'owner', owner: host(name) });
const blocksOf = (view: TestView) =>
  view.blocks().map(({ prefix: each, owner }) => `${formatPrefix(each)} ${owner?.name}`);
const small = () => new TestView([poolRecord('p', '10.0.0.0/24', { blockSizeBits: 30 })]);

describe('a claim of a range', () => {
  test('makes every block the node’s, over several transactions, and a repeat changes nothing', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/16', { blockSizeBits: 26 })]);
    expect(claim(view, '10.0.0.0/18')).toMatchObject({ claimed: { length: 256 }, refused: [] });
    expect(view.all('affinity').every(({ value }) => value.state === 'confirmed')).toBe(true);
    const before = view.snapshot();
    expect(claim(view, '10.0.0.0/18')).toMatchObject({ claimed: { length: 256 } });
    expect(view.snapshot()).toEqual(before);
  });

  test('names blocks of other owners, without an owner, or of another size, and claims the rest', () => {
    const view = small();
    for (const record of claimedBlock(block('10.0.0.0/30', 'n2'))) view.put(record);
    view.put({ kind: 'block', value: block('10.0.0.4/30', 'n1', { owner: undefined }) });
    view.put({ kind: 'block', value: block('10.0.0.8/31', 'n2') });
    view.put({ kind: 'block', value: block('10.0.0.12/30', 'n1', { owner: { kind: 'virtual', name: 'n1' } }) });
    view.put({ kind: 'block', value: block('10.0.0.16/30', 'n1') });
    expect(claim(view, '10.0.0.0/27')).toEqual({
      claimed: ['10.0.0.16/30', '10.0.0.20/30', '10.0.0.24/30', '10.0.0.28/30'],
      refused: [
        '10.0.0.0/30: it belongs to node n2',
        '10.0.0.4/30: it has no owner, and is removed with the release of its last address',
        '10.0.0.8/30: block 10.0.0.8/31 of another size overlaps it',
        '10.0.0.12/30: it belongs to n1',
      ],
    });
    expect(view.affinity(host('n1'), prefix('10.0.0.16/30'))?.state).toBe('confirmed');
  });

  test.each([
    ['10.9.0.0/24', 'CLAIM_REFUSED', /does not lie in one pool/],
    ['10.0.0.0/31', 'CLAIM_REFUSED', /blocks of pool "p" are of \/30/],
    ['10.1.0.0/24', 'CLAIM_REFUSED', /pool "off" is disabled/],
    ['fd00::/64', 'CLAIM_REFUSED', /288230376151711744 blocks/],
  ])('of %s is refused: %s %s', (cidr, code, message) => {
    const view = small();
    view.put(poolRecord('off', '10.1.0.0/24', { disabled: true }));
    view.put(poolRecord('six', 'fd00::/64'));
    const before = view.snapshot();
    expect(() => claim(view, cidr)).toThrow(expect.objectContaining({ code, message: expect.stringMatching(message) }));
    expect(view.snapshot()).toEqual(before);
  });

  test('is of one block at least, and of 4096 at most', () => {
    const view = small();
    expect(claim(view, '10.0.0.4/30').claimed).toEqual(['10.0.0.4/30']);
    view.put(poolRecord('large', '10.16.0.0/16', { blockSizeBits: 29 }));
    const asked = { nodeName: 'n1', unknownNodes: REGISTERED, nowMs: NOW_MS, after: undefined };
    const decide = (cidr: string) => continueAffinityClaim(view, { ...asked, cidr: prefix(cidr) });
    expect(decide('10.16.0.0/17').outcome.next).toEqual(prefix('10.16.1.136/29'));
    expect(() => decide('10.16.0.0/16')).toThrow(/it has 8192 blocks; at most 4096 may be claimed at once/);
  });

  test('returns which blocks were not the node’s before, and writes nothing if all were', () => {
    const view = small();
    for (const record of claimedBlock(block('10.0.0.0/30', 'n1'))) view.put(record);
    const decide = () =>
      continueAffinityClaim(view, {
        ...{ cidr: prefix('10.0.0.0/29'), nodeName: 'n1', nowMs: NOW_MS, after: undefined },
        unknownNodes: REGISTERED,
      });
    const { gained, claimed } = view.apply(decide());
    expect([gained.map(formatPrefix), claimed.length]).toEqual([['10.0.0.4/30'], 2]);
    const again = decide();
    expect([again.changes, again.outcome.gained, again.outcome.claimed.length]).toEqual([[], [], 2]);
  });

  test('skips unreadable blocks, and reports them', () => {
    const view = small();
    const [unread, ownerless] = [prefix('10.0.0.0/30'), prefix('10.0.0.4/30')];
    view.setAside({ kind: 'block', prefix: unread }, 'it is not JSON');
    const name = { kind: 'affinity', owner: host('n1'), block: ownerless } as const;
    view.setAside(name, 'it is not JSON');
    expect(claim(view, '10.0.0.0/28')).toEqual({
      claimed: ['10.0.0.8/30', '10.0.0.12/30'],
      refused: [
        '10.0.0.0/30: record /calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30 cannot be read',
        '10.0.0.4/30: the record of its affinity cannot be read',
      ],
    });
  });

  test('is refused for a node that is being deleted, or that has to be registered and is not', () => {
    const view = small();
    view.put(nodeRecord('n1', { deletionTimeMs: NOW_MS }));
    expect(() => claim(view, '10.0.0.0/24')).toThrow(expect.objectContaining({ code: 'NODE_BEING_DELETED' }));
    const refuse = { nodeName: 'n2', unknownNodes: { policy: 'refuse' } } as const;
    expect(() => claim(view, '10.0.0.0/24', refuse)).toThrow(expect.objectContaining({ code: 'NODE_NOT_FOUND' }));
  });
});

describe('the end of a claim', () => {
  test('that must be empty is refused while an address is in use, and then removes the block', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    const scope: AffinityScope = { kind: 'block', block: prefix('10.0.0.0/26') };
    const before = view.snapshot();
    expect(() => end(view, scope, true)).toThrow(expect.objectContaining({ code: 'BLOCK_IN_USE' }));
    expect(end(view, ofNode(), true)).toEqual(['10.0.0.0/26 n1 notEmpty']);
    expect(view.snapshot()).toEqual(before);
    view.apply(release(view, attachment('c1'), NOW_MS));
    expect(end(view, scope, true)).toEqual(['10.0.0.0/26 n1 removed']);
    expect([view.blocks(), view.all('affinity')]).toEqual([[], []]);
    expect(end(view, scope, true)).toEqual([]);
  });

  test('of full blocks whose pool was deleted leaves them without an owner, until their last address', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24', { blockSizeBits: 31 })]);
    for (let i = 0; i < 6; i++) view.apply(allocate(view, { request: request(`c${i}`), nowMs: NOW_MS }));
    view.remove({ kind: 'pool', name: 'p' });
    expect(end(view, ofNode()).map((text) => text.split(' ')[2])).toEqual(['disowned', 'disowned', 'disowned']);
    expect([view.all('affinity').length, view.blocks().length]).toEqual([0, 3]);
    for (let i = 0; i < 6; i++) view.apply(release(view, attachment(`c${i}`), NOW_MS));
    expect(view.blocks()).toEqual([]);
  });

  test('of a virtual owner does not touch the affinity of a node of its name, and vice versa', () => {
    const virtual = { kind: 'virtual', name: 'n1' } as const;
    const view = small();
    for (const record of claimedBlock(block('10.0.0.0/30', 'n1'))) view.put(record);
    for (const record of claimedBlock(block('10.0.0.4/30', 'n1', { owner: virtual }))) view.put(record);
    view.put({ kind: 'affinity', value: { owner: virtual, block: prefix('10.0.0.0/30'), state: 'pending' } });
    expect(end(view, { kind: 'owner', owner: virtual })).toEqual(['10.0.0.0/30 n1 notOwned', '10.0.0.4/30 n1 removed']);
    expect(blocksOf(view)).toEqual(['10.0.0.0/30 n1']);
    expect(view.affinity(host('n1'), prefix('10.0.0.0/30'))?.state).toBe('confirmed');
  });

  test('keeps to its range, and to its pool, where it ends virtual owners’ claims as well', () => {
    const view = small();
    claim(view, '10.0.0.0/27');
    claim(view, '10.0.0.32/28', { nodeName: 'n2' });
    const lb = { kind: 'virtual', name: 'load-balancer' } as const;
    for (const record of claimedBlock(block('10.0.0.64/30', 'n1', { owner: lb }))) view.put(record);
    expect(end(view, { kind: 'range', cidr: prefix('10.0.0.0/28'), owner: host('n1') })).toHaveLength(4);
    expect(end(view, { kind: 'range', cidr: prefix('10.0.0.0/24'), owner: host('n3') })).toEqual([]);
    expect(view.blocks()).toHaveLength(9);
    expect(end(view, { kind: 'pool', poolName: 'p' })).toHaveLength(9);
    expect([view.blocks(), view.all('affinity')]).toEqual([[], []]);
    const nowhere: AffinityScope = { kind: 'pool', poolName: 'x' };
    expect(() => end(view, nowhere)).toThrow(expect.objectContaining({ code: 'POOL_NOT_FOUND' }));
  });

  test('of a block without an owner, which an old claim names, clears both', () => {
    const view = small();
    view.put({ kind: 'affinity', value: { owner: host('n1'), block: prefix('10.0.0.0/30'), state: 'confirmed' } });
    view.put({ kind: 'block', value: block('10.0.0.0/30', 'n1', { owner: undefined }) });
    expect(end(view, { kind: 'pool', poolName: 'p' })).toEqual(['10.0.0.0/30 n1 notOwned']);
    expect(view.all('affinity')).toEqual([]);
  });

  test('of an unknown node is none', () => {
    expect(end(small(), ofNode('unknown'))).toEqual([]);
  });

  test('of a block in which only Windows keeps addresses removes it with them, with a handle in any case', () => {
    const id = 'Windows-Reserved-IPAM-Handle';
    const held = withAllocations(block('10.0.0.0/30', 'n1'), {
      ordinals: [0, 1, 3],
      attributes: calico(id, { note: 'reserved' }),
    });
    const more = Array.from({ length: 40 }, (_, i) => [`10.7.${i}.0/30`, 3] as const);
    const view = small();
    for (const record of [...claimedBlock(held), handleRecord(id, ['10.0.0.0/30', 3], ...more)]) view.put(record);
    expect(end(view, ofNode(), true)).toEqual(['10.0.0.0/30 n1 removed']);
    expect(storedHandles(view)[id]).toEqual(Object.fromEntries(more));
  });

  test('counts addresses that cool down as in use until it is over', () => {
    const cooling = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 10_000 };
    const held = withAllocations(block('10.0.0.0/30', 'n1'), { ordinals: [0], attributes: cooling });
    const ofCooldown = (cooldownSeconds: number) => {
      const view = small();
      for (const record of [...claimedBlock(held), config({ cooldownSeconds })]) view.put(record);
      return end(view, ofNode(), true);
    };
    expect(ofCooldown(30)).toEqual(['10.0.0.0/30 n1 notEmpty']);
    expect(ofCooldown(5)).toEqual(['10.0.0.0/30 n1 removed']);
  });
});

describe('a block whose addresses cool down', () => {
  const released = (agoMs: number) => ({ handleId: undefined, owner: {}, releasedAtMs: NOW_MS - agoMs });
  const view = (owner: string | undefined, ...agoMs: number[]) => {
    const gives = agoMs.map((ago, ordinal) => ({ ordinals: [ordinal], attributes: released(ago) }));
    const held = withAllocations(block('10.0.0.0/30', 'n1'), ...gives);
    const value = { ...held, owner: owner === undefined ? undefined : host(owner) };
    return new TestView([
      poolRecord('p', '10.0.0.0/30', { blockSizeBits: 30 }),
      ...claimedBlock(value),
      config({ cooldownSeconds: 30 }),
    ]);
  };
  const collect = (of: TestView) => collectCooledBlock(of, { block: of.blocks()[0]!, nowMs: NOW_MS });

  test('gets those back whose cool-down is over, with one more change of the block', () => {
    const of = view('n1', 60_000, 5_000, 31_000);
    const { sequenceNumber } = of.blocks()[0]!;
    expect(of.apply(collect(of))).toBe(true);
    expect(of.blocks()[0]).toMatchObject({
      unallocated: [3, 0, 2],
      attributes: [released(5_000)],
      sequenceNumber: sequenceNumber + 1n,
    });
    expect(of.history).toEqual([]);
  });

  test('is not written without such addresses, nor when it no longer exists', () => {
    expect(collect(view('n1', 5_000))).toEqual({ changes: [], outcome: false });
    const gone = collectCooledBlock(new TestView(), { block: block('10.0.0.0/30', 'n1'), nowMs: NOW_MS });
    expect(gone).toEqual({ changes: [], outcome: false });
  });

  test('is removed with the last of them when it has no owner', () => {
    const of = view(undefined, 60_000);
    of.apply(collect(of));
    expect(of.blocks()).toEqual([]);
  });
});

test('affinities are listed in the order of their blocks, by node and by pool, in pages', () => {
  const view = small();
  claim(view, '10.0.0.0/28');
  claim(view, '10.0.0.16/29', { nodeName: 'n2' });
  view.put({ kind: 'affinity', value: { owner: host('n2'), block: prefix('10.0.0.0/30'), state: 'pending' } });
  view.put({ kind: 'affinity', value: { owner: host('n1'), block: prefix('10.7.0.0/26'), state: 'pending' } });
  const list = (nodeName = '', poolName = '', limit = 4) => {
    const found: string[] = [];
    for (let after: OwnedBlock | undefined; ;) {
      const { items, more } = listAffinities(view, { after, limit, nodeName, poolName });
      found.push(
        ...items.map(
          ({ affinity: { block: each, owner }, isBacked, poolName: pool }) =>
            `${formatPrefix(each)} ${owner.name} ${isBacked} ${pool}`,
        ),
      );
      if (!more) return found;
      after = items.at(-1)!.affinity;
    }
  };
  const all = [
    '10.0.0.0/30 n1 true p',
    '10.0.0.0/30 n2 false p',
    '10.0.0.4/30 n1 true p',
    '10.0.0.8/30 n1 true p',
    '10.0.0.12/30 n1 true p',
    '10.0.0.16/30 n2 true p',
    '10.0.0.20/30 n2 true p',
    '10.7.0.0/26 n1 false undefined',
  ];
  for (const limit of [1, 2, 4, 8, 9]) expect(list('', '', limit)).toEqual(all);
  expect(list('n1')).toEqual(all.filter((text) => text.includes(' n1 ')));
  expect(list('', 'p')).toEqual(all.slice(0, -1));
  expect(list('', 'x')).toEqual([]);
  expect(storedHandles(view)).toEqual(countedHandles(view));
});

test('property: the smallest of many are the first of all of them in order', () => {
  fc.assert(
    fc.property(fc.array(fc.integer()), fc.integer({ min: 1, max: 12 }), (numbers, count) => {
      const inOrder = (a: number, b: number) => a - b;
      expect(smallestItems(numbers, count, inOrder)).toEqual([...numbers].sort(inOrder).slice(0, count));
    }),
    { verbose: fc.VerbosityLevel.Verbose },
  );
});

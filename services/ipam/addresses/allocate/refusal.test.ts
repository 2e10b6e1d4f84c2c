import { describe, expect, test } from 'vitest';

import type { Block } from '../../records/block.js';
import type { RecordValue } from '../../records/view.js';
import { assign, assignment } from '../../testing/allocations.js';
import {
  affinity,
  block,
  claimedBlock,
  config,
  failureOf,
  fullBlock,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../../testing/records.js';
import { TestView } from '../../testing/test-view.js';
import { assignAddresses } from '../assign.js';
import { allocate, type AllocationRequest } from './allocate.js';
import { explainAllocation } from './preview.js';

const STRICT = config({ strictAffinity: true });

const refusal = (view: TestView, rest: Partial<AllocationRequest> = {}) =>
  failureOf(() => allocate(view, { request: request('c1', rest), nowMs: NOW_MS })).message;

/** A view of so many blocks that sorting them for each question would take minutes. */
class SortedView extends TestView {
  readonly #sorted = super.blocks();

  override blocks(): Block[] {
    return this.#sorted;
  }
}

describe('a refusal names the pools and blocks', () => {
  test('with the owner and the fill of each block', () => {
    const cooling = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 1000 };
    const view = new TestView([
      config({ strictAffinity: true, cooldownSeconds: 30 }),
      poolRecord('p', '10.0.0.0/24'),
      ...claimedBlock({ ...fullBlock('10.0.0.0/26', 'n1'), attributes: [cooling] }),
      ...claimedBlock(block('10.0.0.64/26', 'n2')),
      { kind: 'block', value: { ...fullBlock('10.0.0.128/26', 'n1'), owner: undefined } },
      { kind: 'block', value: block('10.0.0.192/26', 'n1', { owner: { kind: 'virtual', name: 'load-balancer' } }) },
    ]);
    expect(refusal(view)).toBe(
      'no IPv4 address for net/c1/eth0 on node n1: pool "p" 10.0.0.0/24: ' +
        'block 10.0.0.0/26 is full (64 of 64 addresses in use, 64 of them cooling down), ' +
        'block 10.0.0.64/26 belongs to node n2 (0 of 64 addresses in use, claimed just now), ' +
        'block 10.0.0.128/26 has no owner (64 of 64 addresses in use), ' +
        'block 10.0.0.192/26 belongs to load-balancer (0 of 64 addresses in use). ' +
        'Affinity is strict, so nodes use only their own blocks. ' +
        'Remedies: switch strict affinity off, or release addresses of the node’s blocks; wait until released addresses have cooled down',
    );
  });

  test('and stays short enough for a header with many of them', () => {
    const pools = Array.from({ length: 20 }, (_, i) => poolRecord(`pool-${i}`, `10.${i}.0.0/20`));
    const blocks = Array.from({ length: 20 * 64 }, (_, i) => `10.${i >> 6}.${(i >> 2) & 15}.${(i & 3) * 64}/26`);
    const records = blocks.map((cidr): RecordValue => ({ kind: 'block', value: block(cidr, 'n2') }));
    const text = refusal(new SortedView([STRICT, ...pools, ...records]));
    expect(text).toContain('and 60 more blocks of other owners');
    expect(text).toContain('and 14 more pools');
    expect(text.length).toBeLessThan(3000);
  }, 60_000);
});

describe('a refusal explains why there is no further block', () => {
  const own = claimedBlock(fullBlock('10.0.0.0/26', 'n1'));
  const p = poolRecord('p', '10.0.0.0/24');

  test.each<[string, readonly RecordValue[], Partial<AllocationRequest>, string]>([
    [
      'the cap of the configuration',
      [config({ maxBlocksPerHostCount: 1 })],
      { maxBlocksCount: 5 },
      'no further block: node n1 has 1 block in the serving pools, and its limit is 1',
    ],
    [
      'the cap of the request',
      [],
      { maxBlocksCount: 1 },
      'node n1 has 1 block in the serving pools, and its limit is 1',
    ],
    ['disabled claims', [config({ autoAllocateBlocks: false })], {}, 'autoAllocateBlocks is off'],
    [
      'reservations of the rest',
      [reserve('10.0.0.64/26', '10.0.0.128/25')],
      {},
      'no further block: the remaining ranges are reserved, or covered by blocks of another size',
    ],
  ])('%s', (_, records, rest, expected) => {
    expect(refusal(new TestView([p, ...own, ...records]), rest)).toContain(expected);
  });

  test('a reservation of the whole pool', () => {
    expect(refusal(new TestView([p, reserve('10.0.0.0/8')]))).toContain('pool "p" 10.0.0.0/24: all of it is reserved');
  });

  test('reservations of a block’s free addresses', () => {
    const half = {
      ...fullBlock('10.0.0.0/26', 'n1'),
      allocations: fullBlock('10.0.0.0/26', 'n1').allocations.with(5, null),
    };
    const view = new TestView([
      poolRecord('p', '10.0.0.0/26'),
      ...claimedBlock({ ...half, unallocated: [5] }),
      reserve('10.0.0.5/32'),
    ]);
    expect(refusal(view)).toContain('block 10.0.0.0/26 is full (63 of 64 addresses in use, 1 free ones reserved)');
  });
});

describe('the explanation matches the allocation', () => {
  const p = poolRecord('p', '10.0.0.0/24');
  const foreign = claimedBlock(block('10.0.0.0/26', 'n2'));
  const fullOwn = claimedBlock(fullBlock('10.0.0.64/26', 'n1'));
  const CAPPED = config({ strictAffinity: true, maxBlocksPerHostCount: 1 });

  interface Explained {
    readonly skipReason?: string;
    readonly noClaim?: string;
    /** The outcome: where the address comes from, or the refusal with its reason. */
    readonly end: 'claimed' | 'own' | 'borrowed' | 'refused';
  }

  test.each<[string, readonly RecordValue[], Explained]>([
    ['a pool without blocks', [p], { end: 'claimed' }],
    ['a pool without blocks, strict', [p, STRICT], { end: 'claimed' }],
    ['room in the own block', [p, ...claimedBlock(block('10.0.0.64/26', 'n1'))], { end: 'own' }],
    ['only another node’s block, and unclaimed ones', [p, STRICT, ...foreign], { end: 'claimed' }],
    [
      'only another node’s block, strict, and none to claim',
      [poolRecord('p', '10.0.0.0/26'), STRICT, ...foreign],
      { end: 'refused' },
    ],
    [
      'the cap reached, and affinity strict',
      [p, CAPPED, ...fullOwn, ...foreign],
      { noClaim: 'node n1 has 1 block in the serving pools, and its limit is 1', end: 'refused' },
    ],
    [
      'the cap reached, and another node’s block with room',
      [p, config({ maxBlocksPerHostCount: 1 }), ...fullOwn, ...foreign],
      { noClaim: 'node n1 has 1 block in the serving pools, and its limit is 1', end: 'borrowed' },
    ],
    [
      'a cap that a stale claim does not count against',
      [p, CAPPED, ...foreign, { kind: 'affinity', value: affinity('10.0.0.0/26', 'n1') }],
      { end: 'claimed' },
    ],
    [
      'claims switched off',
      [p, config({ strictAffinity: true, autoAllocateBlocks: false })],
      { noClaim: 'autoAllocateBlocks is off', end: 'refused' },
    ],
    [
      'a disabled pool',
      [poolRecord('p', '10.0.0.0/24', { disabled: true })],
      { skipReason: 'disabled', end: 'refused' },
    ],
    ['reservations of everything', [p, reserve('10.0.0.0/8')], { noClaim: 'all of it is reserved', end: 'refused' }],
    [
      'reservations of everything together',
      [p, reserve('10.0.0.0/25', '10.0.0.128/25')],
      { noClaim: 'all of it is reserved', end: 'refused' },
    ],
    [
      'a selector that leaves the node out',
      [poolRecord('p', '10.0.0.0/24', { nodeSelector: "zone == 'b'" }), nodeRecord('n1', { labels: { zone: 'a' } })],
      { skipReason: "zone == 'b'", end: 'refused' },
    ],
    [
      'blocks of another size over all of it',
      [p, { kind: 'block', value: block('10.0.0.0/23', 'n2') }],
      { noClaim: 'a block of another size from a former pool covers it', end: 'refused' },
    ],
  ])('%s', (_, records, { skipReason, noClaim, end }) => {
    const view = new TestView(records);
    const input = { request: request('c1'), nowMs: NOW_MS };
    const { refusal: refused, families } = explainAllocation(view, { ...input, maxBlocksCount: 9 });
    const [story] = families[0]?.pools ?? [];
    expect(story?.skipReason ?? '').toContain(skipReason ?? '');
    expect(story?.noClaim ?? '').toContain(noClaim ?? '');
    expect([story?.skipReason === undefined, story?.noClaim === undefined]).toEqual([!skipReason, !noClaim]);
    if (end === 'refused') {
      const text = refusal(view);
      expect(refused?.message).toBe(text);
      expect(text).toContain(skipReason ?? noClaim ?? 'block 10.0.0.0/26 belongs to node n2');
      // It is a reason only where other owners have free addresses.
      expect(text.includes('Affinity is strict')).toBe(records.includes(foreign[0]!));
    } else {
      expect(families[0]?.grant?.origin).toBe(end);
      const { endpoint } = allocate(view, input).outcome;
      expect(endpoint.addresses[0]).toEqual(families[0]?.grant?.address);
    }
  });
});

function reserve(...cidrs: string[]): RecordValue {
  const value = { name: 'r', uid: 'uid-r', createTimeMs: NOW_MS, prefixes: cidrs.map(prefix) };
  return { kind: 'reservation', value };
}

/** The answer of each kind of request when no address is available. */

const CREATE = /[Cc]reate (a|or enable a) pool/;

const refused = (view: TestView) => failureOf(() => allocate(view, { request: request('c1'), nowMs: NOW_MS }));

const IN_ZONE_A = nodeRecord('n1', { labels: { zone: 'a' } });

describe('a refusal has one code for one reason, for every kind of request', () => {
  test.each<[string, readonly RecordValue[], string]>([
    ['there is no pool of the family', [poolRecord('six', 'fd00::/64')], 'NO_POOL'],
    [
      'no pool selects the node',
      [IN_ZONE_A, poolRecord('p', '10.0.0.0/24', { nodeSelector: "zone == 'b'" })],
      'NO_POOL_SERVES',
    ],
    ['the only pool is disabled', [poolRecord('p', '10.0.0.0/24', { disabled: true })], 'NO_POOL_SERVES'],
    ['the only pool is Manual', [poolRecord('p', '10.0.0.0/24', { assignmentMode: 'Manual' })], 'NO_POOL_SERVES'],
    ['the only pool is for tunnels', [poolRecord('p', '10.0.0.0/24', { allowedUses: ['Tunnel'] })], 'NO_POOL_SERVES'],
  ])('%s', (_, records, code) => {
    const view = new TestView(records);
    const allocation = { request: request('c1'), nowMs: NOW_MS };
    const codes = {
      Allocate: refused(view).code,
      ExplainAllocation: explainAllocation(view, { ...allocation, maxBlocksCount: 9 }).refusal?.code,
      AssignAddresses: failureOf(() => assign(view, assignment('h'))).code,
    };
    expect(codes).toEqual({ Allocate: code, ExplainAllocation: code, AssignAddresses: code });
  });

  test('pools that serve and are empty are exhausted', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26'), ...claimedBlock(fullBlock('10.0.0.0/26', 'n2'))]);
    const input = { request: assignment('h', { allOrNothing: true }), nowMs: NOW_MS, left: undefined };
    const failures = [refused(view), failureOf(() => assignAddresses(view, input))];
    expect(failures.map(({ code }) => code)).toEqual(['POOLS_EXHAUSTED', 'POOLS_EXHAUSTED']);
  });
});

describe('a refusal names the remedy of its own reason', () => {
  const strict = config({ strictAffinity: true });
  const full = claimedBlock(fullBlock('10.0.0.0/26', 'n1'));
  const foreign = claimedBlock(block('10.0.0.0/26', 'n2'));
  const p = poolRecord('p', '10.0.0.0/24');
  const small = poolRecord('p', '10.0.0.0/26');

  test.each<[string, readonly RecordValue[], string]>([
    [
      'a node selector',
      [IN_ZONE_A, poolRecord('p', '10.0.0.0/24', { nodeSelector: "zone == 'b'" })],
      'Remedy: change the pool’s nodeSelector or the labels of node n1',
    ],
    [
      'a namespace selector',
      [poolRecord('p', '10.0.0.0/24', { namespaceSelector: "team == 'b'" })],
      'Remedy: change the pool’s namespaceSelector or the labels of the namespace',
    ],
    [
      'an unreadable selector',
      [poolRecord('p', '10.0.0.0/24', { nodeSelector: 'zone ==' })],
      'Remedy: correct the pool’s nodeSelector',
    ],
    ['a disabled pool', [poolRecord('p', '10.0.0.0/24', { disabled: true })], 'Remedy: enable the pool'],
    [
      'a Manual pool',
      [poolRecord('p', '10.0.0.0/24', { assignmentMode: 'Manual' })],
      'Remedy: request the pool by its name, or set its assignmentMode to Automatic',
    ],
    [
      'a pool for another use',
      [poolRecord('p', '10.0.0.0/24', { allowedUses: ['Tunnel'] })],
      'Remedy: add Workload to the pool’s allowedUses',
    ],
    [
      'the cap of blocks',
      [p, config({ strictAffinity: true, maxBlocksPerHostCount: 1 }), ...full],
      'Remedy: raise max_blocks_per_node, or release addresses of the node’s blocks',
    ],
    [
      'disabled claims',
      [p, config({ strictAffinity: true, autoAllocateBlocks: false })],
      'Remedy: switch auto_allocate_blocks on, or claim a block for the node',
    ],
    [
      'strict affinity',
      [small, strict, ...foreign],
      'Remedy: switch strict affinity off, or release addresses of the node’s blocks',
    ],
    ['a reservation', [p, reserve('10.0.0.0/24')], 'Remedy: remove reservations that are not needed'],
  ])('%s', (_, records, remedy) => {
    const { message } = refused(new TestView(records));
    expect(message).toContain(remedy);
    expect(message).not.toMatch(CREATE);
  });

  test('a new pool where one is full, beside the remedy of the pool that does not serve', () => {
    const view = new TestView([
      small,
      ...claimedBlock(fullBlock('10.0.0.0/26', 'n2')),
      poolRecord('q', '10.1.0.0/24', { disabled: true }),
    ]);
    expect(refused(view).message).toMatch(/\. Remedies: create a pool, or release addresses; enable the pool$/);
  });

  test('waiting where released addresses cool down', () => {
    const cooling = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 1000 };
    const view = new TestView([
      config({ cooldownSeconds: 30 }),
      small,
      ...claimedBlock({ ...fullBlock('10.0.0.0/26', 'n1'), attributes: [cooling] }),
    ]);
    expect(refused(view).message).toContain('wait until released addresses have cooled down');
  });
});

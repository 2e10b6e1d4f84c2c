import { describe, expect, test } from 'vitest';

import type { Block } from '../records/block.js';
import { MapView } from '../records/testing/map-view.js';
import type { RecordValue } from '../records/view.js';
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
} from '../testing/records.js';
import { allocate, type AllocationRequest } from './allocate.js';
import { explainAllocation } from './preview.js';

const STRICT = config({ strictAffinity: true });

const refusal = (view: MapView, rest: Partial<AllocationRequest> = {}) =>
  failureOf(() => allocate(view, { request: request('c1', rest), nowMs: NOW_MS })).message;

/** A view of so many blocks that sorting them for each question would take minutes. */
class SortedView extends MapView {
  readonly #sorted = super.blocks();

  override blocks(): Block[] {
    return this.#sorted;
  }
}

describe('a refusal names the pools and blocks', () => {
  test('with the owner and the fill of each block', () => {
    const cooling = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 1000 };
    const view = new MapView([
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
    expect(refusal(new MapView([p, ...own, ...records]), rest)).toContain(expected);
  });

  test('a reservation of the whole pool', () => {
    expect(refusal(new MapView([p, reserve('10.0.0.0/8')]))).toContain('pool "p" 10.0.0.0/24: all of it is reserved');
  });

  test('reservations of a block’s free addresses', () => {
    const half = {
      ...fullBlock('10.0.0.0/26', 'n1'),
      allocations: fullBlock('10.0.0.0/26', 'n1').allocations.with(5, null),
    };
    const view = new MapView([
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

  interface Told {
    readonly skipReason?: string;
    readonly noClaim?: string;
    /** The outcome: where the address comes from, or the refusal with its reason. */
    readonly end: 'claimed' | 'own' | 'borrowed' | 'refused';
  }

  test.each<[string, readonly RecordValue[], Told]>([
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
      'the cap reached, and another’s block with room',
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
    const view = new MapView(records);
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

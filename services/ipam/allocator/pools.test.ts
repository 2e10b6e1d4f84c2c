import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { allocate } from './allocate.js';
import { checkPool, createPool, type PoolWish } from './create-pool.js';
import { beginPoolDeletion, continuePoolDeletion } from './delete-pool.js';
import { getPool, listBlocks, listPools } from './listing.js';
import { MapView } from './map-view.fixture.js';
import { poolVersion } from './pools.js';
import {
  affinity,
  attachment,
  block,
  claimedBlock,
  fullBlock,
  host,
  NOW_MS,
  pool,
  poolRecord,
  prefix,
  request,
} from './records.fixture.js';
import { release } from './release.js';
import type { Block } from './records.js';
import type { RecordValue } from './view.js';

const wish = (rest: Partial<PoolWish>): PoolWish => ({
  name: 'p',
  cidr: '10.0.0.0/16',
  blockSizeBits: 0,
  disabled: false,
  ...rest,
});

const blockRecord = (cidr: string, nodeName = 'n1'): RecordValue => ({ kind: 'block', value: block(cidr, nodeName) });

function create(view: MapView, rest: Partial<PoolWish>) {
  const checked = checkPool(wish(rest));
  if (!checked.ok) throw new Error('the wish is at fault');
  return createPool(view, { spec: checked.spec, uid: 'uid', nowMs: NOW_MS });
}

function failureOf(work: () => unknown): Failure {
  try {
    work();
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
  throw new Error('it did not fail');
}

describe('a pool is refused', () => {
  const cases: readonly (readonly [string, Partial<PoolWish>, readonly (readonly [string, RegExp])[]])[] = [
    ['without a name', { name: '' }, [['name', /is empty/]]],
    ['with a name that is no subdomain', { name: 'A_b' }, [['name', /RFC 1123/]]],
    ['with a name too long', { name: 'a'.repeat(254) }, [['name', /longer than 253 bytes/]]],
    ['with a malformed CIDR', { cidr: '10.0.0/8' }, [['cidr', /is not a CIDR/]]],
    ['with host bits', { cidr: '10.0.0.1/24' }, [['cidr', /has host bits set/]]],
    ['with IPv4 blocks too large', { blockSizeBits: 19 }, [['blockSizeBits', /is 19; .* from 20 to 32/]]],
    ['with IPv4 blocks of no size', { blockSizeBits: 33 }, [['blockSizeBits', /is 33/]]],
    ['with a negative block size', { blockSizeBits: -1 }, [['blockSizeBits', /is -1/]]],
    ['with IPv6 blocks too large', { cidr: 'fd00::/64', blockSizeBits: 115 }, [['blockSizeBits', /from 116 to 128/]]],
    ['smaller than a block', { cidr: '10.0.0.0/27' }, [['cidr', /smaller than one block of \/26/]]],
    ['smaller than an IPv6 block', { cidr: 'fd00::/123' }, [['cidr', /smaller than one block of \/122/]]],
    ['inside the IPv4 link-local range', { cidr: '169.254.4.0/24' }, [['cidr', /169\.254\.0\.0\/16/]]],
    ['around the IPv4 link-local range', { cidr: '169.0.0.0/8' }, [['cidr', /link-local/]]],
    ['inside the IPv6 link-local range', { cidr: 'fe80::/64' }, [['cidr', /fe80::\/10/]]],
    [
      'with two faults, both named',
      { name: '-', cidr: 'x' },
      [
        ['name', /RFC 1123/],
        ['cidr', /not a CIDR/],
      ],
    ],
    [
      'for all that is wrong with its range',
      { cidr: '169.254.0.0/28' },
      [
        ['cidr', /smaller/],
        ['cidr', /link-local/],
      ],
    ],
  ];

  test.each(cases)('%s', (_, rest, expected) => {
    const checked = checkPool(wish(rest));
    const faults = checked.ok ? [] : checked.faults;
    expect(faults.map(({ field }) => field)).toEqual(expected.map(([field]) => field));
    faults.forEach(({ reason }, i) => expect(reason).toMatch(expected[i]![1]));
  });

  test.each([
    ['identical', '10.0.0.0/16'],
    ['containing', '10.0.0.0/8'],
    ['contained', '10.0.3.0/24'],
  ])('with a range %s to another’s, also a disabled one’s', (_, cidr) => {
    const view = new MapView([poolRecord('other', '10.0.0.0/16', { disabled: true })]);
    const failure = failureOf(() => create(view, { cidr }));
    expect(failure.code).toBe('POOL_OVERLAP');
    expect(failure.message).toContain('overlaps pool "other" 10.0.0.0/16');
  });

  test('with a name that is taken', () => {
    const view = new MapView([poolRecord('p', '10.9.0.0/16')]);
    expect(failureOf(() => create(view, {})).code).toBe('POOL_EXISTS');
  });

  test.each([
    ['10.0.0.0/28', '10.0.0.0/16'],
    ['10.0.255.0/24', '10.0.0.0/16'],
    ['10.0.16.0/20', '10.0.17.0/24'],
  ])('over the block %s, of another size, with %s', (cidr, range) => {
    const failure = failureOf(() => create(new MapView([blockRecord(cidr)]), { cidr: range }));
    expect(failure.code).toBe('POOL_OVERLAP');
    expect(failure.message).toContain(`overlaps the block ${cidr}`);
  });
});

describe('a pool is made', () => {
  test('with Calico’s defaults, provided that no other was', () => {
    const decision = create(new MapView(), {});
    expect(decision.changes).toEqual([
      { type: 'expectPools' },
      { type: 'put', record: { kind: 'pool', value: decision.outcome.pool } },
    ]);
    expect(decision.outcome.pool).toEqual({
      name: 'p',
      uid: 'uid',
      prefix: prefix('10.0.0.0/16'),
      blockSizeBits: 26,
      disabled: false,
      createTimeMs: Date.parse('2026-08-22T06:33:25Z'),
      deletionTimeMs: undefined,
      notAllocatable: undefined,
      ipipMode: 'Never',
      vxlanMode: 'Never',
      natOutgoing: false,
      disableBgpExport: false,
      nodeSelector: 'all()',
      namespaceSelector: '',
      allowedUses: ['Workload', 'Tunnel'],
      assignmentMode: 'Automatic',
    });
  });

  test('beside others, and over blocks of its own size that a former pool left', () => {
    const view = new MapView([poolRecord('other', '10.1.0.0/16'), blockRecord('10.0.0.64/26')]);
    const { utilization } = view.apply(create(view, { cidr: '10.0.0.0/24' }));
    expect(utilization).toEqual({ capacity: 256n, allocated: 0n, blocks: 1n });
    expect(view.pools().map(({ name }) => name)).toEqual(['other', 'p']);
  });

  test('for IPv6 with blocks of /122', () => {
    expect(create(new MapView(), { cidr: 'fd00::/48' }).outcome.pool.blockSizeBits).toBe(122);
  });
});

describe('deleting a pool', () => {
  const begin = (view: MapView, resourceVersion = '') =>
    view.apply(beginPoolDeletion(view, { name: 'p', resourceVersion }));
  const add = (view: MapView, id: string) => view.apply(allocate(view, { request: request(id), nowMs: NOW_MS }));

  function deleteAll(view: MapView): number[] {
    const original = begin(view);
    const removed: number[] = [];
    for (;;) {
      const step = view.apply(continuePoolDeletion(view, original));
      if (step.state === 'refused') throw step.failure;
      removed.push(step.removedBlocks);
      if (step.state === 'done') return removed;
    }
  }

  test('disables it first, then removes it with its empty blocks and their affinities', () => {
    const view = new MapView([
      poolRecord('p', '10.0.0.0/16'),
      ...claimedBlock(block('10.0.0.0/26', 'n1')),
      blockRecord('10.0.1.0/26'),
    ]);
    const original = begin(view);
    expect(original.disabled).toBe(false);
    expect(view.pool('p')!.disabled).toBe(true);
    expect(view.apply(continuePoolDeletion(view, original))).toEqual({ state: 'done', removedBlocks: 2 });
    expect([...view.records.keys()]).toEqual([]);
  });

  test('leaves other pools’ blocks alone', () => {
    const others = [poolRecord('q', '10.1.0.0/16'), ...claimedBlock(block('10.1.0.0/26', 'n1'))];
    const view = new MapView([poolRecord('p', '10.0.0.0/16'), ...others]);
    deleteAll(view);
    expect(view.snapshot()).toEqual(new MapView(others).snapshot());
  });

  test('takes steps that fit into one of etcd’s transactions', () => {
    const blocks = Array.from({ length: 120 }, (_, i) => block(`10.0.${i}.0/26`, 'n1')).flatMap((value) =>
      claimedBlock(value),
    );
    const view = new MapView([poolRecord('p', '10.0.0.0/16'), ...blocks]);
    expect(
      continuePoolDeletion(
        new MapView([poolRecord('p', '10.0.0.0/16', { disabled: true }), ...blocks]),
        pool('p', '10.0.0.0/16'),
      ).changes.length,
    ).toBeLessThanOrEqual(128);
    expect(deleteAll(view)).toEqual([50, 50, 20]);
    expect(view.records.size).toBe(0);
  });

  test('is refused while addresses are in use, with how many and where, and changes nothing', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16'), ...claimedBlock(fullBlock('10.0.0.0/30', 'n2'))]);
    add(view, 'c1');
    const before = view.snapshot();
    const failure = failureOf(() => begin(view));
    expect(failure.code).toBe('POOL_IN_USE');
    expect(failure.message).toContain(
      'pool "p" 10.0.0.0/16 cannot be deleted: addresses of it are in use (1 on node n1, 4 on node n2)',
    );
    expect(view.snapshot()).toEqual(before);
  });

  test('is refused, and the pool enabled again, when an address was given just before it was disabled', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16')]);
    const decided = beginPoolDeletion(view, { name: 'p', resourceVersion: '' });
    add(view, 'c1');
    const original = view.apply(decided);
    const step = view.apply(continuePoolDeletion(view, original));
    expect(step).toMatchObject({ state: 'refused', failure: { code: 'POOL_IN_USE' } });
    expect(view.pool('p')).toEqual(original);
  });

  test('gives up when somebody enables the pool meanwhile', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16')]);
    const original = begin(view);
    view.put({ kind: 'pool', value: original });
    expect(failureOf(() => continuePoolDeletion(view, original)).code).toBe('CONFLICT');
  });

  test('is done when another has deleted it meanwhile, also when a new pool has its name', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16')]);
    const original = begin(view);
    view.records.clear();
    expect(continuePoolDeletion(view, original)).toEqual({ changes: [], outcome: { state: 'done', removedBlocks: 0 } });
    view.put(poolRecord('p', '10.0.0.0/16', { uid: 'another' }));
    expect(continuePoolDeletion(view, original).changes).toEqual([]);
  });

  test('needs a pool of that name, and of that version where one is given', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16')]);
    expect(failureOf(() => beginPoolDeletion(view, { name: 'q', resourceVersion: '' })).code).toBe('POOL_NOT_FOUND');
    expect(failureOf(() => begin(view, 'old')).code).toBe('STALE_VERSION');
    expect(begin(view, poolVersion(view.pool('p')!)).name).toBe('p');
  });

  test('nobody claims a block in it without expecting its record', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16')]);
    const { changes } = allocate(view, { request: request('c1'), nowMs: NOW_MS });
    expect(changes).toContainEqual({ type: 'expect', record: { kind: 'pool', value: view.pool('p') } });
  });
});

test('a pool’s version differs with each of its fields', () => {
  const base = pool('p', '10.0.0.0/16');
  const variants = [
    base,
    { ...base, uid: 'other' },
    { ...base, disabled: true },
    { ...base, prefix: prefix('10.0.0.0/17') },
    { ...base, blockSizeBits: 27 },
    { ...base, nodeSelector: '' },
    { ...base, namespaceSelector: 'all()' },
    { ...base, allowedUses: ['Tunnel'] },
    { ...base, assignmentMode: 'Manual' as const },
    { ...base, createTimeMs: 0 },
  ];
  expect(new Set(variants.map(poolVersion)).size).toBe(variants.length);
  expect(poolVersion({ ...base })).toBe(poolVersion(base));
});

/** A view of so many blocks that sorting them for each question would take minutes. */
class SortedView extends MapView {
  readonly #sorted = super.blocks();

  override blocks(): Block[] {
    return this.#sorted;
  }
}

describe('a refusal names the pools and blocks', () => {
  const refusal = (view: MapView) => failureOf(() => allocate(view, { request: request('c1'), nowMs: NOW_MS })).message;

  test('with the owner and the fill of each block', () => {
    const view = new MapView([
      poolRecord('p', '10.0.0.0/24'),
      ...claimedBlock(fullBlock('10.0.0.0/26', 'n1')),
      ...claimedBlock(block('10.0.0.64/26', 'n2')),
      { kind: 'block', value: block('10.0.0.128/26', 'n1', { owner: undefined }) },
      { kind: 'block', value: block('10.0.0.192/26', 'n1', { owner: { kind: 'virtual', name: 'load-balancer' } }) },
    ]);
    expect(refusal(view)).toBe(
      'no IPv4 address for net/c1/eth0 on node n1: pool "p" 10.0.0.0/24: ' +
        'block 10.0.0.0/26 is full (64 of 64 addresses in use), ' +
        'block 10.0.0.64/26 belongs to node n2 (0 of 64 addresses in use), ' +
        'block 10.0.0.128/26 has no owner (0 of 64 addresses in use), ' +
        'block 10.0.0.192/26 belongs to load-balancer (0 of 64 addresses in use). ' +
        'Create or enable a pool, or release addresses',
    );
  });

  test('and stays short enough for a header with many of them', () => {
    const pools = Array.from({ length: 20 }, (_, i) => poolRecord(`pool-${i}`, `10.${i}.0.0/16`));
    const blocks = Array.from({ length: 20 * 1024 }, (_, i) => `10.${i >> 10}.${(i >> 2) & 255}.${(i & 3) * 64}/26`);
    const view = new SortedView([...pools, ...blocks.map((cidr) => blockRecord(cidr, 'n2'))]);
    const text = failureOf(() => allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    expect(text.message).toContain('and 1020 more blocks of other owners');
    expect(text.message).toContain('and 12 more pools');
    expect(text.message.length).toBeLessThan(3000);
  }, 60_000);
});

describe('lists', () => {
  const view = new MapView([
    poolRecord('a', '10.0.0.0/24'),
    poolRecord('b', 'fd00::/48'),
    poolRecord('c', '10.1.0.0/24'),
    ...claimedBlock(block('10.0.0.64/26', 'n2'), 'pending'),
    ...claimedBlock(block('fd00::/122', 'n1')),
    ...claimedBlock(fullBlock('10.0.0.0/26', 'n1')),
    { kind: 'block', value: block('10.7.0.0/26', 'n1', { owner: undefined }) },
  ]);
  const blocks = (rest: Partial<Parameters<typeof listBlocks>[1]>) => {
    const query = { after: undefined, limit: 10, poolName: '', nodeName: '', ...rest };
    const { items, more } = listBlocks(view, query);
    return { cidrs: items.map(({ block: { prefix: cidr } }) => formatPrefix(cidr)), more };
  };

  test('blocks in the order of their addresses, IPv4 first, page by page', () => {
    const all = ['10.0.0.0/26', '10.0.0.64/26', '10.7.0.0/26', 'fd00::/122'];
    expect(blocks({})).toEqual({ cidrs: all, more: false });
    expect(blocks({ limit: 2 })).toEqual({ cidrs: all.slice(0, 2), more: true });
    expect(blocks({ limit: 2, after: prefix('10.0.0.64/26') })).toEqual({ cidrs: all.slice(2), more: false });
  });

  test('blocks in pages that stay small enough for a message, with one block at least', () => {
    const large = ['10.0.0.0/20', '10.0.16.0/21', '10.0.24.0/21', '10.0.32.0/26'].map((cidr) => fullBlock(cidr, 'n1'));
    const full = new MapView(large.map((value) => ({ kind: 'block', value })));
    const sizes: number[] = [];
    for (let after: ReturnType<typeof prefix> | undefined, more = true; more;) {
      const page = listBlocks(full, { after, limit: 10, poolName: '', nodeName: '' });
      sizes.push(page.items.length);
      after = page.items.at(-1)!.block.prefix;
      more = page.more;
    }
    expect(sizes).toEqual([1, 2, 1]);
  });

  test('blocks of one pool, of one node, and of both', () => {
    expect(blocks({ poolName: 'a' }).cidrs).toEqual(['10.0.0.0/26', '10.0.0.64/26']);
    expect(blocks({ nodeName: 'n1' }).cidrs).toEqual(['10.0.0.0/26', 'fd00::/122']);
    expect(blocks({ poolName: 'a', nodeName: 'n2' }).cidrs).toEqual(['10.0.0.64/26']);
    expect(blocks({ poolName: 'unknown' }).cidrs).toEqual([]);
  });

  test('blocks with their pool and the state of their owner’s claim', () => {
    const { items } = listBlocks(view, { after: undefined, limit: 3, poolName: '', nodeName: '' });
    expect(items.map(({ poolName, affinityState }) => [poolName, affinityState])).toEqual([
      ['a', 'confirmed'],
      ['a', 'pending'],
      [undefined, undefined],
    ]);
  });

  test('pools in the order of their names with what is in use, page by page', () => {
    const first = listPools(view, { after: '', limit: 2 });
    expect(first.items.map(({ pool: { name } }) => name)).toEqual(['a', 'b']);
    expect(first.items.map(({ utilization }) => utilization)).toEqual([
      { capacity: 256n, allocated: 64n, blocks: 2n },
      { capacity: 1n << 80n, allocated: 0n, blocks: 1n },
    ]);
    expect(first.more).toBe(true);
    const second = listPools(view, { after: 'b', limit: 2 });
    expect(second.items.map(({ pool: { name } }) => name)).toEqual(['c']);
    expect(second.more).toBe(false);
  });

  test('one pool, or that there is none of that name', () => {
    expect(getPool(view, 'a').utilization.allocated).toBe(64n);
    expect(failureOf(() => getPool(view, 'z')).code).toBe('POOL_NOT_FOUND');
  });
});

test('an empty node keeps its affinity after a release, so its next container is near', () => {
  const view = new MapView([poolRecord('p', '10.0.0.0/16')]);
  view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
  const before = view.affinitiesOf(host('n1'));
  view.apply(release(view, attachment('c1')));
  expect(view.affinitiesOf(host('n1'))).toEqual(before);
  expect(before).toEqual([affinity(formatPrefix(before[0]!.block), 'n1')]);
});

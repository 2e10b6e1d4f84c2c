import { formatPrefix, prefixContains, prefixesOverlap, prefixOf, prefixSize } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate.js';
import { poolVersion } from '../pools/pools.js';
import { MapView } from '../records/testing/map-view.js';
import { block, claimedBlock, NOW_MS, pool, poolRecord, prefix, request } from '../testing/records.js';
import { failureOf } from './failure.fixture.js';
import type { Pool } from './records.js';
import { MAX_PARTS, splitPool, type PoolSplitRequest } from './split-pool.js';

const uidsOf = (count: number): string[] => Array.from({ length: count }, (_, i) => `uid-${i}`);

function decide(view: MapView, rest: Partial<PoolSplitRequest> = {}) {
  const wanted = { pool: { by: 'name', name: 'p' }, partsCount: 2, resourceVersion: '', ...rest } as const;
  return splitPool(view, { request: wanted, uids: uidsOf(wanted.partsCount), nowMs: NOW_MS + 5000 });
}

function split(view: MapView, rest: Partial<PoolSplitRequest> = {}): readonly Pool[] {
  const outcome = view.apply(decide(view, rest));
  if (!outcome.ok) throw new Error(outcome.faults.map(({ reason }) => reason).join('; '));
  return outcome.parts.map((part) => part.pool);
}

function faultsOf(view: MapView, rest: Partial<PoolSplitRequest>): string[] {
  const before = view.snapshot();
  const outcome = view.apply(decide(view, rest));
  expect(view.snapshot()).toEqual(before);
  return outcome.ok ? [] : outcome.faults.map(({ field, reason }) => `${field} ${reason}`);
}

function refusalOf(view: MapView, rest: Partial<PoolSplitRequest> = {}) {
  const before = view.snapshot();
  const failure = failureOf(() => view.apply(decide(view, rest)));
  expect(view.snapshot()).toEqual(before);
  return failure;
}

const EVERY_FIELD: Partial<Pool> = {
  blockSizeBits: 28,
  disabled: true,
  vxlanMode: 'CrossSubnet',
  natOutgoing: true,
  disableBgpExport: true,
  nodeSelector: 'zone == "a"',
  namespaceSelector: 'has(team)',
  allowedUses: ['Workload'],
  assignmentMode: 'Manual',
};

describe('a pool is split', () => {
  test('into parts with all of its fields, named after it in the order of their ranges', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/24', EVERY_FIELD), poolRecord('other', '10.1.0.0/24')]);
    const parts = split(view, { partsCount: 4 });
    expect(parts.map(({ name, prefix: range }) => `${name} ${formatPrefix(range)}`)).toEqual([
      'split-p-0 10.0.0.0/26',
      'split-p-1 10.0.0.64/26',
      'split-p-2 10.0.0.128/26',
      'split-p-3 10.0.0.192/26',
    ]);
    expect(parts[3]).toEqual({
      ...pool('p', '10.0.0.0/24', EVERY_FIELD),
      name: 'split-p-3',
      uid: 'uid-3',
      prefix: prefix('10.0.0.192/26'),
      createTimeMs: Date.parse('2026-08-22T06:33:30Z'),
    });
    expect(view.pools().map(({ name }) => name)).toEqual(['other', 'split-p-0', 'split-p-1', 'split-p-2', 'split-p-3']);
  });

  test('by its range', () => {
    const view = new MapView([poolRecord('p', 'fd00::/112')]);
    const parts = split(view, { pool: { by: 'range', range: prefix('fd00::/112') } });
    expect(parts.map(({ prefix: range }) => formatPrefix(range))).toEqual(['fd00::/113', 'fd00::8000/113']);
  });

  test('and its parts again, down to one block each', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/20', { blockSizeBits: 32 })]);
    expect(split(view, { partsCount: MAX_PARTS })).toHaveLength(64);
    expect(split(view, { pool: { by: 'name', name: 'split-p-63' }, partsCount: MAX_PARTS })).toHaveLength(64);
    expect(view.pools()).toHaveLength(127);
  });

  test('in a transaction that etcd takes, however many parts', () => {
    const { changes } = decide(new MapView([poolRecord('p', '10.0.0.0/16')]), { partsCount: MAX_PARTS });
    expect(changes.length).toBeLessThanOrEqual(128);
  });

  test('on the condition that no pool was made or changed, and that it is as it was seen', () => {
    const { changes } = decide(new MapView([poolRecord('p', '10.0.0.0/24')]));
    expect(changes.map(({ type }) => type)).toEqual(['expectPools', 'delete', 'put', 'put']);
  });

  test('if it still has the version', () => {
    const value = pool('p', '10.0.0.0/24');
    expect(split(new MapView([{ kind: 'pool', value }]), { resourceVersion: poolVersion(value) })).toHaveLength(2);
  });

  test('into parts of which only those stay out of use that overlap another pool', () => {
    const view = new MapView([
      poolRecord('p', '10.0.0.0/24', { notAllocatable: 'CIDROverlap' }),
      poolRecord('other', '10.0.0.0/26'),
    ]);
    expect(split(view).map(({ notAllocatable }) => notAllocatable)).toEqual(['CIDROverlap', undefined]);
  });

  test('and the next address is of the node’s own block, in the part that has it', () => {
    const view = new MapView([
      poolRecord('p', '10.0.0.0/24'),
      ...claimedBlock(block('10.0.0.192/26', 'n1')),
      ...claimedBlock(block('10.0.0.0/26', 'n2')),
    ]);
    const before = view.blocks();
    split(view);
    expect(view.blocks()).toEqual(before);
    const { endpoint } = view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    expect(endpoint.addresses[0]).toMatchObject({ poolName: 'split-p-1', block: prefix('10.0.0.192/26') });
  });

  test('property: into parts that are its range, without gap or overlap, and nothing else changes', () => {
    const cases = fc
      .record({
        isIpv4: fc.boolean(),
        value: fc.bigInt({ min: 0n, max: 2n ** 24n }),
        length: fc.integer({ min: 0, max: 16 }),
        blockBits: fc.integer({ min: 0, max: 12 }),
        power: fc.integer({ min: 1, max: 6 }),
      })
      .map(({ isIpv4, value, length, blockBits, power }) => {
        const bits = isIpv4 ? 32 : 128;
        const base = isIpv4 ? 10n << 24n : 0xfdn << 120n;
        const range = prefixOf({ family: isIpv4 ? 4 : 6, value: base | value }, bits - 16 + length);
        return { range, blockSizeBits: bits - blockBits, partsCount: 2 ** power };
      })
      .filter(({ range, blockSizeBits }) => range.length <= blockSizeBits);
    fc.assert(
      fc.property(cases, ({ range, blockSizeBits, partsCount }) => {
        const view = new MapView([
          poolRecord('p', formatPrefix(range), { blockSizeBits }),
          poolRecord('other', '172.16.0.0/16'),
          ...claimedBlock(block(formatPrefix(prefixOf(range, blockSizeBits)), 'n1')),
        ]);
        const before = view.snapshot().filter(([key]) => key !== 'pool p');
        const fits = BigInt(partsCount) <= prefixSize(range) >> BigInt((range.family === 4 ? 32 : 128) - blockSizeBits);
        if (!fits) {
          expect(faultsOf(view, { partsCount })).toHaveLength(1);
          return;
        }
        const parts = split(view, { partsCount }).map((part) => part.prefix);
        expect(parts).toHaveLength(partsCount);
        expect(parts.every((part) => prefixContains(range, part))).toBe(true);
        expect(parts.reduce((sum, part) => sum + prefixSize(part), 0n)).toBe(prefixSize(range));
        expect(parts.some((a, i) => parts.some((b, j) => i < j && prefixesOverlap(a, b)))).toBe(false);
        expect(view.snapshot().filter(([key]) => !key.startsWith('pool split-p-'))).toEqual(before);
      }),
    );
  });
});

describe('a split is refused, and changes nothing,', () => {
  test.each([
    ['10.0.0.0/24', 8, 'has room for 4 blocks of /26'],
    ['10.0.0.0/26', 2, 'has room for 1 block of /26'],
  ])('of %s into %s parts that are smaller than a block', (cidr, partsCount, reason) => {
    const [fault, ...rest] = faultsOf(new MapView([poolRecord('p', cidr)]), { partsCount });
    expect(fault).toMatch(/^number is \d/);
    expect(fault).toContain(reason);
    expect(rest).toEqual([]);
  });

  test('of a disabled pool that is smaller than one block', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/28', { disabled: true, blockSizeBits: 26 })]);
    expect(faultsOf(view, {})).toEqual([expect.stringContaining('has room for 0 blocks')]);
  });

  test('with every fault at once', () => {
    const name = 'p'.repeat(246);
    const view = new MapView([poolRecord(name, '10.0.0.0/26')]);
    expect(faultsOf(view, { pool: { by: 'name', name } })).toEqual([
      expect.stringMatching(/^number is 2/),
      expect.stringMatching(/^name makes a part's name that is longer than 253 bytes/),
    ]);
  });

  test('of a pool whose parts would have just too long a name, and of none with a shorter one', () => {
    const longest = 'p'.repeat(253 - 'split--0'.length);
    expect(
      split(new MapView([poolRecord(longest, '10.0.0.0/24')]), { pool: { by: 'name', name: longest } }),
    ).toHaveLength(2);
    const name = `${longest}p`;
    expect(faultsOf(new MapView([poolRecord(name, '10.0.0.0/24')]), { pool: { by: 'name', name } })).toHaveLength(1);
  });

  test('of a pool that does not exist, by name or by range', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/24')]);
    expect(refusalOf(view, { pool: { by: 'name', name: 'q' } }).code).toBe('POOL_NOT_FOUND');
    const byRange = refusalOf(view, { pool: { by: 'range', range: prefix('10.0.0.0/25') } });
    expect(byRange.message).toContain('there is no pool 10.0.0.0/25');
  });

  test('of a pool that was changed since', () => {
    expect(refusalOf(new MapView([poolRecord('p', '10.0.0.0/24')]), { resourceVersion: 'old' }).code).toBe(
      'STALE_VERSION',
    );
  });

  test('of a pool that is being deleted', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/24', { deletionTimeMs: NOW_MS })]);
    expect(refusalOf(view).code).toBe('POOL_BEING_DELETED');
  });

  test('when the name of a part is taken', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/24'), poolRecord('split-p-1', '10.9.0.0/24')]);
    const failure = refusalOf(view);
    expect(failure.code).toBe('POOL_EXISTS');
    expect(failure.message).toContain('there is a pool "split-p-1" already');
  });

  test('when a block that an older writer left, of another size, lies across two parts', () => {
    const wide = { kind: 'block', value: block('10.0.0.0/23', 'n1') } as const;
    const view = new MapView([poolRecord('p', '10.0.0.0/23'), wide]);
    const failure = refusalOf(view);
    expect(failure.code).toBe('POOL_OVERLAP');
    expect(failure.message).toContain('the block 10.0.0.0/23 lies across several');
    const narrow = { kind: 'block', value: block('10.0.0.0/24', 'n1') } as const;
    expect(split(new MapView([poolRecord('p', '10.0.0.0/23'), narrow]))).toHaveLength(2);
  });

  test('when such a block cannot be read; one within a part is no hindrance', () => {
    const unreadable = (cidr: string) => {
      const view = new MapView([poolRecord('p', '10.0.0.0/23')]);
      view.setAside.push({ key: '/x', name: { kind: 'block', prefix: prefix(cidr) }, reason: 'no' });
      return view;
    };
    expect(refusalOf(unreadable('10.0.0.0/22')).code).toBe('POOL_OVERLAP');
    expect(split(unreadable('10.0.1.0/24'))).toHaveLength(2);
    expect(split(unreadable('10.0.0.64/26'))).toHaveLength(2);
  });
});

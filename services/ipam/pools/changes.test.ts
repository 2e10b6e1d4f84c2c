import { describe, expect, test } from 'vitest';

import { failureOf } from '../allocator/failure.fixture.js';
import { MapView } from '../records/testing/map-view.js';
import type { RecordValue } from '../records/view.js';
import { block, NOW_MS, poolRecord, prefix } from '../testing/records.js';
import { createPool } from './changes.js';
import { checkPool, type PoolWish } from './rules.js';

const blockRecord = (cidr: string): RecordValue => ({ kind: 'block', value: block(cidr, 'n1') });

function create(view: MapView, rest: Partial<PoolWish>) {
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/16', blockSizeBits: 0, disabled: false, ...rest });
  if (!checked.ok) throw new Error('the wish is at fault');
  return createPool(view, { spec: checked.spec, uid: 'uid', nowMs: NOW_MS });
}

function unreadableBlock(cidr: string): MapView {
  const view = new MapView();
  view.setAside.push({ key: cidr, name: { kind: 'block', prefix: prefix(cidr) }, reason: 'it is not JSON' });
  return view;
}

describe('a pool is refused', () => {
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

  test('with the name or the range of one that is being deleted, and says so', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16', { deletionTimeMs: NOW_MS })]);
    const texts = [failureOf(() => create(view, {})), failureOf(() => create(view, { name: 'q' }))];
    for (const { message } of texts)
      expect(message).toContain('which is being deleted and goes with the last of its addresses');
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

  test.each([
    ['10.0.0.0/28', '10.0.0.0/16'],
    ['10.0.16.0/20', '10.0.17.0/24'],
  ])('over the block %s, of another size, that cannot be read, with %s', (cidr, range) => {
    const failure = failureOf(() => create(unreadableBlock(cidr), { cidr: range }));
    expect(failure).toMatchObject({ code: 'POOL_OVERLAP', details: { block: cidr } });
    expect(failure.message).toMatch(/or which cannot be read/);
  });

  test('while the range of another cannot be read', () => {
    const view = new MapView();
    view.setAside.push({ key: '/pools/q', name: { kind: 'pool', name: 'q' }, reason: 'it is not JSON' });
    const failure = failureOf(() => create(view, {}));
    expect(failure).toMatchObject({ code: 'STORE_CORRUPT', details: { key: '/pools/q' } });
  });
});

describe('a pool is made', () => {
  test('over blocks of its own size, and beside others, that cannot be read', () => {
    for (const cidr of ['10.0.0.64/26', '10.9.0.0/28', '10.1.0.0/20'])
      expect(create(unreadableBlock(cidr), { cidr: '10.0.0.0/16' }).outcome.pool.name).toBe('p');
  });

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
      labels: {},
    });
  });

  test('beside others, and over blocks of its own size that a former pool left', () => {
    const view = new MapView([poolRecord('other', '10.1.0.0/16'), blockRecord('10.0.0.64/26')]);
    const { utilization } = view.apply(create(view, { cidr: '10.0.0.0/24' }));
    expect(utilization).toMatchObject({ capacity: 256n, allocated: 0n, blocks: 1n });
    expect(view.pools().map(({ name }) => name)).toEqual(['other', 'p']);
  });

  test('for IPv6 with blocks of /122', () => {
    expect(create(new MapView(), { cidr: 'fd00::/48' }).outcome.pool.blockSizeBits).toBe(122);
  });
});

import { describe, expect, test } from 'vitest';

import { poolVersion } from '../pools/pools.js';
import { MapView } from '../records/testing/map-view.js';
import { NOW_MS, pool, poolRecord } from '../testing/records.js';
import { failureOf } from './failure.fixture.js';
import type { Pool } from './records.js';
import { updatePool, type PoolChange } from './update-pool.js';

const change = (rest: Partial<PoolChange>): PoolChange => ({ name: 'p', resourceVersion: '', ...rest });

function changed(rest: Partial<PoolChange>, stored: Partial<Pool> = {}) {
  const view = new MapView([poolRecord('p', '10.0.0.0/16', stored)]);
  const updated = view.apply(updatePool(view, change(rest)));
  if (!updated.ok) throw new Error(`refused: ${JSON.stringify(updated.faults)}`);
  expect(view.pool('p')).toEqual(updated.listing.pool);
  return updated.listing.pool;
}

describe('a pool is changed', () => {
  test.each<Partial<Pool>>([
    { disabled: true },
    { nodeSelector: 'zone == "a"' },
    { namespaceSelector: 'has(a)', allowedUses: ['Workload'] },
    { ipipMode: 'Always' },
    { vxlanMode: 'CrossSubnet' },
    { natOutgoing: true },
    { disableBgpExport: true },
    { allowedUses: ['Tunnel'] },
    { allowedUses: ['LoadBalancer'] },
    { assignmentMode: 'Manual' },
  ])('to %o, and in nothing else', (rest) => {
    expect(changed(rest)).toEqual({ ...pool('p', '10.0.0.0/16'), ...rest });
  });

  test('with its own range and block size repeated', () => {
    expect(changed({ cidr: '10.0.0.0/16', blockSizeBits: 26, natOutgoing: true }).natOutgoing).toBe(true);
  });

  test('not at all when it is so already', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16', { natOutgoing: true })]);
    const decision = updatePool(view, change({ natOutgoing: true }));
    expect(decision).toMatchObject({ changes: [], outcome: { ok: true, changed: false } });
  });

  test('on the condition of its version, once', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16')]);
    const resourceVersion = poolVersion(pool('p', '10.0.0.0/16'));
    const updated = view.apply(updatePool(view, change({ resourceVersion, disabled: true })));
    expect(updated).toMatchObject({ ok: true, changed: true });
    const failure = failureOf(() => updatePool(view, change({ resourceVersion, natOutgoing: true })));
    expect(failure).toMatchObject({ code: 'STALE_VERSION', details: { pool: 'p' } });
    expect(view.apply(updatePool(view, change({ natOutgoing: true }))), 'the last writer wins').toMatchObject({
      ok: true,
    });
  });

  test('so that it is in use again once no other overlaps it', () => {
    const record = poolRecord('p', '10.0.0.0/16', { notAllocatable: 'CIDROverlap' });
    const after = (others: Parameters<MapView['put']>[0][]) => {
      const view = new MapView([record, ...others]);
      view.apply(updatePool(view, change({ natOutgoing: true })));
      return view.pool('p')!.notAllocatable;
    };
    expect(after([])).toBeUndefined();
    expect(after([poolRecord('q', '10.0.1.0/24')])).toBe('CIDROverlap');
    expect(changed({ natOutgoing: true }, { notAllocatable: 'Other' }).notAllocatable).toBe('Other');
  });
});

describe('a change is refused', () => {
  const faults = (rest: Partial<PoolChange>, stored: Partial<Pool> = {}) => {
    const view = new MapView([poolRecord('p', '10.0.0.0/16', stored)]);
    const before = view.snapshot();
    const outcome = view.apply(updatePool(view, change(rest)));
    expect(view.snapshot()).toEqual(before);
    return outcome.ok ? [] : outcome.faults.map(({ field, reason }) => `${field} ${reason}`);
  };

  test('of what is immutable', () => {
    expect(faults({ cidr: '10.0.0.0/17', blockSizeBits: 27 })).toEqual([
      'cidr is immutable and 10.0.0.0/16 here, not 10.0.0.0/17',
      'blockSizeBits is immutable and 26 here, not 27',
    ]);
  });

  test.each([[['Workload']], [['Tunnel']], [['LoadBalancer', 'Workload']]])(
    'from load balancers to %o',
    (allowedUses) => {
      expect(faults({ allowedUses }, { allowedUses: ['LoadBalancer'] })[0]).toMatch(
        /^allowedUses is LoadBalancer for good/,
      );
    },
  );

  test('of what breaks a rule together with what stays, all at once', () => {
    const texts = faults({ cidr: '10.0.0.0/8', vxlanMode: 'Always', namespaceSelector: '(' }, { ipipMode: 'Always' });
    expect(texts).toEqual([
      expect.stringMatching(/^cidr is immutable/),
      expect.stringMatching(/^ipipMode is Always and vxlan is Always/),
      expect.stringMatching(/^namespaceSelector is no selector/),
      expect.stringMatching(/^namespaceSelector chooses namespaces/),
    ]);
  });

  test('that enables a pool smaller than a block', () => {
    const texts = faults(
      { disabled: false },
      { prefix: pool('x', '10.0.0.0/27', { blockSizeBits: 27 }).prefix, disabled: true },
    );
    expect(texts).toEqual([expect.stringMatching(/^cidr is smaller than one block of \/26/)]);
  });

  test('of a pool that is not there, or is being deleted', () => {
    expect(failureOf(() => updatePool(new MapView(), change({}))).code).toBe('POOL_NOT_FOUND');
    const view = new MapView([poolRecord('p', '10.0.0.0/16', { deletionTimeMs: NOW_MS })]);
    expect(failureOf(() => updatePool(view, change({ disabled: true }))).code).toBe('POOL_BEING_DELETED');
  });
});

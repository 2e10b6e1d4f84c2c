import { formatPrefix, prefixContains, prefixesOverlap, prefixOf, prefixSize } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { poolVersion, type Pool, type ServiceAddress } from '../records/pool.js';
import type { RecordValue } from '../records/view.js';
import {
  block,
  claimedBlock,
  failureOf,
  nodeRecord,
  NOW_MS,
  pool,
  poolRecord,
  prefix,
  request,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { createPool, MAX_PARTS, splitPool, updatePool, type PoolChange, type PoolSplitRequest } from './changes.js';
import { checkPool, type PoolRequest, type PoolSpec } from './rules.js';

const blockRecord = (cidr: string): RecordValue => ({ kind: 'block', value: block(cidr, 'n1') });

function create(view: TestView, rest: Partial<PoolRequest>, services: readonly ServiceAddress[] = []) {
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/16', blockSizeBits: 0, disabled: false, ...rest });
  if (!checked.ok) throw new Error('the pool request is at fault');
  return createPool(view, { spec: checked.spec, services, uid: 'uid', nowMs: NOW_MS });
}

function unreadableBlock(cidr: string): TestView {
  const view = new TestView();
  view.setAside({ kind: 'block', prefix: prefix(cidr) }, 'it is not JSON');
  return view;
}

describe('a pool is refused', () => {
  test.each([
    ['identical', '10.0.0.0/16'],
    ['containing', '10.0.0.0/8'],
    ['contained', '10.0.3.0/24'],
  ])('with a range %s to another pool’s, also a disabled pool’s', (_, cidr) => {
    const view = new TestView([poolRecord('other', '10.0.0.0/16', { disabled: true })]);
    const failure = failureOf(() => create(view, { cidr }));
    expect(failure.code).toBe('POOL_OVERLAP');
    expect(failure.message).toContain('overlaps pool "other" 10.0.0.0/16');
  });

  test('with a used name', () => {
    const view = new TestView([poolRecord('p', '10.9.0.0/16')]);
    expect(failureOf(() => create(view, {})).code).toBe('POOL_EXISTS');
  });

  test('with the name or the range of one that is being deleted, with that reason', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/16', { deletionTimeMs: NOW_MS })]);
    const texts = [failureOf(() => create(view, {})), failureOf(() => create(view, { name: 'q' }))];
    for (const { message } of texts)
      expect(message).toContain('which is being deleted and is removed with its last address');
  });

  test.each([
    ['10.0.0.0/28', '10.0.0.0/16'],
    ['10.0.255.0/24', '10.0.0.0/16'],
    ['10.0.16.0/20', '10.0.17.0/24'],
  ])('over the block %s, of another size, with %s', (cidr, range) => {
    const failure = failureOf(() => create(new TestView([blockRecord(cidr)]), { cidr: range }));
    expect(failure.code).toBe('POOL_OVERLAP');
    expect(failure.message).toContain(`overlaps block ${cidr}`);
  });

  test.each([
    ['10.0.0.0/28', '10.0.0.0/16'],
    ['10.0.16.0/20', '10.0.17.0/24'],
  ])('over the block %s, of another size, that cannot be read, with %s', (cidr, range) => {
    const failure = failureOf(() => create(unreadableBlock(cidr), { cidr: range }));
    expect(failure).toMatchObject({ code: 'POOL_OVERLAP', details: { block: cidr } });
    expect(failure.message).toMatch(/or cannot be read/);
  });

  const eth1 = { name: 'eth1', addresses: [{ address: prefix('198.51.100.7/32'), subnetBits: 24 }] };
  const hosts = nodeRecord('n1', {
    ipv4: { address: prefix('192.0.2.7/32'), subnetBits: 24 },
    ipv6: { address: prefix('2001:db8::7/128'), subnetBits: 64 },
    interfaces: [eth1],
  });
  const services = [
    { name: 'etcd', address: prefix('203.0.113.9/32') },
    { name: 'podwire-ipam', address: prefix('203.0.113.10/32') },
  ] as const;

  test.each([
    ['192.0.2.0/24', 'network 192.0.2.0/24 of node "n1"'],
    ['192.0.0.0/16', 'network 192.0.2.0/24 of node "n1"'],
    ['192.0.2.128/25', 'network 192.0.2.0/24 of node "n1"'],
    ['198.51.100.64/26', 'network 198.51.100.0/24 of node "n1"'],
    ['2001:db8::/48', 'network 2001:db8::/64 of node "n1"'],
    ['203.0.113.8/31', 'address 203.0.113.9 of etcd'],
    ['203.0.113.10/32', 'address 203.0.113.10 of podwire-ipam'],
  ])('over hosts: %s has the %s', (cidr, host) => {
    const blockSizeBits = cidr.includes(':') ? 122 : 32;
    const failure = failureOf(() => create(new TestView([hosts]), { cidr, blockSizeBits }, services));
    expect(failure.code).toBe('POOL_OVERLAP');
    expect(failure.message).toContain(`overlaps ${host}`);
    // Pods get no address of these.
    for (const rest of [{ disabled: true }, { allowedUses: ['LoadBalancer'] }])
      expect(create(new TestView([hosts]), { cidr, blockSizeBits, ...rest }, services).changes).toHaveLength(2);
  });

  test('over hosts also when it is enabled; other changes of an enabled one are possible', () => {
    const view = new TestView([hosts, poolRecord('p', '192.0.2.0/24', { disabled: true })]);
    const update = (rest: Partial<PoolChange>) =>
      view.apply(updatePool(view, { name: 'p', resourceVersion: '', services, ...rest }));
    expect(failureOf(() => update({ disabled: false })).code).toBe('POOL_OVERLAP');
    expect(update({ natOutgoing: true }).ok).toBe(true);
    view.put(poolRecord('p', '192.0.2.0/24'));
    expect(update({ natOutgoing: true }).ok).toBe(true);
    expect(update({ disabled: true }).ok).toBe(true);
  });

  test('while the range of another cannot be read', () => {
    const view = new TestView();
    view.setAside({ kind: 'pool', name: 'q' }, 'it is not JSON');
    const failure = failureOf(() => create(view, {}));
    expect(failure).toMatchObject({
      code: 'STORE_CORRUPT',
      details: { key: '/calico/resources/v3/projectcalico.org/ippools/q' },
    });
  });
});

describe('a pool is created', () => {
  test('over unreadable blocks of its own size, and beside other pools', () => {
    for (const cidr of ['10.0.0.64/26', '10.9.0.0/28', '10.1.0.0/20'])
      expect(create(unreadableBlock(cidr), { cidr: '10.0.0.0/16' }).outcome.pool.name).toBe('p');
  });

  test('with Calico’s defaults, if there is no other', () => {
    const decision = create(new TestView(), {});
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

  test('beside other pools, and over blocks of its own size that a former pool left', () => {
    const view = new TestView([poolRecord('other', '10.1.0.0/16'), blockRecord('10.0.0.64/26')]);
    const { utilization } = view.apply(create(view, { cidr: '10.0.0.0/24' }));
    expect(utilization).toMatchObject({ capacity: 256n, allocated: 0n, blocks: 1n });
    expect(view.pools().map(({ name }) => name)).toEqual(['other', 'p']);
  });

  test('for IPv6 with blocks of /122', () => {
    expect(create(new TestView(), { cidr: 'fd00::/48' }).outcome.pool.blockSizeBits).toBe(122);
  });
});

const uidsOf = (count: number): string[] => Array.from({ length: count }, (_, i) => `uid-${i}`);

function decide(view: TestView, rest: Partial<PoolSplitRequest> = {}) {
  const wanted = { pool: { by: 'name', name: 'p' }, partsCount: 2, resourceVersion: '', ...rest } as const;
  return splitPool(view, { request: wanted, uids: uidsOf(wanted.partsCount), nowMs: NOW_MS + 5000 });
}

function split(view: TestView, rest: Partial<PoolSplitRequest> = {}): readonly Pool[] {
  const outcome = view.apply(decide(view, rest));
  if (!outcome.ok) throw new Error(outcome.faults.map(({ reason }) => reason).join('; '));
  return outcome.parts.map((part) => part.pool);
}

function faultsOf(view: TestView, rest: Partial<PoolSplitRequest>): string[] {
  const before = view.snapshot();
  const outcome = view.apply(decide(view, rest));
  expect(view.snapshot()).toEqual(before);
  return outcome.ok ? [] : outcome.faults.map(({ field, reason }) => `${field} ${reason}`);
}

function refusalOf(view: TestView, rest: Partial<PoolSplitRequest> = {}) {
  const before = view.snapshot();
  const failure = failureOf(() => view.apply(decide(view, rest)));
  expect(view.snapshot()).toEqual(before);
  return failure;
}

const EVERY_FIELD: Required<Omit<PoolSpec, 'name' | 'prefix'>> = {
  blockSizeBits: 28,
  disabled: true,
  ipipMode: 'Never',
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
    const view = new TestView([poolRecord('p', '10.0.0.0/24', EVERY_FIELD), poolRecord('other', '10.1.0.0/24')]);
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
    const view = new TestView([poolRecord('p', 'fd00::/112')]);
    const parts = split(view, { pool: { by: 'range', range: prefix('fd00::/112') } });
    expect(parts.map(({ prefix: range }) => formatPrefix(range))).toEqual(['fd00::/113', 'fd00::8000/113']);
  });

  test('and its parts again, down to one block each', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/20', { blockSizeBits: 32 })]);
    expect(split(view, { partsCount: MAX_PARTS })).toHaveLength(64);
    expect(split(view, { pool: { by: 'name', name: 'split-p-63' }, partsCount: MAX_PARTS })).toHaveLength(64);
    expect(view.pools()).toHaveLength(127);
  });

  test('in a transaction that etcd takes, however many parts', () => {
    const { changes } = decide(new TestView([poolRecord('p', '10.0.0.0/16')]), { partsCount: MAX_PARTS });
    expect(changes.length).toBeLessThanOrEqual(128);
  });

  test('on the condition that no pool was created or changed, and that it is as it was seen', () => {
    const { changes } = decide(new TestView([poolRecord('p', '10.0.0.0/24')]));
    expect(changes.map(({ type }) => type)).toEqual(['expectPools', 'delete', 'put', 'put']);
  });

  test('if it still has the version', () => {
    const value = pool('p', '10.0.0.0/24');
    expect(split(new TestView([{ kind: 'pool', value }]), { resourceVersion: poolVersion(value) })).toHaveLength(2);
  });

  test('into parts of which only the parts that overlap another pool stay out of use', () => {
    const view = new TestView([
      poolRecord('p', '10.0.0.0/24', { notAllocatable: 'CIDROverlap' }),
      poolRecord('other', '10.0.0.0/26'),
    ]);
    expect(split(view).map(({ notAllocatable }) => notAllocatable)).toEqual(['CIDROverlap', undefined]);
  });

  test('and the next address is from the node’s own block, in the part that has it', () => {
    const view = new TestView([
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
        const view = new TestView([
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
    const [fault, ...rest] = faultsOf(new TestView([poolRecord('p', cidr)]), { partsCount });
    expect(fault).toMatch(/^number is \d/);
    expect(fault).toContain(reason);
    expect(rest).toEqual([]);
  });

  test('of a disabled pool that is smaller than one block', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/28', { disabled: true, blockSizeBits: 26 })]);
    expect(faultsOf(view, {})).toEqual([expect.stringContaining('has room for 0 blocks')]);
  });

  test('with every fault at once', () => {
    const name = 'p'.repeat(246);
    const view = new TestView([poolRecord(name, '10.0.0.0/26')]);
    expect(faultsOf(view, { pool: { by: 'name', name } })).toEqual([
      expect.stringMatching(/^number is 2/),
      expect.stringMatching(/^name makes a part's name that is longer than 253 bytes/),
    ]);
  });

  test('of a pool whose parts would have too long a name, and of none with a shorter one', () => {
    const longest = 'p'.repeat(253 - 'split--0'.length);
    expect(
      split(new TestView([poolRecord(longest, '10.0.0.0/24')]), { pool: { by: 'name', name: longest } }),
    ).toHaveLength(2);
    const name = `${longest}p`;
    expect(faultsOf(new TestView([poolRecord(name, '10.0.0.0/24')]), { pool: { by: 'name', name } })).toHaveLength(1);
  });

  test('of a pool that does not exist, by name or by range', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24')]);
    expect(refusalOf(view, { pool: { by: 'name', name: 'q' } }).code).toBe('POOL_NOT_FOUND');
    const byRange = refusalOf(view, { pool: { by: 'range', range: prefix('10.0.0.0/25') } });
    expect(byRange.message).toContain('there is no pool 10.0.0.0/25');
  });

  test('of a pool that was changed since', () => {
    expect(refusalOf(new TestView([poolRecord('p', '10.0.0.0/24')]), { resourceVersion: 'old' }).code).toBe(
      'STALE_VERSION',
    );
  });

  test('of a pool that is being deleted', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24', { deletionTimeMs: NOW_MS })]);
    expect(refusalOf(view).code).toBe('POOL_BEING_DELETED');
  });

  test('when the name of a part is taken', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24'), poolRecord('split-p-1', '10.9.0.0/24')]);
    const failure = refusalOf(view);
    expect(failure.code).toBe('POOL_EXISTS');
    expect(failure.message).toContain('there is a pool "split-p-1" already');
  });

  test('when a block of another size, from an older writer, lies across two parts', () => {
    const wide = { kind: 'block', value: block('10.0.0.0/23', 'n1') } as const;
    const view = new TestView([poolRecord('p', '10.0.0.0/23'), wide]);
    const failure = refusalOf(view);
    expect(failure.code).toBe('POOL_OVERLAP');
    expect(failure.message).toContain('block 10.0.0.0/23 overlaps several');
    const narrow = { kind: 'block', value: block('10.0.0.0/24', 'n1') } as const;
    expect(split(new TestView([poolRecord('p', '10.0.0.0/23'), narrow]))).toHaveLength(2);
  });

  test('when such a block is unreadable; one within a part does not matter', () => {
    const unreadable = (cidr: string) => {
      const view = new TestView([poolRecord('p', '10.0.0.0/23')]);
      view.setAside({ kind: 'block', prefix: prefix(cidr) }, 'no');
      return view;
    };
    expect(refusalOf(unreadable('10.0.0.0/22')).code).toBe('POOL_OVERLAP');
    expect(split(unreadable('10.0.1.0/24'))).toHaveLength(2);
    expect(split(unreadable('10.0.0.64/26'))).toHaveLength(2);
  });
});

const change = (rest: Partial<PoolChange>): PoolChange => ({ name: 'p', resourceVersion: '', ...rest });

function changed(rest: Partial<PoolChange>, stored: Partial<Pool> = {}) {
  const view = new TestView([poolRecord('p', '10.0.0.0/16', stored)]);
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
  ])('to %o, and not in other fields', (rest) => {
    expect(changed(rest)).toEqual({ ...pool('p', '10.0.0.0/16'), ...rest });
  });

  test('with its own range and block size repeated', () => {
    expect(changed({ cidr: '10.0.0.0/16', blockSizeBits: 26, natOutgoing: true }).natOutgoing).toBe(true);
  });

  test('not at all when nothing differs', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/16', { natOutgoing: true })]);
    const decision = updatePool(view, change({ natOutgoing: true }));
    expect(decision).toMatchObject({ changes: [], outcome: { ok: true, changed: false } });
  });

  test('on the condition of its version, once', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/16')]);
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
    const after = (more: Parameters<TestView['put']>[0][]) => {
      const view = new TestView([record, ...more]);
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
    const view = new TestView([poolRecord('p', '10.0.0.0/16', stored)]);
    const before = view.snapshot();
    const outcome = view.apply(updatePool(view, change(rest)));
    expect(view.snapshot()).toEqual(before);
    return outcome.ok ? [] : outcome.faults.map(({ field, reason }) => `${field} ${reason}`);
  };

  test('of immutable fields', () => {
    expect(faults({ cidr: '10.0.0.0/17', blockSizeBits: 27 })).toEqual([
      'cidr is immutable and 10.0.0.0/16 here, not 10.0.0.0/17',
      'blockSizeBits is immutable and 26 here, not 27',
    ]);
  });

  test.each([[['Workload']], [['Tunnel']], [['LoadBalancer', 'Workload']]])(
    'from load balancers to %o',
    (allowedUses) => {
      expect(faults({ allowedUses }, { allowedUses: ['LoadBalancer'] })[0]).toMatch(
        /^allowedUses is LoadBalancer permanently/,
      );
    },
  );

  test('that breaks a rule together with existing fields, with every error', () => {
    const texts = faults({ cidr: '10.0.0.0/8', vxlanMode: 'Always', namespaceSelector: '(' }, { ipipMode: 'Always' });
    expect(texts).toEqual([
      expect.stringMatching(/^cidr is immutable/),
      expect.stringMatching(/^ipipMode is Always and vxlan is Always/),
      expect.stringMatching(/^namespaceSelector is not a valid selector/),
      expect.stringMatching(/^namespaceSelector selects namespaces/),
    ]);
  });

  test('that enables a pool smaller than a block', () => {
    const texts = faults(
      { disabled: false },
      { prefix: pool('x', '10.0.0.0/27', { blockSizeBits: 27 }).prefix, disabled: true },
    );
    expect(texts).toEqual([expect.stringMatching(/^cidr is smaller than one block of \/26/)]);
  });

  test('of a pool that does not exist, or is being deleted', () => {
    expect(failureOf(() => updatePool(new TestView(), change({}))).code).toBe('POOL_NOT_FOUND');
    const view = new TestView([poolRecord('p', '10.0.0.0/16', { deletionTimeMs: NOW_MS })]);
    expect(failureOf(() => updatePool(view, change({ disabled: true }))).code).toBe('POOL_BEING_DELETED');
  });
});

import { parseAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { allocate, type Allocation, type AllocationRequest } from '../addresses/allocate/allocate.js';
import { release } from '../addresses/release.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import type { Block } from '../records/block.js';
import type { RecordValue } from '../records/view.js';
import { assign, assignment } from '../testing/allocations.js';
import {
  affinity,
  attachment,
  block,
  claimedBlock,
  config,
  failureOf,
  fullBlock,
  host,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
  takeAddress,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';

const MINUTE_MS = 60_000;
const OLD = { claimTimeMs: NOW_MS - MINUTE_MS };

function run(view: TestView, asked: AllocationRequest, nowMs = NOW_MS): Allocation {
  return view.apply(allocate(view, { request: asked, nowMs }));
}

const addressOf = ({ endpoint }: Allocation): string => formatPrefix(endpoint.addresses[0]!.address);
const refusal = (view: TestView, asked: AllocationRequest) =>
  failureOf(() => allocate(view, { request: asked, nowMs: NOW_MS }));
const reserve = (...cidrs: string[]): RecordValue => ({
  kind: 'reservation',
  value: { name: 'r', uid: 'uid-r', createTimeMs: NOW_MS, prefixes: cidrs.map(prefix) },
});

const STRICT = config({ strictAffinity: true });
const small = (...records: RecordValue[]) =>
  new TestView([poolRecord('p', '10.0.0.0/29', { blockSizeBits: 30 }), ...records]);

describe('borrowing', () => {
  const otherBlocks = [...claimedBlock(block('10.0.0.0/30', 'n2')), ...claimedBlock(block('10.0.0.4/30', 'n3'))];

  test('begins when every block is another node’s, changes no owner, and compares that it is still allowed', () => {
    const view = small(...otherBlocks);
    const decision = allocate(view, { request: request('c1'), nowMs: NOW_MS });
    const expected = decision.changes.flatMap((change) => (change.type === 'expect' ? [change.record.kind] : []));
    expect(expected).toEqual(['pool', 'config']);
    const { borrowed, claimed } = view.apply(decision);
    expect(borrowed).toHaveLength(1);
    expect(claimed).toEqual([]);
    expect(view.affinitiesOf(host('n1'))).toEqual([]);
    expect(view.blocks().map(({ owner }) => owner?.name)).toEqual(['n2', 'n3']);
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
  });

  test('a borrowed address is released like any other', () => {
    const view = small(...otherBlocks);
    run(view, request('c1'));
    view.apply(release(view, attachment('c1'), NOW_MS));
    expect(view.blocks().every(({ attributes }) => attributes.length === 0)).toBe(true);
    expect(view.all('handle')).toEqual([]);
  });

  test('does not happen under strict affinity, and the refusal says so', () => {
    expect(refusal(small(STRICT, ...otherBlocks), request('c1'))).toMatchObject({
      code: 'POOLS_EXHAUSTED',
      message: expect.stringContaining('Affinity is strict, so nodes use only their own blocks'),
    });
  });

  test.each<[string, RecordValue[], Partial<AllocationRequest>]>([
    ['the cap of the configuration', [config({ maxBlocksPerHostCount: 1 })], {}],
    ['the cap of the request', [], { maxBlocksCount: 1 }],
    ['the disabled claims', [config({ autoAllocateBlocks: false })], {}],
  ])('is used beyond %s', (_, records, rest) => {
    const view = small(...records, ...claimedBlock(fullBlock('10.0.0.0/30', 'n1')));
    expect(refusal(view, request('c1', rest)).code).toBe('POOLS_EXHAUSTED');
    for (const record of claimedBlock(block('10.0.0.4/30', 'n2', OLD))) view.put(record);
    expect(formatPrefix(run(view, request('c1', rest)).borrowed[0]!)).toBe('10.0.0.4/30');
  });

  test('takes nothing from blocks of a virtual owner, unless for a load balancer', () => {
    const owner = { kind: 'virtual', name: 'other' } as const;
    const view = new TestView([
      poolRecord('p', '10.0.0.0/30', { blockSizeBits: 30, allowedUses: ['Workload', 'LoadBalancer'] }),
      ...claimedBlock(block('10.0.0.0/30', 'n1', { owner, ...OLD })),
    ]);
    expect(refusal(view, request('c1')).message).toContain('block 10.0.0.0/30 belongs to other');
    const asked = assignment('lb', { owner: { kind: 'virtual', name: 'load-balancer' }, use: 'LoadBalancer' });
    expect(assign(view, asked).newAddresses).toEqual(['10.0.0.0/32']);
  });

  test('includes a block without an owner that is not empty', () => {
    const taken = takeAddress(block('10.0.0.0/30', 'n1'), { handleId: 'x', owner: {}, releasedAtMs: undefined })!.block;
    const ownerless = { kind: 'block', value: { ...taken, owner: undefined } } as const;
    const only = new TestView([poolRecord('p', '10.0.0.0/30', { blockSizeBits: 30 }), ownerless]);
    expect(addressOf(run(only, request('c1')))).toBe('10.0.0.1/32');
    const strict = new TestView([poolRecord('p', '10.0.0.0/30', { blockSizeBits: 30 }), ownerless, STRICT]);
    expect(refusal(strict, request('c1')).message).toContain('block 10.0.0.0/30 has no owner');
  });
});

describe('the cap of blocks', () => {
  test('is the smaller of both, and counts per family, and the serving pools only', () => {
    const view = new TestView([
      config({ strictAffinity: true, maxBlocksPerHostCount: 2 }),
      poolRecord('p', '10.0.0.0/28', { blockSizeBits: 31 }),
      poolRecord('other', '10.1.0.0/28', { blockSizeBits: 31, disabled: true }),
      poolRecord('six', 'fd00::/124', { blockSizeBits: 127 }),
      ...claimedBlock(fullBlock('10.1.0.0/31', 'n1')),
      { kind: 'handle', value: { id: 'other.owner', blocks: new Map([['10.1.0.0/31', 2]]) } },
    ]);
    expect(assign(view, assignment('h', { counts: { 4: 16, 6: 16 }, maxBlocksCount: 3 })).newAddresses).toHaveLength(8);
    expect(
      assign(view, assignment('i', { owner: host('n2'), counts: { 4: 16, 6: 0 }, maxBlocksCount: 1 })).newAddresses,
    ).toHaveLength(2);
  });

  test('is none by default: 64 blocks for one node', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/25', { blockSizeBits: 31 })]);
    expect(assign(view, assignment('h', { counts: { 4: 128, 6: 0 } })).blocks).toHaveLength(64);
  });
});

describe('an affinity without a block', () => {
  test.each(['10.0.0.0/30', '10.0.0.4/30'])('of %s gets the block, which is offered once', (cidr) => {
    const view = small({ kind: 'affinity', value: affinity(cidr, 'n1', 'pending') });
    const { blocks, newAddresses } = assign(view, assignment('h', { counts: { 4: 8, 6: 0 } }));
    expect(new Set(newAddresses).size).toBe(8);
    expect(blocks[0]).toBe(cidr);
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
  });
});

describe('an empty block of another node', () => {
  const full = (value: Partial<Block>) =>
    small(
      ...claimedBlock(fullBlock('10.0.0.0/30', 'n1')),
      { kind: 'handle', value: { id: 'other.owner', blocks: new Map([['10.0.0.0/30', 4]]) } },
      ...claimedBlock(block('10.0.0.4/30', 'n2', value)),
    );

  test.each([
    ['a minute ago', OLD.claimTimeMs],
    ['before blocks recorded the time', undefined],
    ['by a clock that is a day ahead', NOW_MS + 86_400_000],
  ])('that was claimed %s becomes the node’s, in one transaction', (_, claimTimeMs) => {
    const view = full({ claimTimeMs });
    const before = view.block(prefix('10.0.0.4/30'))!;
    const { claimed, reclaimed } = run(view, request('c1'));
    expect([claimed, reclaimed].map((blocks) => blocks.map(formatPrefix))).toEqual([['10.0.0.4/30'], ['10.0.0.4/30']]);
    const after = view.block(prefix('10.0.0.4/30'))!;
    expect(after).toMatchObject({ owner: host('n1'), claimTimeMs: NOW_MS - 100 });
    expect(after.sequenceNumber).toBeGreaterThan(before.sequenceNumber);
    expect(view.affinitiesOf(host('n2'))).toEqual([]);
    expect(view.affinity(host('n1'), after.prefix)?.state).toBe('confirmed');
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
  });

  test('that was claimed just now stays: its first address may be in flight', () => {
    const view = full({ claimTimeMs: NOW_MS - MINUTE_MS + 1000 });
    view.put(STRICT);
    expect(refusal(view, request('c1')).message).toContain('0 of 4 addresses in use, claimed just now');
  });

  test('with an address that cools down stays until that is over', () => {
    const cooling = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 10_000 };
    const rest = { allocations: [0, null, null, null], unallocated: [1, 2, 3], attributes: [cooling] };
    const view = full({ ...OLD, ...rest });
    view.put(config({ strictAffinity: true, cooldownSeconds: 30 }));
    expect(refusal(view, request('c1')).message).toContain('1 of 4 addresses in use, 1 of them cooling down');
    expect(addressOf(run(view, request('c1'), NOW_MS + 20_000))).toBe('10.0.0.5/32');
    expect(view.block(prefix('10.0.0.4/30'))!.unallocated).toEqual([2, 3, 0]);
  });

  test('comes after unclaimed blocks, and starts with blocks of deleted nodes', () => {
    const view = new TestView([
      poolRecord('p', '10.0.0.0/28', { blockSizeBits: 30 }),
      nodeRecord('n2'),
      nodeRecord('n4', { deletionTimeMs: NOW_MS }),
      ...claimedBlock(block('10.0.0.0/30', 'n2', OLD)),
      ...claimedBlock(block('10.0.0.4/30', 'n3', OLD)),
      ...claimedBlock(block('10.0.0.8/30', 'n4', OLD)),
    ]);
    const blocks = assign(view, assignment('h', { counts: { 4: 16, 6: 0 } })).blocks;
    expect(blocks[0]).toBe('10.0.0.12/30');
    expect([...blocks.slice(1, 3)].sort()).toEqual(['10.0.0.4/30', '10.0.0.8/30']);
    expect(blocks[3]).toBe('10.0.0.0/30');
  });

  test('is not reclaimed for a node at its cap, which borrows from it', () => {
    const view = full(OLD);
    view.put(config({ maxBlocksPerHostCount: 1 }));
    expect(run(view, request('c1')).borrowed.map(formatPrefix)).toEqual(['10.0.0.4/30']);
    expect(view.affinitiesOf(host('n2'))).toHaveLength(1);
  });

  test('without an owner is adopted, also under strict affinity', () => {
    const view = new TestView([
      STRICT,
      poolRecord('p', '10.0.0.0/30', { blockSizeBits: 30 }),
      { kind: 'block', value: block('10.0.0.0/30', 'n1', { owner: undefined }) },
    ]);
    expect(run(view, request('c1')).claimed.map(formatPrefix)).toEqual(['10.0.0.0/30']);
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
  });
});

describe('reservations', () => {
  test('keep the covered addresses free and in their place', () => {
    const view = small(reserve('10.0.0.0/31', '10.0.0.3/32'), ...claimedBlock(block('10.0.0.0/30', 'n1')));
    expect(addressOf(run(view, request('c1')))).toBe('10.0.0.2/32');
    expect(view.block(prefix('10.0.0.0/30'))!.unallocated).toEqual([0, 1, 3]);
    view.remove({ kind: 'reservation', name: 'r' });
    expect(addressOf(run(view, request('c2')))).toBe('10.0.0.0/32');
  });

  test('of whole blocks: these are neither used nor claimed', () => {
    const view = small(reserve('10.0.0.0/30'), ...claimedBlock(block('10.0.0.0/30', 'n1')));
    const { blocks, newAddresses } = assign(view, assignment('h', { counts: { 4: 8, 6: 0 } }));
    expect(blocks).toEqual(['10.0.0.4/30']);
    expect(newAddresses).toHaveLength(4);
  });

  test('of half a /48: 2^73 blocks are skipped', () => {
    const view = new TestView([
      poolRecord('six', 'fd00:1::/48'),
      reserve('fd00:1::/49', 'fd00:1:0:8000::/50', 'fd00:1:0:c000::/51'),
    ]);
    const { endpoint } = run(view, request('c1', { families: [6] }));
    expect(formatPrefix(endpoint.addresses[0]!.block)).toMatch(/^fd00:1:0:[ef]/);
  });

  test('do not make a block that an affinity names', () => {
    const view = small(reserve('10.0.0.0/30'), { kind: 'affinity', value: affinity('10.0.0.0/30', 'n1', 'pending') });
    expect(run(view, request('c1')).claimed.map(formatPrefix)).toEqual(['10.0.0.4/30']);
  });
});

describe('the cool-down', () => {
  const one = (cooldownSeconds: number) =>
    new TestView([config({ cooldownSeconds }), poolRecord('p', '10.0.0.0/31', { blockSizeBits: 31 })]);

  test('blocks an address for its time, and the other is used instead', () => {
    const view = one(30);
    run(view, request('a'));
    view.apply(release(view, attachment('a'), NOW_MS));
    expect(addressOf(run(view, request('b')))).toBe('10.0.0.1/32');
    expect(refusal(view, request('c')).message).toContain('1 of them cooling down');
    expect(addressOf(run(view, request('c'), NOW_MS + 30_000))).toBe('10.0.0.0/32');
  });

  test('ends for no address while the configuration is unreadable; free addresses are allocated', () => {
    const stored = new TestView([poolRecord('p', '10.0.0.0/24'), config({ cooldownSeconds: 600 })]);
    run(stored, request('c0'));
    stored.apply(release(stored, attachment('c0'), NOW_MS));
    const records = stored.snapshot().flatMap(([, record]) => (record.kind === 'config' ? [] : [record]));
    const view = new TestView(records);
    view.setAside({ kind: 'config' }, 'it is not JSON');
    const later = NOW_MS + 601_000;
    const { changes, outcome } = allocate(view, { request: request('c1'), nowMs: later });
    expect(addressOf(outcome)).toBe('10.0.0.1/32');
    expect(changes.filter((change) => 'record' in change && change.record.kind === 'config')).toEqual([]);
    const cooling = request('c2', { addresses: [parseAddress('10.0.0.0')!] });
    expect(failureOf(() => allocate(view, { request: cooling, nowMs: later }))).toMatchObject({
      code: 'STORE_CORRUPT',
    });
  });

  test('is not reported as the reason while the configuration cannot be read', () => {
    const stored = new TestView([
      poolRecord('p', '10.0.0.0/32', { blockSizeBits: 32 }),
      config({ cooldownSeconds: 600 }),
    ]);
    run(stored, request('c0'));
    stored.apply(release(stored, attachment('c0'), NOW_MS));
    expect(refusal(stored, request('c1'))).toMatchObject({ code: 'POOLS_EXHAUSTED' });
    stored.setAside({ kind: 'config' }, 'it is not JSON');
    expect(refusal(stored, request('c1'))).toMatchObject({ code: 'STORE_CORRUPT' });
  });

  test('reuses the first released address first, once both have cooled down', () => {
    const view = one(30);
    for (const id of ['a', 'b']) run(view, request(id));
    view.apply(release(view, attachment('b'), NOW_MS));
    view.apply(release(view, attachment('a'), NOW_MS + 5000));
    const later = NOW_MS + 60_000;
    expect(['c', 'd'].map((id) => addressOf(run(view, request(id), later)))).toEqual(['10.0.0.1/32', '10.0.0.0/32']);
  });

  test('of addresses that another replica’s wrong clock released in the future ends nevertheless', () => {
    const view = one(30);
    for (const id of ['a', 'b']) run(view, request(id));
    view.apply(release(view, attachment('b'), NOW_MS + 86_400_000));
    view.apply(release(view, attachment('a'), NOW_MS + 20_000));
    expect(addressOf(run(view, request('c')))).toBe('10.0.0.1/32');
    expect(refusal(view, request('d')).code).toBe('POOLS_EXHAUSTED');
    expect(addressOf(run(view, request('d'), NOW_MS + 50_000))).toBe('10.0.0.0/32');
  });
});

describe('empty blocks in pools that no longer select the node', () => {
  const start = (nodeSelector: string, held: Block = block('10.1.0.0/30', 'n1')) =>
    new TestView([
      nodeRecord('n1', { labels: { zone: 'b' } }),
      poolRecord('p', '10.0.0.0/29', { blockSizeBits: 30 }),
      poolRecord('z', '10.1.0.0/29', { blockSizeBits: 30, nodeSelector }),
      ...claimedBlock(held),
    ]);

  test('are released when the node gets another', () => {
    const view = start('zone == "a"');
    run(view, request('c1'));
    expect(view.blocks().map(({ prefix: of }) => formatPrefix(of))).not.toContain('10.1.0.0/30');
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
  });

  test('are released with the node’s next address, also from a block that it has', () => {
    const view = start('zone == "a"');
    claimedBlock(block('10.0.0.0/30', 'n1')).forEach((record) => view.put(record));
    expect(addressOf(run(view, request('c1')))).toBe('10.0.0.0/32');
    expect(view.affinitiesOf(host('n1')).map(({ block: of }) => formatPrefix(of))).toEqual(['10.0.0.0/30']);
    expect(view.blocks().map(({ prefix: of }) => formatPrefix(of))).toEqual(['10.0.0.0/30']);
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
  });

  test.each([
    ['another family', ['p', 'six'], 'fd00::/122'],
    ['its own family', ['z', 'six'], '10.1.0.0/30'],
  ])('stay when the same request takes an address of %s from them', (_, pools, stays) => {
    const view = start('zone == "a"');
    view.put(poolRecord('six', 'fd00::/120', { nodeSelector: 'zone == "a"' }));
    claimedBlock(block('fd00::/122', 'n1')).forEach((record) => view.put(record));
    run(view, request('c1', { families: [4, 6], pools }));
    expect(view.affinitiesOf(host('n1')).map(({ block: of }) => formatPrefix(of))).toContain(stays);
    expect(inconsistencies(view, NOW_MS)).toEqual([]);
  });

  test('stay while an address is in use', () => {
    const taken = takeAddress(block('10.1.0.0/30', 'n1'), { handleId: 'x', owner: {}, releasedAtMs: undefined })!.block;
    const view = start('zone == "a"', taken);
    view.put({ kind: 'handle', value: { id: 'x', blocks: new Map([['10.1.0.0/30', 1]]) } });
    run(view, request('c1'));
    expect(view.affinitiesOf(host('n1'))).toHaveLength(2);
  });

  test.each([
    ['cannot be read', 'zone ='],
    ['selects it', 'zone == "b"'],
  ])('stay if the selector %s and another pool is requested', (_, nodeSelector) => {
    const view = start(nodeSelector);
    run(view, request('c1', { pools: ['p'] }));
    expect(view.affinitiesOf(host('n1'))).toHaveLength(2);
  });

  test('stay where the pool is not for this use', () => {
    const view = start('all()');
    view.put(poolRecord('z', '10.1.0.0/29', { blockSizeBits: 30, allowedUses: ['Tunnel'] }));
    run(view, request('c1'));
    expect(view.affinitiesOf(host('n1'))).toHaveLength(2);
  });
});

describe('at the same time', () => {
  test('two decisions on the same empty block: the second, decided again, does not take it', () => {
    const view = small(
      ...claimedBlock(fullBlock('10.0.0.0/30', 'n1')),
      ...claimedBlock(block('10.0.0.4/30', 'n2', OLD)),
    );
    const reclaim = allocate(view, { request: request('c1'), nowMs: NOW_MS });
    const names = reclaim.changes.flatMap((change) =>
      'record' in change && change.record.kind === 'block' ? [formatPrefix(change.record.value.prefix)] : [],
    );
    expect(names).toEqual(['10.0.0.4/30']);
    run(view, request('c2', { nodeName: 'n2' }));
    expect(run(view, request('c1')).borrowed.map(formatPrefix)).toEqual(['10.0.0.4/30']);
  });
});

import { parseAddress } from '@podwire/shared/net/address';
import { formatCount } from '@podwire/shared/words/format-count';
import { describe, expect, test } from 'vitest';

import { attributesAt, takeOrdinals } from '../records/block.js';
import { assign, assignment } from '../testing/allocations.js';
import {
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
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { allocate } from './allocate/allocate.js';
import { assignAddresses, type AssignmentRequest } from './assign.js';
import { release } from './release.js';

const ONE_OF_EACH = { 4: 1, 6: 1 };
const count = (four: number, six = 0) => ({ 4: four, 6: six });
const handleOf = (id: string, cidr: string) => ({ id, blocks: new Map([[cidr, 1]]) });
const address = (text: string) => parseAddress(text)!;

const refused = (view: TestView, asked: AssignmentRequest) => {
  const before = view.snapshot();
  const failure = failureOf(() => assignAddresses(view, { request: asked, nowMs: NOW_MS, left: undefined }));
  expect(view.snapshot()).toEqual(before);
  return failure;
};

/** Cases of AutoAssign in Calico's ipam_test.go. */
describe('many addresses for one handle', () => {
  test.each([
    ['10.0.0.0/24', 32, 'fd00::/120', 128],
    ['10.0.0.0/16', 20, 'fd00::/110', 116],
  ])('one of each family from %s cut to /%i and %s cut to /%i', (four, fourBits, six, sixBits) => {
    const view = new TestView([
      poolRecord('four', four, { blockSizeBits: fourBits }),
      poolRecord('six', six, { blockSizeBits: sixBits }),
    ]);
    const { newAddresses, blocks } = assign(view, assignment('h', { counts: ONE_OF_EACH }));
    expect(newAddresses).toHaveLength(2);
    expect(blocks.map((cidr) => Number(cidr.split('/')[1]))).toEqual([fourBits, sixBits]);
  });

  test.each([
    [26, 122],
    [30, 126],
    [32, 128],
  ])('all 256 of a /24 and a /120 cut to /%i and /%i, and no more', (fourBits, sixBits) => {
    const view = new TestView([
      poolRecord('four', '192.168.1.0/24', { blockSizeBits: fourBits }),
      poolRecord('six', 'fd80::/120', { blockSizeBits: sixBits }),
    ]);
    const all = assign(view, assignment('h', { counts: count(256, 256), maxBlocksCount: 256 }));
    expect(new Set(all.newAddresses).size).toBe(512);
    expect(all.short).toEqual({});
    expect([...view.handle('h')!.blocks.values()].reduce((sum, value) => sum + value)).toBe(512);
    const none = assign(view, assignment('h', { counts: count(1, 1) }));
    expect(none.newAddresses).toEqual([]);
    expect(none.short[4]).toMatch(
      /pool "four" 192\.168\.1\.0\/24: (all \d+ blocks are|its one block is) full \(256 of 256/,
    );
    expect(none.short[6]).toMatch(/pool "six" fd80::\/120: all/);
  });

  test('from a block that is too large for a request only when no other has a free address', () => {
    const pools = [poolRecord('four', '10.0.0.0/21', { blockSizeBits: 22 }), poolRecord('six', 'fd80::/120')];
    const large = takeOrdinals(block('10.0.0.0/22', 'n1'), [0], {
      handleId: 'other',
      owner: { note: 'x'.repeat(1.6e6) },
      releasedAtMs: undefined,
    });
    const view = new TestView([
      ...pools,
      ...claimedBlock(large),
      { kind: 'handle', value: handleOf('other', '10.0.0.0/22') },
    ]);
    expect(assign(view, assignment('a', { counts: count(2) })).blocks).toEqual(['10.0.4.0/22']);
    const rest = assign(view, assignment('b', { counts: count(1030, 1) }));
    expect(rest.newAddresses).toHaveLength(1031);
    expect(rest.blocks.map((cidr) => cidr.split(':')[0])).toEqual(['10.0.4.0/22', 'fd80', '10.0.0.0/22']);
    expect(rest.steps).toBe(2);
  });

  test('257 of 256: all that are free, and why there are no more', () => {
    const view = new TestView([poolRecord('p', '192.168.1.0/24')]);
    const { newAddresses, short } = assign(view, assignment('h', { counts: count(257) }));
    expect(newAddresses).toHaveLength(256);
    expect(short[4]).toContain(
      'no IPv4 address for handle h on node n1: pool "p" 192.168.1.0/24: all 4 blocks are full',
    );
  });

  test.each([
    [count(256), 2, 128, 4],
    [count(0, 256), 1, 64, 6],
  ])('%j with a cap of %i blocks: %i, and the cap', (counts, maxBlocksCount, expected, family) => {
    const view = new TestView([poolRecord('four', '10.0.0.0/24'), poolRecord('six', 'fd00::/120')]);
    const { newAddresses, short } = assign(view, assignment('h', { counts, maxBlocksCount }));
    expect(newAddresses).toHaveLength(expected);
    expect(short[family]).toContain(
      `node n1 has ${formatCount(maxBlocksCount, 'block')} in the serving pools, and its limit is`,
    );
  });

  test('4096 from blocks of one address: in many transactions, each within the limit', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/25', { blockSizeBits: 32 })]);
    const { newAddresses, steps } = assign(view, assignment('h', { counts: count(128) }));
    expect(new Set(newAddresses).size).toBe(128);
    expect(steps).toBeGreaterThan(4);
  });

  test('with strict affinity, only from the requested pool, and the message names it', () => {
    const view = new TestView([
      config({ strictAffinity: true }),
      poolRecord('a', '10.0.0.0/25'),
      ...claimedBlock(block('10.0.0.64/26', 'n2')),
      poolRecord('b', '10.1.0.0/26'),
    ]);
    const { newAddresses, short } = assign(view, assignment('h', { counts: count(256), pools: ['a'] }));
    expect(newAddresses).toHaveLength(64);
    expect(short[4]).toContain('Affinity is strict');
    expect(short[4]).not.toContain('"b"');
  });

  test('in the order in which the addresses became free, block after block', () => {
    const view = new TestView([
      poolRecord('p', '10.0.0.0/29', { blockSizeBits: 31 }),
      ...claimedBlock(block('10.0.0.4/31', 'n1', { unallocated: [1, 0] })),
    ]);
    expect(assign(view, assignment('h', { counts: count(2) })).newAddresses).toEqual(['10.0.0.5/32', '10.0.0.4/32']);
  });
});

describe('pools', () => {
  const TWO = [poolRecord('a', '10.0.0.0/24'), poolRecord('b', '10.1.0.0/24')];

  test('that allow the use serve, and no other pools', () => {
    const view = new TestView([
      poolRecord('a', '10.0.0.0/24', { allowedUses: ['Tunnel'] }),
      poolRecord('b', '10.1.0.0/24', { allowedUses: ['Workload'] }),
      poolRecord('c', '10.2.0.0/24', { allowedUses: ['Workload', 'Tunnel'] }),
    ]);
    expect(assign(view, assignment('h', { counts: count(600) })).pools).toEqual(['b', 'c']);
    expect(assign(view, assignment('t', { use: 'Tunnel' })).pools).toEqual(['a']);
  });

  test('none of which allows the use are no pool at all', () => {
    const view = new TestView([poolRecord('a', '10.0.0.0/24', { allowedUses: ['Tunnel'] })]);
    expect(refused(view, assignment('h'))).toMatchObject({
      code: 'NO_POOL_SERVES',
      message: expect.stringContaining('not for containers: its allowedUses are Tunnel'),
    });
  });

  test('that are requested by CIDR return the same block again', () => {
    const view = new TestView(TWO);
    const first = assign(view, assignment('h', { pools: ['10.1.0.0/24'] }));
    expect(first.pools).toEqual(['b']);
    expect(assign(view, assignment('i', { pools: ['b'] })).blocks).toEqual(first.blocks);
  });

  test('of two requested pools, the first is tried first', () => {
    expect(assign(new TestView(TWO), assignment('h', { pools: ['b', 'a'] })).pools).toEqual(['b']);
  });

  test('that do not select the node are left out: 256 of 300, all from the selecting pool', () => {
    const view = new TestView([
      nodeRecord('n1', { labels: { foo: 'bar' } }),
      poolRecord('pool1', '10.0.0.0/24', { nodeSelector: 'foo == "bar"' }),
      poolRecord('pool2', '10.1.0.0/24', { nodeSelector: 'foo != "bar"' }),
    ]);
    const { newAddresses, pools, short } = assign(view, assignment('h', { counts: count(300) }));
    expect(newAddresses).toHaveLength(256);
    expect(pools).toEqual(['pool1']);
    expect(short[4]).toContain('its nodeSelector "foo != "bar"" does not match node n1, which has the labels foo=bar');
  });

  test('that were removed give nothing any more, another one does', () => {
    const view = new TestView([poolRecord('a', '10.0.0.0/24')]);
    assign(view, assignment('h'));
    view.apply(release(view, { network: 'none', containerId: 'none', interfaceName: 'eth0' }, NOW_MS));
    view.remove({ kind: 'pool', name: 'a' });
    view.put(poolRecord('b', '10.1.0.0/24'));
    const decision = assignAddresses(view, { request: assignment('i'), nowMs: NOW_MS, left: undefined });
    expect(decision.outcome.newAddresses.map(({ poolName }) => poolName)).toEqual(['b']);
  });
});

describe('a maximum per handle', () => {
  const start = () => new TestView([poolRecord('p', '10.0.0.0/29', { blockSizeBits: 30 })]);

  test('of one: the repeat assigns nothing and returns what the handle has', () => {
    const view = start();
    const asked = assignment('vm', { maxPerHandleCount: 1 });
    const first = assign(view, asked);
    const before = view.snapshot();
    expect(assign(view, asked)).toMatchObject({ newAddresses: [], held: first.newAddresses, short: {} });
    expect(view.snapshot()).toEqual(before);
  });

  test('of two: two calls assign one each, the third none', () => {
    const view = start();
    const asked = assignment('vm', { maxPerHandleCount: 2 });
    const all = [...assign(view, asked).newAddresses, ...assign(view, asked).newAddresses];
    expect(new Set(all).size).toBe(2);
    expect(assign(view, asked)).toMatchObject({ newAddresses: [], held: all });
  });

  test('lets a repeat continue after a failure', () => {
    const view = start();
    const asked = assignment('vm', { counts: count(5), maxPerHandleCount: 5 });
    assign(view, assignment('vm', { counts: count(2) }));
    const { newAddresses, held } = assign(view, asked);
    expect([newAddresses.length, held.length]).toEqual([3, 2]);
    expect(assign(view, asked).newAddresses).toEqual([]);
  });
});

describe('all or nothing', () => {
  test('assigns all', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/28', { blockSizeBits: 30 })]);
    expect(assign(view, assignment('h', { counts: count(16), allOrNothing: true })).newAddresses).toHaveLength(16);
  });

  test('assigns nothing where one family is short', () => {
    const view = new TestView([poolRecord('four', '10.0.0.0/28'.replace('28', '26')), poolRecord('six', 'fd00::/122')]);
    expect(refused(view, assignment('h', { counts: count(10, 65), allOrNothing: true }))).toMatchObject({
      code: 'POOLS_EXHAUSTED',
      message: expect.stringContaining('only 64 of 65 IPv6 addresses for handle h are available'),
    });
  });

  test('refuses more than one transaction can hold', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24', { blockSizeBits: 32 })]);
    expect(refused(view, assignment('h', { counts: count(200), allOrNothing: true }))).toMatchObject({
      code: 'INVALID_REQUEST',
      message: expect.stringContaining('all_or_nothing is set, and one transaction holds'),
    });
  });
});

describe('requested addresses', () => {
  const start = () =>
    new TestView([poolRecord('p', '10.0.0.0/24', { blockSizeBits: 28 }), poolRecord('six', 'fd00::/122')]);
  const requestFor = (...texts: string[]) =>
    assignment('vm', { counts: count(0), addresses: texts.map(address), maxPerHandleCount: 3 });

  test('are assigned together, also several of one block; a repeat returns them', () => {
    const view = start();
    const asked = requestFor('10.0.0.3', 'fd00::1', '10.0.0.1', '10.0.0.17');
    expect(assign(view, asked).newAddresses.toSorted()).toEqual([
      '10.0.0.1/32',
      '10.0.0.17/32',
      '10.0.0.3/32',
      'fd00::1/128',
    ]);
    const before = view.snapshot();
    expect(assign(view, asked)).toMatchObject({
      newAddresses: [],
      held: ['10.0.0.3/32', 'fd00::1/128', '10.0.0.1/32', '10.0.0.17/32'],
    });
    expect(view.snapshot()).toEqual(before);
  });

  test('are all refused when another handle holds one of them', () => {
    const view = start();
    assign(view, requestFor('10.0.0.3'));
    const other = { ...requestFor('10.0.0.4', '10.0.0.3'), handleId: 'other' };
    expect(refused(view, other)).toMatchObject({ code: 'ADDRESS_IN_USE', details: { handle: 'vm' } });
  });

  test('do not go beyond the maximum of the handle', () => {
    const view = start();
    assign(view, requestFor('10.0.0.3', '10.0.0.4'));
    expect(refused(view, requestFor('10.0.0.5', '10.0.0.6'))).toMatchObject({
      code: 'INVALID_REQUEST',
      message: expect.stringContaining('it has 10.0.0.3, 10.0.0.4, and the maximum is 3'),
    });
    expect(assign(view, requestFor('10.0.0.4', '10.0.0.5')).newAddresses).toEqual(['10.0.0.5/32']);
  });
});

describe('the holder', () => {
  test('is the handle, with the owner’s attributes, the node and the time', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    assign(view, assignment('vm', { attributes: { 'vmi-name': 'db', namespace: 'prod' } }));
    expect(attributesAt(view.blocks()[0]!, 0)).toEqual({
      handleId: 'vm',
      owner: { 'vmi-name': 'db', namespace: 'prod', node: 'n1', timestamp: '2026-08-22 06:33:25.1 +0000 UTC' },
      releasedAtMs: undefined,
    });
  });

  test('is not an attachment, even if its handle has the same name', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    assign(view, assignment('net.c1'));
    const { endpoint } = view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    expect(endpoint.addresses).toHaveLength(1);
    expect(view.handle('net.c1')?.blocks).toEqual(new Map([['10.0.0.0/26', 2]]));
  });

  test('of a load balancer’s address is the handle; its block has the virtual owner, and no node', () => {
    const owner = { kind: 'virtual', name: 'load-balancer' } as const;
    const view = new TestView([poolRecord('lb', '10.0.0.0/26', { allowedUses: ['LoadBalancer'] })]);
    const asked = assignment('lb-1', { owner, use: 'LoadBalancer', unknownNodes: { policy: 'refuse' } });
    expect(assign(view, asked).newAddresses).toEqual(['10.0.0.0/32']);
    expect(view.blocks().map((made) => made.owner)).toEqual([owner]);
    expect(view.affinity(owner, prefix('10.0.0.0/26'))?.state).toBe('confirmed');
    expect(view.nodes()).toEqual([]);
  });

  test('an affinity of a node and one of a virtual owner of the same name do not meet', () => {
    const owner = { kind: 'virtual', name: 'n1' } as const;
    const view = new TestView([
      poolRecord('p', '10.0.0.0/25', { allowedUses: ['Workload', 'LoadBalancer'] }),
      ...claimedBlock(block('10.0.0.0/26', 'n1', { owner })),
    ]);
    expect(assign(view, assignment('h')).blocks).toEqual(['10.0.0.64/26']);
    expect(assign(view, assignment('l', { owner, use: 'LoadBalancer' })).blocks).toEqual(['10.0.0.0/26']);
  });

  test('on an unregistered node gets none where that is refused', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    expect(refused(view, assignment('h', { unknownNodes: { policy: 'refuse' } })).code).toBe('NODE_NOT_FOUND');
  });
});

test('full blocks of other owners are listed, a hundred at most', () => {
  const cidrs = Array.from({ length: 128 }, (_, i) => `10.0.0.${i * 2}/31`);
  const view = new TestView([
    poolRecord('p', '10.0.0.0/24', { blockSizeBits: 31 }),
    ...cidrs.map((cidr) => ({ kind: 'block', value: { ...fullBlock(cidr, 'n2'), owner: host('n2') } }) as const),
  ]);
  const { outcome } = assignAddresses(view, { request: assignment('h'), nowMs: NOW_MS, left: undefined });
  const [story] = outcome.shortages.get(4)!.pools;
  expect(story!.blocks).toHaveLength(100);
  expect([...story!.more]).toEqual([['full', 28]]);
});

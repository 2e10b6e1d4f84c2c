import fc from 'fast-check';
import { expect, test } from 'vitest';

import type { ClusterBlock } from '../cluster/cluster.js';
import { block, cluster, pool, view } from '../testing/routes.js';
import { Advertised } from './advertised.js';

const ALL = { blocks: 'all', others: true } as const;
const POOLS = [pool('p', '10.0.0.0/16')];

test('a node tells its blocks and what it borrows, and knows the blocks of others that lost their pool', () => {
  const blocks = [
    block('10.0.1.0/26', { pool: 'p', node: 'a', borrowed: { '10.0.1.5': 'b' } }),
    block('10.0.2.0/26', { pool: 'p', node: 'b', borrowed: { '10.0.2.5': 'a', '10.0.2.6': 'c' } }),
    block('10.0.3.0/26', { pool: 'p', borrowed: { '10.0.3.5': 'a' } }),
    block('10.9.1.0/26', { node: 'a' }),
    block('10.9.2.0/26', { node: 'b', pool: 'gone', borrowed: { '10.9.2.5': 'a' } }),
  ];
  const advertised = new Advertised();
  expect(advertised.update(view('a', { pools: POOLS, blocks }), ALL)).toBe(true);
  expect(advertised.own()).toEqual(['10.0.1.0/26', '10.0.2.5/32', '10.0.3.5/32', '10.9.1.0/26', '10.9.2.5/32']);
  expect(advertised.orphans()).toEqual(['10.9.2.0/26']);
  expect(advertised.update(view('a', { pools: POOLS, blocks }), ALL)).toBe(false);
});

test('a pool that is made again takes its blocks back', () => {
  const blocks = [block('10.0.2.0/26', { pool: 'p', node: 'b' })];
  const advertised = new Advertised();
  advertised.update(view('a', { blocks }), ALL);
  expect(advertised.orphans()).toEqual(['10.0.2.0/26']);
  expect(advertised.update(view('a', { blocks, pools: POOLS }), { blocks: new Set(), others: true })).toBe(true);
  expect(advertised.orphans()).toEqual([]);
});

test('change by change it is as from nothing, and says truly whether anything became another', () => {
  const someBlock = fc
    .record({ third: fc.nat(3), nodeName: fc.constantFrom('a', 'b', undefined), borrower: fc.constantFrom('a', 'b') })
    .chain(({ third, nodeName, borrower }) =>
      fc.constantFrom('p', undefined).map((poolName): ClusterBlock => {
        const { cidr, borrowed } = block(`10.0.${third}.0/26`, { borrowed: { [`10.0.${third}.5`]: borrower } });
        return { cidr, borrowed, nodeName, poolName };
      }),
    );
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.nat(3), fc.option(someBlock)), { maxLength: 30 }), (changes) => {
      const advertised = new Advertised();
      const blocks = new Map<string, ClusterBlock>();
      for (const [third, given] of changes) {
        const cidr = given ? `10.0.${(given.cidr.value >> 8n) & 0xffn}.0/26` : `10.0.${third}.0/26`;
        const before = [advertised.own(), advertised.orphans()];
        if (given) blocks.set(cidr, given);
        else blocks.delete(cidr);
        const seen = { self: 'a', cluster: { ...cluster({ pools: POOLS }), blocks } };
        const isOther = advertised.update(seen, { blocks: new Set([cidr]), others: false });
        const anew = new Advertised();
        anew.update(seen, ALL);
        const after = [advertised.own(), advertised.orphans()];
        expect(after).toEqual([anew.own(), anew.orphans()]);
        expect(isOther).toBe(JSON.stringify(before) !== JSON.stringify(after));
      }
    }),
    { seed: 20_261_121, numRuns: 300 },
  );
});

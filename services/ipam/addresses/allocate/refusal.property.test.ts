import { prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import type { Demand } from '../../blocks/demand.js';
import { beginSearch, collectBlock } from '../../blocks/search.js';
import { servingPools } from '../../pools/selection.js';
import { countUnused } from '../../records/block-stats.js';
import type { Block, BlockOwner } from '../../records/block.js';
import type { RecordValue } from '../../records/view.js';
import { block, config, host, NOW_MS, poolRecord, prefix } from '../../testing/records.js';
import { TestView } from '../../testing/test-view.js';
import { explainDemand, verdictOf, type BlockVerdict } from './refusal.js';

const CIDRS = ['10.0.0.0/30', '10.0.0.4/30', '10.0.0.8/30', '10.0.0.12/30', '10.0.0.16/30', '10.0.0.32/30'];
const RESERVED = [
  '10.0.0.0/32',
  '10.0.0.1/32',
  '10.0.0.2/31',
  '10.0.0.4/30',
  '10.0.0.7/32',
  '10.0.0.8/29',
  '10.0.0.0/24',
];
const OWNERS: readonly (BlockOwner | undefined)[] = [
  host('n1'),
  host('n2'),
  { kind: 'virtual', name: 'balancer' },
  undefined,
];

const USED = { handleId: 'h', owner: {}, releasedAtMs: undefined };
const LEASED = { handleId: 'podwire-lease.n2', owner: { node: 'n2' }, releasedAtMs: undefined };
const COOLING = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 1000 };

type Fill = 'free' | 'used' | 'cooling' | 'leased';

const INDEXES: Readonly<Record<Fill, number | null>> = { free: null, used: 0, cooling: 1, leased: 2 };

function blockOf(cidr: string, owner: BlockOwner | undefined, fills: readonly Fill[]): Block {
  return {
    ...block(cidr, 'unowned'),
    owner,
    attributes: [USED, COOLING, LEASED],
    allocations: fills.map((fill) => INDEXES[fill]),
    unallocated: fills.flatMap((fill, ordinal) => (fill === 'free' ? [ordinal] : [])),
  };
}

/** An entry without an address is left out, as in every stored block. */
function tidy(value: Block): Block {
  const isReferred = (index: number): boolean => value.allocations.includes(index);
  const kept = [0, 1, 2].filter(isReferred);
  return {
    ...value,
    attributes: kept.flatMap((index) => value.attributes.slice(index, index + 1)),
    allocations: value.allocations.map((index) => (index === null ? null : kept.indexOf(index))),
  };
}

const fill = fc.constantFrom<Fill>('free', 'used', 'used', 'cooling', 'leased');
const scenarios = fc.record({
  blocks: fc.uniqueArray(
    fc.record({
      cidr: fc.constantFrom(...CIDRS),
      owner: fc.constantFrom(...OWNERS),
      fills: fc.oneof(fc.tuple(fill, fill, fill, fill), fc.constant(['used', 'used', 'used', 'used'] as const)),
    }),
    { selector: ({ cidr }) => cidr },
  ),
  reserved: fc.subarray(RESERVED, { maxLength: 3 }),
  strictAffinity: fc.boolean(),
  use: fc.constantFrom<Demand['use']>('Workload', 'LoadBalancer'),
  maxBlocksCount: fc.nat(3),
});

function demandOf(use: Demand['use']): Demand {
  return {
    family: 4,
    owner: host('n1'),
    use,
    pools: ['p'],
    nodeLabels: {},
    namespaceLabels: {},
    maxBlocksCount: 0,
    seed: 's',
    nowMs: NOW_MS,
  };
}

/** Whether a possible block of the pool is unclaimed and has an available address: examines each. */
function isClaimable(blocks: readonly Block[], reserved: readonly Prefix[]): boolean {
  const isKept = (value: bigint) => reserved.some((each) => prefixContains(each, addressPrefix(value)));
  return Array.from({ length: 8 }, (_, index) => prefix('10.0.0.0/32').value + BigInt(4 * index)).some((start) => {
    const found = blocks.find(({ prefix: { value } }) => value === start);
    if (found && (found.owner !== undefined || found.unallocated.length < 4)) return false;
    return [0n, 1n, 2n, 3n].some((ordinal) => !isKept(start + ordinal));
  });
}

const addressPrefix = (value: bigint): Prefix => ({ ...prefix('10.0.0.0/32'), value });

test('property: the counted verdicts equal the verdicts of examining each block', () => {
  fc.assert(
    fc.property(scenarios, ({ blocks, reserved, strictAffinity, use, maxBlocksCount }) => {
      const records = blocks.flatMap(({ cidr, owner, fills }): RecordValue[] => {
        const value = tidy(blockOf(cidr, owner, fills));
        const affinity = owner && ({ owner, block: value.prefix, state: 'confirmed' } as const);
        return [{ kind: 'block', value }, ...(affinity ? [{ kind: 'affinity', value: affinity } as const] : [])];
      });
      const reservation = { name: 'r', uid: 'uid-r', createTimeMs: NOW_MS, prefixes: reserved.map(prefix) };
      const view = new TestView([
        config({ strictAffinity, cooldownSeconds: 30 }),
        poolRecord('p', '10.0.0.0/27', { blockSizeBits: 30, allowedUses: ['Workload', 'LoadBalancer'] }),
        { kind: 'reservation', value: reservation },
        ...records,
      ]);
      const demand = demandOf(use);
      const [story] = explainDemand(view, demand, { maxBlocksCount });
      if (!story) throw new Error('the pool is not explained');

      const search = beginSearch(view, demand, servingPools(view, demand));
      const all = [...view.blocksIn(prefix('10.0.0.0/27'))].map((each) => collectBlock(search, each));
      const more = new Map<BlockVerdict, number>();
      for (const each of all.slice(maxBlocksCount)) {
        const verdict = verdictOf(search, each);
        more.set(verdict, (more.get(verdict) ?? 0) + 1);
      }
      expect(story.blocks.map(({ verdict }) => verdict)).toEqual(
        all.slice(0, maxBlocksCount).map((each) => verdictOf(search, each)),
      );
      expect(new Map([...story.more].sort())).toEqual(new Map([...more].sort()));
      expect(story.noClaim === undefined).toBe(all.length === 8 || isClaimable(all, reservation.prefixes));
      expect(story.usage).toEqual({
        blocks: all.length,
        used: all.reduce((sum, { allocations, unallocated }) => sum + allocations.length - unallocated.length, 0),
        cooling: all.reduce((sum, each) => sum + countUnused(each).cooling, 0),
        leased: all.reduce((sum, each) => sum + countUnused(each).leased, 0),
        size: all.length * 4,
      });
    }),
    { seed: 20261121, numRuns: 500 },
  );
});

import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, prefixOf, type Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import type {
  Cluster,
  ClusterBlock,
  ClusterChange,
  ClusterNode,
  ClusterPool,
  Encapsulation,
} from '../cluster/cluster.js';
import { expectedHop, routedHop } from '../testing/routes-oracle.js';
import { block, cluster, facts, node, pool, prefix, reasons, routeTexts } from '../testing/routes.js';
import { NO_CHANGE, RoutePlanner } from './planner.js';
import type { NodeFacts, NodeRoute } from './wanted.js';

/** Every run takes the same walks; another seed takes different ones. */
const SEED = 20_261_121;

const NAMES = ['a', 'b', 'c', 'd'] as const;
/** Everything lies in the last 64 addresses of these, so that blocks, nodes and tunnels meet often. */
const BASE: Readonly<Record<Family, bigint>> = { 4: 0x0a000000n, 6: 0xfd000000000000000000000000000000n };
const BITS: Readonly<Record<Family, number>> = { 4: 32, 6: 128 };

const family = fc.constantFrom<Family>(4, 6);
const optional = <T>(of: fc.Arbitrary<T>) => fc.option(of, { nil: undefined, freq: 8 });
const addressOf = (of: Family) =>
  fc.nat(63).map((offset): Address => ({ family: of, value: BASE[of] + BigInt(offset) }));
const name = fc.constantFrom(...NAMES);

/** Mostly outside of the blocks, in one of three subnets; sometimes in them. */
const nodeAddressOf = (of: Family) =>
  fc
    .record({ subnet: fc.constantFrom(0n, 4n, 5n, 6n), host: fc.integer({ min: 1, max: 5 }) })
    .map(({ subnet, host }) => {
      const address: Address = { family: of, value: BASE[of] + subnet * 256n + BigInt(host) };
      return { address, subnet: prefixOf(address, BITS[of] - 8) };
    });

const clusterNode: fc.Arbitrary<ClusterNode> = fc.record({
  name,
  ipv4: optional(nodeAddressOf(4)),
  ipv6: optional(nodeAddressOf(6)),
  vxlanIpv4: optional(fc.record({ address: optional(addressOf(4)), mac: fc.constant(undefined) })),
  vxlanIpv6: optional(fc.record({ address: optional(addressOf(6)), mac: fc.constant(undefined) })),
  ipip: optional(addressOf(4)),
  asNumber: fc.constant(undefined),
});

const ENCAPSULATIONS: readonly Encapsulation[] = ['none', 'vxlan', 'vxlan-cross-subnet', 'ipip', 'ipip-cross-subnet'];

const clusterPool: fc.Arbitrary<ClusterPool> = fc.record({
  name: fc.constantFrom('p', 'q'),
  cidr: fc.constantFrom<Family>(4, 4, 6).map((of): Prefix => ({ family: of, value: BASE[of], length: BITS[of] - 6 })),
  encapsulation: fc.constantFrom(...ENCAPSULATIONS, 'vxlan', 'vxlan-cross-subnet'),
  natOutgoing: fc.boolean(),
  loadBalancerOnly: fc.constantFrom(false, false, false, true),
});

const clusterBlock: fc.Arbitrary<ClusterBlock> = fc
  .record({ of: family, offset: fc.oneof(fc.nat(63), fc.nat(7)), hostBits: fc.constantFrom(0, 3, 3, 3, 4) })
  .chain(({ of, offset, hostBits }) => {
    const cidr = prefixOf({ family: of, value: BASE[of] + BigInt(offset) }, BITS[of] - hostBits);
    const member = fc
      .nat(2 ** hostBits - 1)
      .map((place): Address => ({ family: of, value: cidr.value + BigInt(place) }));
    return fc.record({
      cidr: fc.constant(cidr),
      poolName: optional(fc.constantFrom('p', 'q', 'gone')),
      nodeName: optional(fc.constantFrom(...NAMES, 'gone')),
      borrowed: fc.uniqueArray(fc.record({ address: member, nodeName: fc.constantFrom(...NAMES, 'gone') }), {
        maxLength: 3,
        selector: ({ address }) => address.value,
      }),
    });
  });

const nodeFacts: fc.Arbitrary<NodeFacts> = fc.record({
  parents: fc.record({ 4: fc.constantFrom('eth0', 'eth1', undefined), 6: fc.constantFrom('eth0', undefined) }),
  mtuBytes: fc.constant(1500),
  hasVxlan: fc.constantFrom(true, true, false),
  hasIpip: fc.boolean(),
  routing: fc.constantFrom('native', 'native', 'bird'),
  routed: fc.constantFrom<readonly Prefix[]>([], [prefix('0.0.0.0/0')]),
  connected: fc.constantFrom<readonly Prefix[]>([], [], [{ family: 4, value: BASE[4] + 8n, length: 29 }]),
});

type Change =
  | { readonly put: 'node'; readonly value: ClusterNode }
  | { readonly put: 'pool'; readonly value: ClusterPool }
  | { readonly put: 'block'; readonly value: ClusterBlock }
  | { readonly put: 'facts'; readonly value: NodeFacts }
  | { readonly take: 'node' | 'pool' | 'block'; readonly place: number }
  /** A block with the tunnel address of a node: as a block of that address alone, or as an address borrowed from another node's block. */
  | { readonly put: 'tunnel'; readonly name: string; readonly hostBits: number }
  /** A complete change with new values, as after a lost watch. */
  | { readonly put: 'snapshot' };

const put = <T, P extends string>(what: P, value: fc.Arbitrary<T>) =>
  value.map((of) => ({ put: what, value: of }) as const);
const change: fc.Arbitrary<Change> = fc.oneof(
  { weight: 3, arbitrary: put('node', clusterNode) },
  { weight: 2, arbitrary: put('pool', clusterPool) },
  { weight: 8, arbitrary: put('block', clusterBlock) },
  put('facts', nodeFacts),
  {
    weight: 4,
    arbitrary: fc.record({ put: fc.constant('tunnel'), name, hostBits: fc.constantFrom(0, 3) }),
  },
  fc.constant({ put: 'snapshot' } as const),
  {
    weight: 3,
    arbitrary: fc.record({ take: fc.constantFrom('node', 'pool', 'block'), place: fc.nat(100) }),
  },
);

interface Applied {
  readonly next: Cluster;
  readonly changed: ClusterChange;
}

/** A node whose incremental plan is compared with a full plan after each step. */
class Walk {
  readonly planner = new RoutePlanner();
  readonly mirrored = new Map<string, NodeRoute>();
  cluster: Cluster = cluster({});
  facts: NodeFacts = facts();
  lastSelf: ClusterNode | undefined;

  step(of: Change): void {
    const { next, changed } = this.#apply(of);
    this.cluster = next;
    const view = { self: 'a', isDatastoreLocked: false, cluster: next };
    this.lastSelf = next.nodes.get('a') ?? this.lastSelf;
    const { wanted, changedRoutes } = this.planner.update(view, changed, this.facts);
    for (const destination of changedRoutes) {
      const route = wanted.routes.get(destination);
      expect(route, destination).not.toEqual(this.mirrored.get(destination));
      if (route) this.mirrored.set(destination, route);
      else this.mirrored.delete(destination);
    }
    expect(this.mirrored).toEqual(wanted.routes);

    const fullPlanner = new RoutePlanner();
    const nodes = new Map(this.lastSelf && [['a', this.lastSelf]]);
    fullPlanner.update(
      { self: 'a', isDatastoreLocked: false, cluster: { nodes, pools: new Map(), blocks: new Map() } },
      ALL,
      this.facts,
    );
    expect(wanted).toEqual(fullPlanner.update(view, ALL, this.facts).wanted);
  }

  /** Every address of the two ranges, one by one. */
  expectFates(): void {
    const world = { selfName: 'a', self: this.lastSelf, cluster: this.cluster, facts: this.facts };
    const routes = [...this.mirrored].map(([cidr, route]): [string, NodeRoute, Prefix] => [cidr, route, prefix(cidr)]);
    for (const of of [4, 6] as const) {
      for (let offset = 0n; offset < 64n; offset++) {
        const target: Address = { family: of, value: BASE[of] + offset };
        const host = `${formatAddress(target)}/${BITS[of]}`;
        const expected = expectedHop(target, world);
        if (expected === 'local') expect(this.mirrored.has(host), host).toBe(false);
        else expect(routedHop(target, routes), host).toBe(expected);
      }
    }
  }

  #withTunnel(next: Cluster, { name: of, hostBits }: { name: string; hostBits: number }): Applied {
    const address = next.nodes.get(of)?.vxlanIpv4?.address;
    if (!address) return { next, changed: NO_CHANGE };
    const cidr = prefixOf(address, 32 - hostBits);
    const lent = { cidr, poolName: 'p', nodeName: 'd', borrowed: [{ address, nodeName: of }] };
    const value = hostBits === 0 ? { cidr, poolName: 'p', nodeName: of, borrowed: [] } : lent;
    const blocks = new Map(next.blocks).set(formatPrefix(cidr), value);
    return { next: { ...next, blocks }, changed: { blocks: new Set([formatPrefix(cidr)]), hasOtherChanges: false } };
  }

  #apply(of: Change): Applied {
    const nodes = new Map(this.cluster.nodes);
    const pools = new Map(this.cluster.pools);
    const blocks = new Map(this.cluster.blocks);
    const next = { nodes, pools, blocks };
    if ('take' in of) {
      const from = { node: nodes, pool: pools, block: blocks }[of.take];
      const key = [...from.keys()][of.place % Math.max(1, from.size)] ?? '';
      from.delete(key);
      return { next, changed: of.take === 'block' ? { blocks: new Set([key]), hasOtherChanges: false } : FLAGS };
    }
    switch (of.put) {
      case 'node':
        nodes.set(of.value.name, of.value);
        return { next, changed: FLAGS };
      case 'pool':
        pools.set(of.value.name, of.value);
        return { next, changed: FLAGS };
      case 'block':
        blocks.set(formatPrefix(of.value.cidr), of.value);
        return { next, changed: { blocks: new Set([formatPrefix(of.value.cidr)]), hasOtherChanges: false } };
      case 'tunnel':
        return this.#withTunnel(next, of);
      case 'facts':
        this.facts = of.value;
        return { next, changed: NO_CHANGE };
      case 'snapshot':
        return { next: structuredClone(next), changed: ALL };
    }
  }
}

const ALL: ClusterChange = { blocks: 'all', hasOtherChanges: true };
const FLAGS: ClusterChange = { blocks: new Set(), hasOtherChanges: true };

/** The start of each walk: all nodes and pools, and some blocks. */
const beginning = fc
  .tuple(
    fc.tuple(
      ...NAMES.map((of) => clusterNode.map((value) => ({ put: 'node', value: { ...value, name: of } }) as const)),
    ),
    fc.array(put('pool', clusterPool), { minLength: 3, maxLength: 3 }),
    fc.array(put('block', clusterBlock), { minLength: 4, maxLength: 8 }),
  )
  .map((parts): Change[] => parts.flat());

test('after any changes the plan equals a full one, and every address follows the oracle', () => {
  const fates = new Set<string>();
  fc.assert(
    fc.property(beginning, fc.array(change, { minLength: 8, maxLength: 40, size: 'max' }), (first, then) => {
      const walk = new Walk();
      const changes = [...first, ...then];
      changes.forEach((of, place) => {
        walk.step(of);
        for (const route of walk.mirrored.values())
          fates.add(`${route.type} ${route.device} ${route.gateway === undefined}`);
        if (place % 7 === 0 || place === changes.length - 1) walk.expectFates();
      });
      for (const route of walk.mirrored.values())
        fates.add(`${route.type} ${route.device} ${route.gateway === undefined}`);
    }),
    { seed: SEED, numRuns: 100 },
  );
  // The walks have produced every kind of route.
  expect(fates).toContain('blackhole undefined true');
  for (const device of ['eth0', 'ipip.podwire', 'vxlan4.podwire', 'vxlan6.podwire']) {
    expect(fates).toContain(`unicast ${device} false`);
  }
  expect(fates).toContain('unicast vxlan4.podwire true');
}, 120_000);

describe('a large cluster', () => {
  const large = (): { readonly cluster: Cluster; readonly reads: () => number } => {
    let reads = 0;
    const of = Array.from({ length: 2000 }, (_, place): ClusterBlock => {
      const cidr: Prefix = { family: 4, value: 0x0a000000n + BigInt(place * 64), length: 26 };
      return {
        cidr,
        poolName: 'p',
        borrowed: [],
        get nodeName() {
          reads += 1;
          return `n${place % 1000}`;
        },
      };
    });
    const nodes = Array.from({ length: 1000 }, (_, place) =>
      node(`n${place}`, { ipv4: `192.168.${Math.floor(place / 250)}.${(place % 250) + 1}/16` }),
    );
    return { cluster: cluster({ nodes, pools: [pool('p', '10.0.0.0/8')], blocks: of }), reads: () => reads };
  };

  test('one block that changes is planned alone, and a changed node replans its blocks', () => {
    const { cluster: before, reads } = large();
    const planner = new RoutePlanner();
    const first = planner.update({ self: 'n0', isDatastoreLocked: false, cluster: before }, ALL, facts());
    expect(first.changedRoutes.size).toBe(2000);
    const planned = reads();
    expect(planned).toBeGreaterThanOrEqual(2000);

    const blocks = new Map(before.blocks).set('10.0.1.64/26', block('10.0.1.64/26', { pool: 'p', node: 'n7' }));
    const one = { self: 'n0', isDatastoreLocked: false, cluster: { ...before, blocks } };
    const second = planner.update(one, { blocks: new Set(['10.0.1.64/26']), hasOtherChanges: false }, facts());
    expect([...second.changedRoutes]).toEqual(['10.0.1.64/26']);
    expect(reads() - planned).toBeLessThan(10);

    const nodes = new Map(before.nodes).set('n9', node('n9', { ipv4: '192.168.77.7/16' }));
    const third = planner.update(
      { self: 'n0', isDatastoreLocked: false, cluster: { ...before, blocks, nodes } },
      FLAGS,
      facts(),
    );
    expect([...third.changedRoutes].sort()).toEqual(['10.0.2.64/26', '10.0.252.64/26']);
    expect(reads() - planned).toBeLessThan(30);
  });
});

describe('this node’s own registration', () => {
  const nodes = [node('a', { ipv4: '192.0.2.1/24' }), node('b', { ipv4: '192.0.2.2/24' })];
  const rest = { pools: [pool('p', '10.0.0.0/16')], blocks: [block('10.0.9.0/26', { pool: 'p', node: 'b' })] };

  test('that is deleted removes no route: the last one stays in use', () => {
    const planner = new RoutePlanner();
    planner.update({ self: 'a', isDatastoreLocked: false, cluster: cluster({ ...rest, nodes }) }, ALL, facts());
    const after = planner.update(
      { self: 'a', isDatastoreLocked: false, cluster: cluster({ ...rest, nodes: nodes.slice(1) }) },
      FLAGS,
      facts(),
    );
    expect([...after.changedRoutes]).toEqual([]);
    expect(routeTexts(after.wanted)).toEqual(['10.0.9.0/26 via 192.0.2.2 dev eth0 onlink']);
    expect(reasons(after.wanted)).toEqual(['NodeNotRegistered']);
  });

  test('that never existed leaves everything unchanged until it exists', () => {
    const planner = new RoutePlanner();
    const before = planner.update(
      { self: 'a', isDatastoreLocked: false, cluster: cluster({ ...rest, nodes: nodes.slice(1) }) },
      ALL,
      facts(),
    );
    expect(routeTexts(before.wanted)).toEqual([]);
    const after = planner.update(
      { self: 'a', isDatastoreLocked: false, cluster: cluster({ ...rest, nodes }) },
      FLAGS,
      facts(),
    );
    expect([...after.changedRoutes]).toEqual(['10.0.9.0/26']);
  });
});

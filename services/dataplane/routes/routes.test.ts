import { describe, expect, test } from 'vitest';

import type { ClusterPool, Encapsulation } from '../cluster/cluster.js';
import {
  block,
  facts,
  node,
  planNode,
  pool,
  prefix,
  reasons,
  routeTexts,
  view,
  type ClusterText,
} from '../testing/routes.js';
import type { NodeFacts } from './wanted.js';

/** `a` is this node; `near` is in its subnet, `far` is not. */
const NODES = [
  node('a', { ipv4: '192.0.2.1/24', ipv6: '2001:db8::1/64', vxlan4: '10.0.0.1', vxlan6: 'fd00::1', ipip: '10.0.0.2' }),
  node('near', {
    ipv4: '192.0.2.9/24',
    ipv6: '2001:db8::9/64',
    vxlan4: '10.0.9.1',
    vxlan6: 'fd00:9::1',
    ipip: '10.0.9.2',
  }),
  node('far', { ipv4: '198.51.100.7/24', ipv6: '2001:db8:7::7/64', vxlan4: '10.0.7.1', vxlan6: 'fd00:7::1' }),
];

interface Case extends ClusterText {
  readonly encapsulation?: Encapsulation;
  readonly pool?: Partial<ClusterPool>;
  readonly facts?: Partial<NodeFacts>;
  readonly routes: readonly string[];
  readonly conditions?: readonly string[];
}

function expectPlan({ encapsulation = 'none', routes, conditions = [], ...given }: Case): void {
  const pools = given.pools ?? [
    pool('p', '10.0.0.0/16', { encapsulation, ...given.pool }),
    pool('p6', 'fd00::/16', { encapsulation, ...given.pool }),
  ];
  const wanted = planNode(view('a', { nodes: NODES, ...given, pools }), facts(given.facts));
  expect(routeTexts(wanted)).toEqual([...routes].sort());
  expect(reasons(wanted)).toEqual([...conditions].sort());
}

const OF_NEAR = block('10.0.9.0/26', { pool: 'p', node: 'near' });
const OF_FAR = block('10.0.7.0/26', { pool: 'p', node: 'far' });
const BOTH = [OF_NEAR, OF_FAR];
const BOTH_V6 = [
  block('fd00:9::/122', { pool: 'p6', node: 'near' }),
  block('fd00:7::/122', { pool: 'p6', node: 'far' }),
];
const ROUTER = { family: 4, value: 0n, length: 0 } as const;
const ROUTER_V6 = { family: 6, value: 0n, length: 0 } as const;

describe('a remote block', () => {
  test.each<[string, Case]>([
    [
      'without encapsulation, in the same subnet: via the node; in another: a condition',
      { blocks: BOTH, routes: ['10.0.9.0/26 via 192.0.2.9 dev eth0 onlink'], conditions: ['NotOnLink'] },
    ],
    [
      'without encapsulation, in another subnet that a router leads to: the router’s',
      { blocks: BOTH, facts: { routed: [ROUTER] }, routes: ['10.0.9.0/26 via 192.0.2.9 dev eth0 onlink'] },
    ],
    [
      'without encapsulation, IPv6; the default route of IPv4 does not count',
      {
        blocks: BOTH_V6,
        facts: { routed: [ROUTER] },
        routes: ['fd00:9::/122 via 2001:db8::9 dev eth0 onlink'],
        conditions: ['NotOnLink'],
      },
    ],
    [
      'without encapsulation, IPv6, with a router',
      { blocks: BOTH_V6, facts: { routed: [ROUTER_V6] }, routes: ['fd00:9::/122 via 2001:db8::9 dev eth0 onlink'] },
    ],
    [
      'VXLAN Always: via the tunnel address, also in the same subnet',
      {
        encapsulation: 'vxlan',
        blocks: BOTH,
        routes: [
          '10.0.9.0/26 via 10.0.9.1 dev vxlan4.podwire onlink',
          '10.0.7.0/26 via 10.0.7.1 dev vxlan4.podwire onlink',
        ],
      },
    ],
    [
      'VXLAN CrossSubnet: on the parent in the same subnet, and not on the tunnel',
      {
        encapsulation: 'vxlan-cross-subnet',
        blocks: BOTH,
        routes: ['10.0.9.0/26 via 192.0.2.9 dev eth0 onlink', '10.0.7.0/26 via 10.0.7.1 dev vxlan4.podwire onlink'],
      },
    ],
    [
      'VXLAN CrossSubnet, IPv6',
      {
        encapsulation: 'vxlan-cross-subnet',
        blocks: BOTH_V6,
        routes: [
          'fd00:9::/122 via 2001:db8::9 dev eth0 onlink',
          'fd00:7::/122 via fd00:7::1 dev vxlan6.podwire onlink',
        ],
      },
    ],
    [
      'VXLAN CrossSubnet, parent unknown: the tunnel for both',
      {
        encapsulation: 'vxlan-cross-subnet',
        blocks: [...BOTH, ...BOTH_V6],
        facts: { parents: { 4: undefined, 6: undefined } },
        routes: [
          '10.0.9.0/26 via 10.0.9.1 dev vxlan4.podwire onlink',
          '10.0.7.0/26 via 10.0.7.1 dev vxlan4.podwire onlink',
          'fd00:9::/122 via fd00:9::1 dev vxlan6.podwire onlink',
          'fd00:7::/122 via fd00:7::1 dev vxlan6.podwire onlink',
        ],
        conditions: ['ParentUnknown', 'ParentUnknown'],
      },
    ],
    [
      'without encapsulation, parent unknown: none',
      {
        blocks: [OF_NEAR],
        pools: [pool('p', '10.0.0.0/16')],
        facts: { parents: { 4: undefined, 6: 'eth0' } },
        routes: [],
        conditions: ['ParentUnknown'],
      },
    ],
    [
      'another parent: routes move',
      {
        encapsulation: 'vxlan-cross-subnet',
        blocks: [OF_NEAR],
        facts: { parents: { 4: 'eth1', 6: 'eth1' } },
        routes: ['10.0.9.0/26 via 192.0.2.9 dev eth1 onlink'],
      },
    ],
    [
      'IPIP Always: via the node’s address by the IPIP device',
      {
        pools: [pool('p', '10.0.0.0/16', { encapsulation: 'ipip' })],
        blocks: BOTH,
        routes: [
          '10.0.9.0/26 via 192.0.2.9 dev ipip.podwire onlink',
          '10.0.7.0/26 via 198.51.100.7 dev ipip.podwire onlink',
        ],
      },
    ],
    [
      'IPIP CrossSubnet',
      {
        pools: [pool('p', '10.0.0.0/16', { encapsulation: 'ipip-cross-subnet' })],
        blocks: BOTH,
        routes: ['10.0.9.0/26 via 192.0.2.9 dev eth0 onlink', '10.0.7.0/26 via 198.51.100.7 dev ipip.podwire onlink'],
      },
    ],
    [
      'IPIP that the kernel lacks: routes without a tunnel, and a condition',
      {
        pools: [pool('p', '10.0.0.0/16', { encapsulation: 'ipip-cross-subnet' })],
        blocks: BOTH,
        facts: { hasIpip: false },
        routes: ['10.0.9.0/26 via 192.0.2.9 dev eth0 onlink'],
        conditions: ['IpipUnsupported'],
      },
    ],
    [
      'IPIP for IPv6: a condition',
      {
        pools: [pool('p6', 'fd00::/16', { encapsulation: 'ipip' })],
        blocks: [BOTH_V6[1]!],
        routes: [],
        conditions: ['IpipIpv6'],
      },
    ],
    [
      'VXLAN that the kernel lacks',
      {
        pools: [pool('p', '10.0.0.0/16', { encapsulation: 'vxlan' })],
        blocks: BOTH,
        facts: { hasVxlan: false },
        routes: [],
        conditions: ['VxlanUnsupported'],
      },
    ],
    [
      'BIRD’s mode: nothing without encapsulation, tunnels as usual',
      {
        pools: [pool('p', '10.0.0.0/20'), pool('q', '10.0.16.0/20', { encapsulation: 'vxlan-cross-subnet' })],
        facts: { routing: 'bird' },
        blocks: [
          ...BOTH,
          block('10.0.16.0/26', { pool: 'q', node: 'near' }),
          block('10.0.0.0/26', { pool: 'p', node: 'a' }),
        ],
        routes: ['10.0.16.0/26 via 192.0.2.9 dev eth0 onlink', 'blackhole 10.0.0.0/26'],
      },
    ],
    [
      'of a pool for load balancers alone: its encapsulation is ignored',
      {
        encapsulation: 'vxlan',
        pool: { loadBalancerOnly: true },
        blocks: [OF_NEAR],
        routes: ['10.0.9.0/26 via 192.0.2.9 dev eth0 onlink'],
      },
    ],
    [
      'whose pool was deleted: as without encapsulation, and a condition',
      {
        pools: [],
        blocks: [block('10.0.9.0/26', { pool: 'p', node: 'near' }), block('10.3.0.0/26', { node: 'near' })],
        routes: ['10.0.9.0/26 via 192.0.2.9 dev eth0 onlink', '10.3.0.0/26 via 192.0.2.9 dev eth0 onlink'],
        conditions: ['PoolMissing', 'PoolMissing'],
      },
    ],
    [
      'whose pool was deleted and that has no owner: a condition while an address of it is in use',
      {
        pools: [],
        blocks: [block('10.0.9.0/26', { pool: 'p', borrowed: { '10.0.9.5': 'near' } })],
        routes: ['10.0.9.5 via 192.0.2.9 dev eth0 onlink'],
        conditions: ['PoolMissing'],
      },
    ],
    [
      'without an owner and without used addresses: nothing',
      { blocks: [block('10.0.5.0/26', { pool: 'p' }), block('10.5.0.0/26', {})], routes: [] },
    ],
    [
      'of a node that is not registered',
      { blocks: [block('10.0.5.0/26', { pool: 'p', node: 'gone' })], routes: [], conditions: ['NodeUnknown'] },
    ],
    [
      'of a node without an address of the family',
      {
        nodes: [NODES[0]!, node('near', { ipv6: '2001:db8::9/64' })],
        blocks: [OF_NEAR],
        routes: [],
        conditions: ['NodeAddressMissing'],
      },
    ],
    [
      'of a node without a tunnel address: routes that need none, and a condition',
      {
        encapsulation: 'vxlan-cross-subnet',
        nodes: [NODES[0]!, node('near', { ipv4: '192.0.2.9/24' }), node('far', { ipv4: '198.51.100.7/24' })],
        blocks: BOTH,
        routes: ['10.0.9.0/26 via 192.0.2.9 dev eth0 onlink'],
        conditions: ['TunnelAddressMissing'],
      },
    ],
    [
      'of a node registered with this node’s address',
      {
        nodes: [NODES[0]!, node('near', { ipv4: '192.0.2.1/24' })],
        blocks: [OF_NEAR],
        routes: [],
        conditions: ['NodeAddressConflict'],
      },
    ],
    [
      'that holds its node’s own address: not into the tunnel that goes there',
      {
        pools: [pool('p', '198.51.0.0/16', { encapsulation: 'vxlan' })],
        blocks: [block('198.51.100.0/26', { pool: 'p', node: 'far' })],
        routes: [],
        conditions: ['NodeAddressInBlock'],
      },
    ],
  ])('%s', (_, given) => expectPlan(given));
});

describe('blocks of this node', () => {
  test('in a network of the node are no blackholes, which would cut it off from hosts', () => {
    const hosts = [pool('hosts', '198.51.0.0/16'), pool('hosts6', '2001:db8::/48')];
    const services = pool('services', '198.51.100.128/25', { loadBalancerOnly: true });
    const blocks = [
      block('198.51.100.64/26', { pool: 'hosts', node: 'a' }),
      block('198.51.200.0/26', { pool: 'hosts', node: 'a' }),
      block('2001:db8:0:1::/122', { pool: 'hosts6', node: 'a' }),
    ];
    const seen = view('a', { nodes: [node('a', { ipv4: '198.51.100.7/24' })], pools: [...hosts, services], blocks });
    const connected = [prefix('198.51.100.0/24'), prefix('2001:db8:0:1::/64')];
    const plan = planNode(seen, facts({ connected }));
    expect(routeTexts(plan)).toEqual(['blackhole 198.51.200.0/26']);
  });

  test.each<[string, Case]>([
    [
      'are blackholes, with encapsulation and without',
      {
        encapsulation: 'vxlan',
        blocks: [block('10.0.0.0/26', { pool: 'p', node: 'a' }), block('fd00::/122', { pool: 'p6', node: 'a' })],
        routes: ['blackhole 10.0.0.0/26', 'blackhole fd00::/122'],
      },
    ],
    [
      'are none when they hold one address',
      {
        blocks: [block('10.0.0.7/32', { pool: 'p', node: 'a' }), block('fd00::7/128', { pool: 'p6', node: 'a' })],
        routes: [],
      },
    ],
    [
      'stay so when the pool is deleted, or the node’s registration',
      {
        pools: [],
        nodes: [],
        blocks: [block('10.0.0.0/26', { pool: 'p', node: 'a' })],
        routes: ['blackhole 10.0.0.0/26'],
        conditions: ['NodeNotRegistered', 'PoolMissing'],
      },
    ],
  ])('%s', (_, given) => expectPlan(given));
});

describe('a borrowed address', () => {
  test.each<[string, Case]>([
    [
      'of a third node’s block has a route to who uses it; one that this node uses has none',
      {
        blocks: [block('10.0.9.0/26', { pool: 'p', node: 'near', borrowed: { '10.0.9.5': 'a', '10.0.9.6': 'far' } })],
        encapsulation: 'vxlan',
        routes: [
          '10.0.9.0/26 via 10.0.9.1 dev vxlan4.podwire onlink',
          '10.0.9.6 via 10.0.7.1 dev vxlan4.podwire onlink',
        ],
      },
    ],
    [
      'of this node’s own block, IPv4 and IPv6',
      {
        blocks: [
          block('10.0.0.0/26', { pool: 'p', node: 'a', borrowed: { '10.0.0.5': 'near' } }),
          block('fd00::/122', { pool: 'p6', node: 'a', borrowed: { 'fd00::5': 'near' } }),
        ],
        routes: [
          'blackhole 10.0.0.0/26',
          '10.0.0.5 via 192.0.2.9 dev eth0 onlink',
          'blackhole fd00::/122',
          'fd00::5 via 2001:db8::9 dev eth0 onlink',
        ],
      },
    ],
    [
      'of a block without an owner',
      {
        blocks: [block('10.0.5.0/26', { pool: 'p', borrowed: { '10.0.5.5': 'near', '10.0.5.6': 'a' } })],
        routes: ['10.0.5.5 via 192.0.2.9 dev eth0 onlink'],
      },
    ],
    [
      'that is the far end’s tunnel address is on the tunnel device, also in the same subnet',
      {
        encapsulation: 'vxlan-cross-subnet',
        blocks: [
          block('10.0.0.0/26', { pool: 'p', node: 'a', borrowed: { '10.0.9.1': 'near' } }),
          block('fd00::/122', { pool: 'p6', node: 'a', borrowed: { 'fd00:7::1': 'far' } }),
        ],
        routes: [
          'blackhole 10.0.0.0/26',
          '10.0.9.1 dev vxlan4.podwire',
          'blackhole fd00::/122',
          'fd00:7::1 dev vxlan6.podwire',
        ],
      },
    ],
    [
      'that is the far end’s tunnel address, where the kernel has no VXLAN, goes as ever',
      {
        pools: [pool('p', '10.0.0.0/16', { encapsulation: 'vxlan-cross-subnet' })],
        facts: { hasVxlan: false },
        blocks: [block('10.0.9.0/26', { pool: 'p', borrowed: { '10.0.9.1': 'near' } })],
        routes: ['10.0.9.1 via 192.0.2.9 dev eth0 onlink'],
        conditions: ['VxlanUnsupported'],
      },
    ],
    [
      'that is this node’s own tunnel address has no route',
      {
        encapsulation: 'vxlan',
        blocks: [block('10.0.9.0/26', { pool: 'p', node: 'near', borrowed: { '10.0.0.1': 'a' } })],
        routes: ['10.0.9.0/26 via 10.0.9.1 dev vxlan4.podwire onlink'],
      },
    ],
    [
      'that is its node’s own address is the network’s',
      {
        pools: [pool('p', '192.0.2.0/24', { encapsulation: 'vxlan' })],
        blocks: [block('192.0.2.0/28', { pool: 'p', borrowed: { '192.0.2.9': 'near' } })],
        routes: [],
      },
    ],
  ])('%s', (_, given) => expectPlan(given));
});

describe('tunnel addresses in blocks', () => {
  test.each<[string, Case]>([
    [
      'that merely lie there have no route of their own',
      {
        encapsulation: 'vxlan',
        blocks: [block('10.0.9.0/26', { pool: 'p', node: 'near' })],
        routes: ['10.0.9.0/26 via 10.0.9.1 dev vxlan4.podwire onlink'],
      },
    ],
    [
      'of one address are on the tunnel device',
      {
        encapsulation: 'vxlan',
        blocks: [
          block('10.0.9.1/32', { pool: 'p', node: 'near' }),
          block('fd00:9::1/128', { pool: 'p6', node: 'near' }),
        ],
        routes: ['10.0.9.1 dev vxlan4.podwire', 'fd00:9::1 dev vxlan6.podwire'],
      },
    ],
    [
      'blocks of one address that is not the tunnel’s are routed as ever',
      {
        encapsulation: 'vxlan',
        blocks: [block('10.0.9.3/32', { pool: 'p', node: 'near' })],
        routes: ['10.0.9.3 via 10.0.9.1 dev vxlan4.podwire onlink'],
      },
    ],
  ])('%s', (_, given) => expectPlan(given));
});

describe('two blocks that claim one destination', () => {
  test.each<[string, Case]>([
    [
      'this node’s own address wins over anything',
      {
        blocks: [
          block('10.0.9.5/32', { pool: 'p', node: 'near' }),
          block('10.0.0.0/16', { pool: 'p', borrowed: { '10.0.9.5': 'a' } }),
        ],
        routes: [],
      },
    ],
    [
      'the block that comes first wins among equals',
      {
        encapsulation: 'vxlan',
        blocks: [
          block('10.0.9.5/32', { pool: 'p', node: 'near' }),
          block('10.0.0.0/16', { pool: 'p', borrowed: { '10.0.9.5': 'far' } }),
        ],
        routes: ['10.0.9.5 via 10.0.7.1 dev vxlan4.podwire onlink'],
      },
    ],
  ])('%s', (_, given) => expectPlan(given));
});

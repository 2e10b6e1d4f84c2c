import { addressAt, formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import type { ClusterNode, ClusterPool, ClusterView } from '../cluster/cluster.js';
import { planMasquerade, type MasqueradeSettings } from './masquerade.js';

function prefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text} ${parsed.fault}`);
  return parsed.prefix;
}

const SETTINGS: MasqueradeSettings = { exclude: 'pools', interfaces: [], ports: undefined };

type Pool = readonly [cidr: string, rest?: Partial<ClusterPool>];

function view(pools: readonly Pool[], nodes: readonly ClusterNode[] = []): ClusterView {
  const clusterPools = pools.map(([cidr, rest], position): ClusterPool => {
    const name = `pool-${position}`;
    return { name, cidr: prefix(cidr), encapsulation: 'none', natOutgoing: false, loadBalancerOnly: false, ...rest };
  });
  return {
    self: 'node-a',
    isDatastoreLocked: false,
    cluster: {
      nodes: new Map(nodes.map((node) => [node.name, node])),
      pools: new Map(clusterPools.map((pool) => [pool.name, pool])),
      blocks: new Map(),
    },
  };
}

function node(name: string, ipv4: string, ipv6: string): ClusterNode {
  const end = (subnet: string) => ({ address: addressAt(prefix(subnet), 5), subnet: prefix(subnet) });
  const rest = { vxlanIpv4: undefined, vxlanIpv6: undefined, ipip: undefined, asNumber: undefined };
  return { name, ipv4: end(ipv4), ipv6: end(ipv6), ...rest };
}

/** A plan as text: `sources → all but exempt`. */
function planned(clusterView: ClusterView, settings: MasqueradeSettings = SETTINGS): readonly (string | undefined)[] {
  const plans = planMasquerade(clusterView, settings);
  const list = (prefixes: readonly Prefix[]) => prefixes.map(formatPrefix).join(' ');
  return ([4, 6] as const).map((family) => {
    const plan = plans[family];
    return plan && `${list(plan.sources)} → all but ${list(plan.exempt)}`;
  });
}

const NAT = { natOutgoing: true };

describe('masqueraded packets', () => {
  test.each<readonly [string, readonly Pool[], readonly (string | undefined)[]]>([
    ['no pool', [], [undefined, undefined]],
    ['a pool without NAT', [['10.0.0.0/16']], [undefined, undefined]],
    ['a pool with NAT', [['10.0.0.0/16', NAT]], ['10.0.0.0/16 → all but 10.0.0.0/16', undefined]],
    ['both', [['10.1.0.0/16'], ['10.0.0.0/16', NAT]], ['10.0.0.0/16 → all but 10.0.0.0/16 10.1.0.0/16', undefined]],
    [
      'both families, each by itself',
      [['10.0.0.0/16'], ['fd00::/48', NAT], ['fd01::/48']],
      [undefined, 'fd00::/48 → all but fd00::/48 fd01::/48'],
    ],
    [
      'a pool for load balancers alone: its addresses are the cluster’s',
      [
        ['10.0.0.0/16', NAT],
        ['192.0.2.0/24', { loadBalancerOnly: true }],
      ],
      ['10.0.0.0/16 → all but 10.0.0.0/16 192.0.2.0/24', undefined],
    ],
    [
      'pools within pools, as they can be for a moment',
      [['10.0.0.0/8'], ['10.7.0.0/16', NAT]],
      ['10.7.0.0/16 → all but 10.0.0.0/8', undefined],
    ],
  ])('%s', (_, pools, expected) => {
    expect(planned(view(pools))).toEqual(expected);
  });

  test('addresses of nodes are exempt when configured, if a pool has natOutgoing', () => {
    const nodes = [node('a', '192.0.2.0/24', '2001:db8::/64'), node('b', '10.0.3.0/24', 'fd09::/64')];
    const both: readonly Pool[] = [
      ['10.0.0.0/16', NAT],
      ['fd00::/48', NAT],
    ];
    const settings = { ...SETTINGS, exclude: 'pools-and-nodes' } as const;
    expect(planned(view(both, nodes), settings)).toEqual([
      '10.0.0.0/16 → all but 10.0.0.0/16 192.0.2.5/32',
      'fd00::/48 → all but 2001:db8::5/128 fd00::/48 fd09::5/128',
    ]);
    expect(planned(view(both, nodes))).toEqual(['10.0.0.0/16 → all but 10.0.0.0/16', 'fd00::/48 → all but fd00::/48']);
    expect(planned(view([['10.0.0.0/16']], nodes), settings)).toEqual([undefined, undefined]);
  });

  test('interfaces and ports are part of the plan', () => {
    const settings = { ...SETTINGS, interfaces: ['eth*'], ports: { first: 1024, last: 2047 } };
    expect(planMasquerade(view([['10.0.0.0/16', NAT]]), settings)[4]).toMatchObject({
      interfaces: ['eth*'],
      ports: { first: 1024, last: 2047 },
    });
  });
});

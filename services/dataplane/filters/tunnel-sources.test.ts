import { formatAddress } from '@podwire/shared/net/address';
import { describe, expect, test } from 'vitest';

import type { ClusterNode, ClusterPool, ClusterView, Encapsulation } from '../cluster/cluster.js';
import { address } from '../testing/pods.js';
import { planTunnelSources } from './tunnel-sources.js';

function node(name: string, ipv4: string, ipv6?: string): [string, ClusterNode] {
  const of = (text: string) => ({ address: address(text), subnet: { ...address(text), length: 24 } });
  const none = { vxlanIpv4: undefined, vxlanIpv6: undefined, ipip: undefined, asNumber: undefined };
  return [name, { name, ipv4: of(ipv4), ipv6: ipv6 === undefined ? undefined : of(ipv6), ...none }];
}

function pool(cidr: string, encapsulation: Encapsulation, loadBalancerOnly = false): [string, ClusterPool] {
  const range = { ...address(cidr), length: cidr.includes(':') ? 48 : 16 };
  return [cidr, { name: cidr, cidr: range, encapsulation, natOutgoing: false, loadBalancerOnly }];
}

const NODES = [node('b', '192.0.2.2', '2001:db8::2'), node('a', '192.0.2.1', '2001:db8::1'), node('c', '192.0.2.3')];

function planned(...pools: readonly [string, ClusterPool][]): readonly string[] {
  const view: ClusterView = {
    self: 'a',
    isDatastoreLocked: false,
    cluster: { nodes: new Map(NODES), pools: new Map(pools), blocks: new Map() },
  };
  return planTunnelSources(view).map(
    ({ family, encapsulations, nodes }) =>
      `IPv${family} ${encapsulations.join(' ')} from ${nodes.map(formatAddress).join(' ')}`,
  );
}

describe('tunnel packets', () => {
  test('are accepted from the other nodes that have an address of the family', () => {
    expect(planned(pool('10.65.0.0', 'vxlan'), pool('fd65::', 'vxlan-cross-subnet'))).toEqual([
      'IPv4 vxlan from 192.0.2.2 192.0.2.3',
      'IPv6 vxlan from 2001:db8::2',
    ]);
  });

  test('are filtered by the encapsulations that pools of the family use', () => {
    expect(planned(pool('10.65.0.0', 'ipip'), pool('10.66.0.0', 'vxlan'))).toEqual([
      'IPv4 vxlan ipip from 192.0.2.2 192.0.2.3',
    ]);
    expect(planned(pool('10.65.0.0', 'ipip-cross-subnet'), pool('fd65::', 'ipip'))).toEqual([
      'IPv4 ipip from 192.0.2.2 192.0.2.3',
    ]);
  });

  test('are not filtered when no pool for pods is encapsulated', () => {
    expect(planned(pool('10.65.0.0', 'none'), pool('10.66.0.0', 'vxlan', true))).toEqual([]);
    expect(planned()).toEqual([]);
  });
});

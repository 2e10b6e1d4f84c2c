import { TunnelKind } from '@podwire/proto/podwire/ipam/v1/node';
import type { Address, Family } from '@podwire/shared/net/address';
import { prefixContains } from '@podwire/shared/net/prefix';

import type { ClusterNode } from './cluster.js';
import type { KnownCluster, KnownPool, KnownView } from './known-cluster.js';

/** The kinds of tunnels that pools ask for. */
export const TUNNEL_KINDS = [
  TunnelKind.TUNNEL_KIND_IPIP,
  TunnelKind.TUNNEL_KIND_VXLAN_IPV4,
  TunnelKind.TUNNEL_KIND_VXLAN_IPV6,
] as const;

export type PoolTunnelKind = (typeof TUNNEL_KINDS)[number];

interface TunnelFacts {
  readonly family: Family;
  readonly encapsulation: 'ipip' | 'vxlan';
  readonly addressOf: (node: ClusterNode) => Address | undefined;
  readonly word: string;
}

export const TUNNELS: Readonly<Record<PoolTunnelKind, TunnelFacts>> = {
  [TunnelKind.TUNNEL_KIND_IPIP]: { family: 4, encapsulation: 'ipip', addressOf: ({ ipip }) => ipip, word: 'IPIP' },
  [TunnelKind.TUNNEL_KIND_VXLAN_IPV4]: {
    family: 4,
    encapsulation: 'vxlan',
    addressOf: ({ vxlanIpv4 }) => vxlanIpv4?.address,
    word: 'IPv4 VXLAN',
  },
  [TunnelKind.TUNNEL_KIND_VXLAN_IPV6]: {
    family: 6,
    encapsulation: 'vxlan',
    addressOf: ({ vxlanIpv6 }) => vxlanIpv6?.address,
    word: 'IPv6 VXLAN',
  },
};

/**
 * What is to become of a tunnel's address. `confirm`: it looks right, and IPAM is asked whether it is, once. `yield`: its pool is to
 * go, and it is given back as soon as this node has nothing else of the pools that are encapsulated that way.
 */
export type TunnelNeed = 'allocate' | 'confirm' | 'release' | 'yield' | 'nothing';

/**
 * Whether this node's end of a kind of tunnels needs an address, or has one that no pool wants any more. A pool that gives none any
 * more (disabled, or being deleted) still has pods whose packets need the tunnel; so an address is given back only once no
 * pool is encapsulated that way, or when the pool that it is of drains and no pod of this node needs others to find the tunnel.
 */
export function tunnelNeed(kind: PoolTunnelKind, { self, cluster }: KnownView): TunnelNeed {
  const { family, addressOf } = TUNNELS[kind];
  const node = cluster.nodes.get(self);
  if (!node) return 'nothing';
  const address = addressOf(node);
  const wanting = wantingPools(kind, cluster);
  const giving = wanting.filter(({ givesTunnelAddresses }) => givesTunnelAddresses);
  if (wanting.length === 0) return address ? 'release' : 'nothing';
  const isReachable = (family === 4 ? node.ipv4 : node.ipv6) !== undefined;
  const isLast =
    giving.length === 0 &&
    wanting.some(({ cidr, isDraining }) => isDraining && address && prefixContains(cidr, address));
  if (isLast) return 'yield';
  if (giving.length === 0 || !isReachable) return 'nothing';
  return address && giving.some(({ cidr }) => prefixContains(cidr, address)) ? 'confirm' : 'allocate';
}

/** The pools whose pods need the tunnels of a kind, whether or not they give addresses. */
export function wantingPools(kind: PoolTunnelKind, { pools }: KnownCluster): readonly KnownPool[] {
  const { family, encapsulation } = TUNNELS[kind];
  return [...pools.values()].filter((pool) => pool.cidr.family === family && isEncapsulated(pool, encapsulation));
}

function isEncapsulated({ encapsulation, loadBalancerOnly }: KnownPool, wanted: 'ipip' | 'vxlan'): boolean {
  return !loadBalancerOnly && (encapsulation === wanted || encapsulation === `${wanted}-cross-subnet`);
}

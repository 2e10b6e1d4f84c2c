import { familyBits, formatAddress, type Address } from '@podwire/shared/net/address';
import { prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import type { ClusterBlock, ClusterNode, ClusterPool, Encapsulation } from '../cluster/cluster.js';
import type { Complaint } from '../conditions/conditions.js';
import type { NodeFacts } from '../routing/facts.js';
import { modeOf, nodeAddressOf, vxlanEndOf, type Paths } from '../routing/paths.js';
import { VXLAN_DEVICE, type NodeRoute } from './wanted.js';

/** What the routes of a block depend on besides the block. */
export interface BlockSurroundings {
  /** Name of this node. */
  readonly self: string;
  readonly nodes: ReadonlyMap<string, ClusterNode>;
  readonly pools: ReadonlyMap<string, ClusterPool>;
  readonly facts: NodeFacts;
  readonly paths: Paths;
}

/**
 * Why a destination is routed as it is, best first. Where several blocks claim a destination, as when one lies in another while a pool
 * is being split, the best claim is what counts.
 */
export const RANKS = ['local', 'address', 'block', 'blackhole'] as const;

/** What one block wants of one destination. */
export interface Claim {
  /** CIDR. */
  readonly destination: string;
  readonly rank: (typeof RANKS)[number];
  /** Undefined: no route of the node's; an address of this node's own has its pod's. */
  readonly route: NodeRoute | undefined;
}

export interface BlockPlan {
  readonly claims: readonly Claim[];
  readonly complaints: readonly Complaint[];
}

/** What is to be routed, and how its pool wants that. */
interface Destination {
  readonly cidr: string;
  readonly prefix: Prefix;
  readonly encapsulation: Encapsulation;
  /** Name of the pool, or of the block where there is none. */
  readonly poolName: string;
}

/** Plans all destinations of one block: the block itself, and the addresses in it that others than its owner use. */
export function planBlock(block: ClusterBlock, cidr: string, around: BlockSurroundings): BlockPlan {
  const claims: Claim[] = [];
  const complaints: Complaint[] = [];
  const pool = block.poolName === undefined ? undefined : around.pools.get(block.poolName);
  const poolName = block.poolName ?? cidr;
  const encapsulation = encapsulationOf(pool);
  const isSingle = block.cidr.length === familyBits(block.cidr.family);
  const claim = (nodeName: string, prefix: Prefix, at: { cidr: string; rank: 'address' | 'block' }): void => {
    const { route, complaint } = routeTo(nodeName, { cidr: at.cidr, prefix, encapsulation, poolName }, around);
    if (complaint) complaints.push(complaint);
    if (route) claims.push({ destination: at.cidr, rank: at.rank, route });
  };
  if (block.nodeName === around.self) {
    if (isSingle) claims.push({ destination: cidr, rank: 'local', route: undefined });
    else claims.push({ destination: cidr, rank: 'blackhole', route: blackhole(cidr) });
  } else if (block.nodeName !== undefined) {
    claim(block.nodeName, block.cidr, { cidr, rank: isSingle ? 'address' : 'block' });
  }
  for (const { address, nodeName } of block.borrowed) {
    if (nodeName === block.nodeName) continue;
    const length = familyBits(address.family);
    const host = `${formatAddress(address)}/${length}`;
    if (nodeName === around.self) claims.push({ destination: host, rank: 'local', route: undefined });
    else claim(nodeName, { ...address, length }, { cidr: host, rank: 'address' });
  }
  const isInUse = block.nodeName !== undefined || block.borrowed.length > 0;
  if (!pool && isInUse) complaints.push({ reason: 'PoolMissing', subject: poolName, destination: cidr });
  return { claims, complaints };
}

/** Names of the nodes that a block's routes depend on. */
export function nodesOf(block: ClusterBlock): ReadonlySet<string> {
  const names = new Set(block.borrowed.map(({ nodeName }) => nodeName));
  if (block.nodeName !== undefined) names.add(block.nodeName);
  return names;
}

/** What the pool asks for; a pool that was deleted, or is for load balancers alone, asks for nothing. */
export function encapsulationOf(pool: ClusterPool | undefined): Encapsulation {
  return pool && !pool.loadBalancerOnly ? pool.encapsulation : 'none';
}

interface Decision {
  readonly route?: NodeRoute;
  readonly complaint?: Complaint;
}

function routeTo(nodeName: string, destination: Destination, around: BlockSurroundings): Decision {
  const { cidr, prefix, encapsulation, poolName } = destination;
  const complaint = (reason: Complaint['reason']): Decision => ({
    complaint: { reason, subject: reason === 'IpipIpv6' ? poolName : nodeName, destination: cidr },
  });
  const peer = around.nodes.get(nodeName);
  if (!peer) return complaint('NodeUnknown');
  // The node's own address is the network's to route, whatever IPAM's records say of it.
  if (isAddress(prefix, nodeAddressOf(peer, prefix.family)?.address)) return {};
  const path = around.paths.to(peer, { family: prefix.family, encapsulation });
  switch (path.kind) {
    case 'none':
      return {};
    case 'refused':
      return complaint(path.reason);
    case 'network':
      return around.facts.routed.some((routed) => prefixContains(routed, prefix)) ? {} : complaint('NotOnLink');
    case 'device': {
      const { device, gateway, isTunnelled } = path;
      if (isTunnelled && prefixContains(prefix, path.nodeAddress)) return complaint('NodeAddressInBlock');
      const type = 'unicast';
      const source = undefined;
      if (isOnTunnel(peer, destination, around.facts)) {
        const tunnel = VXLAN_DEVICE[prefix.family];
        return { route: { destination: cidr, type, device: tunnel, gateway: undefined, onlink: false, source } };
      }
      return { route: { destination: cidr, type, device, gateway, onlink: true, source } };
    }
  }
}

/**
 * The far end's tunnel address, where its own block does not lead there, is on the tunnel device itself: as the gateway of its
 * own route it would have to be resolved by that very route.
 */
function isOnTunnel(peer: ClusterNode, { prefix, encapsulation }: Destination, { hasVxlan }: NodeFacts): boolean {
  if (!hasVxlan || modeOf(encapsulation).tunnel !== 'vxlan') return false;
  return isAddress(prefix, vxlanEndOf(peer, prefix.family)?.address);
}

function isAddress(prefix: Prefix, address: Address | undefined): boolean {
  return address !== undefined && prefix.length === familyBits(address.family) && prefixContains(prefix, address);
}

function blackhole(destination: string): NodeRoute {
  return { destination, type: 'blackhole', device: undefined, gateway: undefined, onlink: false, source: undefined };
}

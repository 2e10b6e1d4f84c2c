import { familyBits, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import {
  encapsulationOf,
  modeOf,
  MODES,
  nodeAddressOf,
  type ClusterBlock,
  type ClusterNode,
  type ClusterPool,
  type Encapsulation,
  type VxlanEnd,
} from '../cluster/cluster.js';
import type { Complaint, ComplaintReason } from '../conditions/conditions.js';
import { IPIP_DEVICE, VXLAN_DEVICE, type NodeFacts, type NodeRoute } from './wanted.js';

/** The inputs of a block's routes besides the block. */
export interface BlockSurroundings {
  /** Name of this node. */
  readonly self: string;
  readonly nodes: ReadonlyMap<string, ClusterNode>;
  readonly pools: ReadonlyMap<string, ClusterPool>;
  readonly facts: NodeFacts;
  readonly paths: Paths;
}

/**
 * Why a destination is routed the way it is, best first. When several blocks claim a destination, as while a pool is being split,
 * the best claim wins.
 */
export const RANKS = ['local', 'address', 'block', 'blackhole'] as const;

/** A block's claim on one destination. */
export interface Claim {
  /** CIDR. */
  readonly destination: string;
  readonly rank: (typeof RANKS)[number];
  /** Undefined: no route of the node; an address of this node is routed to its pod. */
  readonly route: NodeRoute | undefined;
}

export interface BlockPlan {
  readonly claims: readonly Claim[];
  readonly complaints: readonly Complaint[];
}

/** A destination, and its pool's routing options. */
interface Destination {
  readonly cidr: string;
  readonly prefix: Prefix;
  readonly encapsulation: Encapsulation;
  /** Name of the pool, or of the block where there is none. */
  readonly poolName: string;
}

/** Plans all destinations of one block: the block itself, and its addresses that nodes other than its owner use. */
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
  // The node's own address is routed by the network, regardless of IPAM's records.
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
 * The peer's tunnel address, when its own block does not lead to the peer, is on the tunnel device: as the gateway of its own
 * route it would have to be resolved by that route.
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

/** The path from this node to another. */
type Path =
  /** By a device: `tunnelled` packets arrive at `nodeAddress` encapsulated. */
  | {
      readonly kind: 'device';
      readonly device: string;
      readonly gateway: string;
      readonly isTunnelled: boolean;
      readonly nodeAddress: Address;
    }
  /** Not by Podwire's route: by the router of the node's table, or not at all. */
  | { readonly kind: 'network' }
  /** No route: BIRD programs it, or this node has a fault, which is reported once for all destinations. */
  | { readonly kind: 'none' }
  | { readonly kind: 'refused'; readonly reason: ComplaintReason };

/** A pool's requirements for the path to its addresses. */
interface PathDemand {
  readonly family: Family;
  readonly encapsulation: Encapsulation;
}

export function vxlanEndOf(node: ClusterNode | undefined, family: Family): VxlanEnd | undefined {
  return family === 4 ? node?.vxlanIpv4 : node?.vxlanIpv6;
}

/**
 * Paths from this node to other nodes. A path depends only on the other node, the family and the pool's encapsulation, so that
 * thousands of blocks behind a few nodes share theirs.
 */
export class Paths {
  readonly #self: ClusterNode | undefined;
  readonly #facts: NodeFacts;
  readonly #known = new WeakMap<ClusterNode, Map<string, Path>>();

  constructor(self: ClusterNode | undefined, facts: NodeFacts) {
    this.#self = self;
    this.#facts = facts;
  }

  to(peer: ClusterNode, demand: PathDemand): Path {
    const known = this.#known.get(peer) ?? new Map<string, Path>();
    this.#known.set(peer, known);
    const key = `${demand.family} ${demand.encapsulation}`;
    const path = known.get(key) ?? this.#find(peer, demand);
    known.set(key, path);
    return path;
  }

  #find(peer: ClusterNode, { family, encapsulation }: PathDemand): Path {
    const { tunnel, onlyCrossSubnet } = MODES[encapsulation];
    if (tunnel === 'none' && this.#facts.routing === 'bird') return { kind: 'none' };
    const there = nodeAddressOf(peer, family)?.address;
    const here = nodeAddressOf(this.#self, family);
    if (!there) return { kind: 'refused', reason: 'NodeAddressMissing' };
    if (!here) return { kind: 'none' };
    // The kernel refuses a gateway that is an address of the node itself.
    if (there.value === here.address.value) return { kind: 'refused', reason: 'NodeAddressConflict' };
    const isNear = prefixContains(here.subnet, there);
    const parent = this.#facts.parents[family];
    if (tunnel === 'none' && !isNear) return { kind: 'network' };
    if (tunnel === 'none' || (onlyCrossSubnet && isNear && parent !== undefined)) {
      if (parent === undefined) return { kind: 'none' };
      const gateway = formatAddress(there);
      return { kind: 'device', device: parent, gateway, isTunnelled: false, nodeAddress: there };
    }
    return tunnel === 'vxlan' ? this.#byVxlan(peer, there) : this.#byIpip(there);
  }

  #byVxlan(peer: ClusterNode, nodeAddress: Address): Path {
    const { family } = nodeAddress;
    if (!this.#facts.hasVxlan) return { kind: 'none' };
    const end = vxlanEndOf(peer, family)?.address;
    if (!end) return { kind: 'refused', reason: 'TunnelAddressMissing' };
    const gateway = formatAddress(end);
    return { kind: 'device', device: VXLAN_DEVICE[family], gateway, isTunnelled: true, nodeAddress };
  }

  #byIpip(nodeAddress: Address): Path {
    if (nodeAddress.family === 6) return { kind: 'refused', reason: 'IpipIpv6' };
    if (!this.#facts.hasIpip) return { kind: 'none' };
    // The device has no fixed far end: each packet goes to its route's gateway.
    return { kind: 'device', device: IPIP_DEVICE, gateway: formatAddress(nodeAddress), isTunnelled: true, nodeAddress };
  }
}

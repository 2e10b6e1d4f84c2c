import { familyBits, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { prefixContains, prefixesOverlap, type Prefix } from '@podwire/shared/net/prefix';

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
import type { RouteFault, RouteFaultReason } from '../conditions/conditions.js';
import { IPIP_DEVICE, VXLAN_DEVICE, type NodeFacts, type NodeRoute } from './wanted.js';

/** The inputs of a block's routes besides the block. */
export interface BlockContext {
  /** Name of this node. */
  readonly self: string;
  readonly nodes: ReadonlyMap<string, ClusterNode>;
  readonly pools: ReadonlyMap<string, ClusterPool>;
  readonly facts: NodeFacts;
  readonly paths: Paths;
}

/** Ranks of claims, best first. When several blocks claim a destination, as while a pool is split, the best claim wins. */
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
  readonly faults: readonly RouteFault[];
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
export function planBlock(block: ClusterBlock, cidr: string, context: BlockContext): BlockPlan {
  const claims: Claim[] = [];
  const faults: RouteFault[] = [];
  const pool = block.poolName === undefined ? undefined : context.pools.get(block.poolName);
  const poolName = block.poolName ?? cidr;
  const encapsulation = encapsulationOf(pool);
  const isSingle = block.cidr.length === familyBits(block.cidr.family);
  const claim = (nodeName: string, prefix: Prefix, at: { cidr: string; rank: 'address' | 'block' }): void => {
    const { route, fault } = routeTo(nodeName, { cidr: at.cidr, prefix, encapsulation, poolName }, context);
    if (fault) faults.push(fault);
    if (route) claims.push({ destination: at.cidr, rank: at.rank, route });
  };
  if (block.nodeName === context.self) {
    if (isSingle) claims.push({ destination: cidr, rank: 'local', route: undefined });
    // A blackhole would cut the node off from hosts of its own networks.
    else if (!context.facts.connected.some((subnet) => prefixesOverlap(subnet, block.cidr)))
      claims.push({ destination: cidr, rank: 'blackhole', route: blackhole(cidr) });
  } else if (block.nodeName !== undefined) {
    claim(block.nodeName, block.cidr, { cidr, rank: isSingle ? 'address' : 'block' });
  }
  for (const { address, nodeName } of block.borrowed) {
    if (nodeName === block.nodeName) continue;
    const length = familyBits(address.family);
    const host = `${formatAddress(address)}/${length}`;
    if (nodeName === context.self) claims.push({ destination: host, rank: 'local', route: undefined });
    else claim(nodeName, { ...address, length }, { cidr: host, rank: 'address' });
  }
  const isInUse = block.nodeName !== undefined || block.borrowed.length > 0;
  if (!pool && isInUse) faults.push({ reason: 'PoolMissing', subject: poolName, destination: cidr });
  return { claims, faults };
}

/** Names of the nodes that a block's routes depend on. */
export function nodesOf(block: ClusterBlock): ReadonlySet<string> {
  const names = new Set(block.borrowed.map(({ nodeName }) => nodeName));
  if (block.nodeName !== undefined) names.add(block.nodeName);
  return names;
}

interface Decision {
  readonly route?: NodeRoute;
  readonly fault?: RouteFault;
}

function routeTo(nodeName: string, destination: Destination, context: BlockContext): Decision {
  const { cidr, prefix, encapsulation, poolName } = destination;
  const fault = (reason: RouteFault['reason']): Decision => ({
    fault: { reason, subject: reason === 'IpipIpv6' ? poolName : nodeName, destination: cidr },
  });
  const peer = context.nodes.get(nodeName);
  if (!peer) return fault('NodeUnknown');
  // The node's own address is routed by the network, regardless of IPAM's records.
  if (isAddress(prefix, nodeAddressOf(peer, prefix.family)?.address)) return {};
  const path = context.paths.to(peer, { family: prefix.family, encapsulation });
  switch (path.kind) {
    case 'none':
      return {};
    case 'unroutable':
      return fault(path.reason);
    case 'network':
      return context.facts.routed.some((routed) => prefixContains(routed, prefix)) ? {} : fault('NotOnLink');
    case 'device': {
      const { device, gateway, isTunnelled } = path;
      if (isTunnelled && prefixContains(prefix, path.nodeAddress)) return fault('NodeAddressInBlock');
      const type = 'unicast';
      const source = undefined;
      if (isOnTunnel(peer, destination, context.facts)) {
        const tunnel = VXLAN_DEVICE[prefix.family];
        return { route: { destination: cidr, type, device: tunnel, gateway: undefined, onlink: false, source } };
      }
      return { route: { destination: cidr, type, device, gateway, onlink: true, source } };
    }
  }
}

/**
 * Whether a destination is the peer's tunnel address itself. Its route is on the tunnel device without a gateway: the gateway
 * would be the destination.
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
  /** A route by a device. Packets of a tunnel arrive encapsulated at `nodeAddress`. */
  | {
      readonly kind: 'device';
      readonly device: string;
      readonly gateway: string;
      readonly isTunnelled: boolean;
      readonly nodeAddress: Address;
    }
  /** No route of Podwire's: a router in the node's table is used, if there is one. */
  | { readonly kind: 'network' }
  /** No route: BIRD programs it, or this node lacks an address or a device, which is reported once for all destinations. */
  | { readonly kind: 'none' }
  | { readonly kind: 'unroutable'; readonly reason: RouteFaultReason };

/** A pool's requirements for the path to its addresses. */
interface PathRequirement {
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
  readonly #cache = new WeakMap<ClusterNode, Map<string, Path>>();

  constructor(self: ClusterNode | undefined, facts: NodeFacts) {
    this.#self = self;
    this.#facts = facts;
  }

  to(peer: ClusterNode, requirement: PathRequirement): Path {
    const cached = this.#cache.get(peer) ?? new Map<string, Path>();
    this.#cache.set(peer, cached);
    const key = `${requirement.family} ${requirement.encapsulation}`;
    const path = cached.get(key) ?? this.#find(peer, requirement);
    cached.set(key, path);
    return path;
  }

  #find(peer: ClusterNode, { family, encapsulation }: PathRequirement): Path {
    const { tunnel, onlyCrossSubnet } = MODES[encapsulation];
    if (tunnel === 'none' && this.#facts.routing === 'bird') return { kind: 'none' };
    const peerAddress = nodeAddressOf(peer, family)?.address;
    const ownAddress = nodeAddressOf(this.#self, family);
    if (!peerAddress) return { kind: 'unroutable', reason: 'NodeAddressMissing' };
    if (!ownAddress) return { kind: 'none' };
    // The kernel refuses a gateway that is an address of the node itself.
    if (peerAddress.value === ownAddress.address.value) return { kind: 'unroutable', reason: 'NodeAddressConflict' };
    const isSameSubnet = prefixContains(ownAddress.subnet, peerAddress);
    const parent = this.#facts.parents[family];
    if (tunnel === 'none' && !isSameSubnet) return { kind: 'network' };
    if (tunnel === 'none' || (onlyCrossSubnet && isSameSubnet && parent !== undefined)) {
      if (parent === undefined) return { kind: 'none' };
      const gateway = formatAddress(peerAddress);
      return { kind: 'device', device: parent, gateway, isTunnelled: false, nodeAddress: peerAddress };
    }
    return tunnel === 'vxlan' ? this.#byVxlan(peer, peerAddress) : this.#byIpip(peerAddress);
  }

  #byVxlan(peer: ClusterNode, nodeAddress: Address): Path {
    const { family } = nodeAddress;
    if (!this.#facts.hasVxlan) return { kind: 'none' };
    const end = vxlanEndOf(peer, family)?.address;
    if (!end) return { kind: 'unroutable', reason: 'TunnelAddressMissing' };
    const gateway = formatAddress(end);
    return { kind: 'device', device: VXLAN_DEVICE[family], gateway, isTunnelled: true, nodeAddress };
  }

  #byIpip(nodeAddress: Address): Path {
    if (nodeAddress.family === 6) return { kind: 'unroutable', reason: 'IpipIpv6' };
    if (!this.#facts.hasIpip) return { kind: 'none' };
    // The device has no fixed far end: each packet goes to its route's gateway.
    return { kind: 'device', device: IPIP_DEVICE, gateway: formatAddress(nodeAddress), isTunnelled: true, nodeAddress };
  }
}

import type { Address, Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

/** How packets between the nodes of a pool travel. The `-cross-subnet` ones tunnel only what leaves the sender's subnet. */
export type Encapsulation = 'none' | 'vxlan' | 'vxlan-cross-subnet' | 'ipip' | 'ipip-cross-subnet';

/** A node's address of one family, and the subnet it lies in. */
export interface NodeAddress {
  readonly address: Address;
  readonly subnet: Prefix;
}

/** A node's end of a VXLAN tunnel. */
export interface VxlanEnd {
  /** Of the tunnel device; undefined while none is allocated. */
  readonly address: Address | undefined;
  /** Undefined while the node has not told it. */
  readonly mac: Mac | undefined;
}

/** A node as the routing knows it. */
export interface ClusterNode {
  readonly name: string;
  readonly ipv4: NodeAddress | undefined;
  readonly ipv6: NodeAddress | undefined;
  readonly vxlanIpv4: VxlanEnd | undefined;
  readonly vxlanIpv6: VxlanEnd | undefined;
  /** Address of its IPIP device; undefined while none is allocated. */
  readonly ipip: Address | undefined;
  /** BGP autonomous system; undefined: the cluster's. */
  readonly asNumber: number | undefined;
}

/** A pool as the routing knows it. Disabled ones are routed as long as they have blocks. */
export interface ClusterPool {
  readonly name: string;
  readonly cidr: Prefix;
  readonly encapsulation: Encapsulation;
  /** Packets from the pool to what is in no pool leave with the node's address. */
  readonly natOutgoing: boolean;
  /** Whether its addresses are for load balancers alone: such a pool's encapsulation means nothing. */
  readonly loadBalancerOnly: boolean;
  /** It is being deleted, and goes with the last of its addresses, those of tunnels among them. Left out: it is not. */
  readonly isDraining?: boolean;
}

/** An address of a block that another node than the block's owner uses. */
export interface BorrowedAddress {
  readonly address: Address;
  readonly nodeName: string;
}

/** A block as the routing knows it. */
export interface ClusterBlock {
  readonly cidr: Prefix;
  /** Undefined when the pool was deleted. */
  readonly poolName: string | undefined;
  /** Undefined when nobody owns the block. */
  readonly nodeName: string | undefined;
  /** In the order of the addresses. Addresses that tell no node are not among them. */
  readonly borrowed: readonly BorrowedAddress[];
}

/** Everything that routes between nodes depend on. A value: a change makes another one. */
export interface Cluster {
  /** By name. */
  readonly nodes: ReadonlyMap<string, ClusterNode>;
  /** By name. */
  readonly pools: ReadonlyMap<string, ClusterPool>;
  /** By CIDR as text. */
  readonly blocks: ReadonlyMap<string, ClusterBlock>;
}

/** What one node sees of the cluster. */
export interface ClusterView {
  /** Name of this node. It may be missing in the cluster while it is being registered, or after somebody deleted it. */
  readonly self: string;
  readonly cluster: Cluster;
}

/** What may have changed since the view before. */
export interface ClusterChange {
  /** CIDRs of blocks that were made, changed or removed; 'all' after a new snapshot. */
  readonly blocks: ReadonlySet<string> | 'all';
  /** Whether a node or a pool was made, changed or removed; then any route may be another. */
  readonly others: boolean;
}

/**
 * Something on this node that is kept as the cluster's state asks for: routes, masquerading, BIRD.
 *
 * `follow` is called with the first complete view and then with each later one, never before a complete one is known: what is
 * there from before stays until then. It returns at once; a view that comes while an earlier one is being applied replaces
 * those that wait, and their changes are joined.
 */
export interface Follower {
  follow(view: ClusterView, change: ClusterChange): void;
  /** Leaves everything in the kernel as it is: pods keep their network while the service is away. */
  stop(): Promise<void>;
}

/** A pool as IPAM tells it: what the routing needs, and whether it gives addresses to tunnels. */
export interface KnownPool extends ClusterPool {
  /** In use, and tunnels among its uses. */
  readonly givesTunnelAddresses: boolean;
}

/** What IPAM tells of the cluster. */
export interface KnownCluster extends Cluster {
  readonly pools: ReadonlyMap<string, KnownPool>;
}

/** What one node is told of the cluster. */
export interface KnownView extends ClusterView {
  readonly cluster: KnownCluster;
}

/** A `Follower` that may also look at what the routing has no use for. */
export interface KnownFollower {
  follow(view: KnownView, change: ClusterChange): void;
  stop(): Promise<void>;
}

/** What may have changed over two changes. */
export function joinChanges(earlier: ClusterChange, later: ClusterChange): ClusterChange {
  const others = earlier.others || later.others;
  if (earlier.blocks === 'all' || later.blocks === 'all') return { blocks: 'all', others };
  return { blocks: new Set([...earlier.blocks, ...later.blocks]), others };
}

/** What the pool asks for; a pool that was deleted, or is for load balancers alone, asks for nothing. */
export function encapsulationOf(pool: ClusterPool | undefined): Encapsulation {
  return pool && !pool.loadBalancerOnly ? pool.encapsulation : 'none';
}

/** UDP port of VXLAN (RFC 7348). */
export const VXLAN_PORT = 4789;

interface Mode {
  readonly tunnel: 'none' | 'vxlan' | 'ipip';
  readonly onlyCrossSubnet: boolean;
}

export const MODES: Readonly<Record<Encapsulation, Mode>> = {
  none: { tunnel: 'none', onlyCrossSubnet: false },
  vxlan: { tunnel: 'vxlan', onlyCrossSubnet: false },
  'vxlan-cross-subnet': { tunnel: 'vxlan', onlyCrossSubnet: true },
  ipip: { tunnel: 'ipip', onlyCrossSubnet: false },
  'ipip-cross-subnet': { tunnel: 'ipip', onlyCrossSubnet: true },
};

export function modeOf(encapsulation: Encapsulation): Mode {
  return MODES[encapsulation];
}

export function nodeAddressOf(node: ClusterNode | undefined, family: Family): NodeAddress | undefined {
  return family === 4 ? node?.ipv4 : node?.ipv6;
}

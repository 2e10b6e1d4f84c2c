import type { Address, Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

/**
 * Encapsulation of packets between the nodes of a pool. The `-cross-subnet` modes tunnel only packets that leave the sender's
 * subnet.
 */
export type Encapsulation = 'none' | 'vxlan' | 'vxlan-cross-subnet' | 'ipip' | 'ipip-cross-subnet';

/** A node's address of one family, and the subnet it lies in. */
export interface NodeAddress {
  readonly address: Address;
  readonly subnet: Prefix;
}

/** A node's end of a VXLAN tunnel. */
export interface VxlanEnd {
  /** Address of the tunnel device; undefined while none is allocated. */
  readonly address: Address | undefined;
  /** MAC address; undefined until the node has reported it. */
  readonly mac: Mac | undefined;
}

/** A node's attributes for routing. */
export interface ClusterNode {
  readonly name: string;
  readonly ipv4: NodeAddress | undefined;
  readonly ipv6: NodeAddress | undefined;
  readonly vxlanIpv4: VxlanEnd | undefined;
  readonly vxlanIpv6: VxlanEnd | undefined;
  /** Address of its IPIP device; undefined while none is allocated. */
  readonly ipip: Address | undefined;
  /** Addresses of the interfaces by which it is connected, as it registered them. Absent: none. */
  readonly interfaceAddresses?: readonly Address[];
  /** BGP autonomous system; undefined: the cluster's. */
  readonly asNumber: number | undefined;
  /** Number of times that IPAM recalled the node's leases. Absent: 0. */
  readonly leaseRecallCount?: bigint;
  /** Number of times that IPAM asked the node for its inventory. Absent: 0. */
  readonly inventoryRequestCount?: bigint;
}

/** A pool's attributes for routing. Disabled pools are routed while they have blocks. */
export interface ClusterPool {
  readonly name: string;
  readonly cidr: Prefix;
  readonly encapsulation: Encapsulation;
  /** Packets from the pool to destinations outside all pools leave with the node's address. */
  readonly natOutgoing: boolean;
  /** Whether its addresses are for load balancers alone: such a pool's encapsulation is ignored. */
  readonly loadBalancerOnly: boolean;
  /** It is being deleted, and ends with its last address, including tunnel addresses. Absent: false. */
  readonly isDraining?: boolean;
}

/** An address of a block that another node than the block's owner uses. */
export interface BorrowedAddress {
  readonly address: Address;
  readonly nodeName: string;
}

/** A block's attributes for routing. */
export interface ClusterBlock {
  readonly cidr: Prefix;
  /** Pool; undefined when the pool was deleted. */
  readonly poolName: string | undefined;
  /** Owner; undefined when the block has no owner. */
  readonly nodeName: string | undefined;
  /** Sorted by address. Excludes addresses without a node. */
  readonly borrowed: readonly BorrowedAddress[];
}

/** The inputs of routes between nodes. Immutable: a change creates a new value. */
export interface Cluster {
  /** Nodes by name. */
  readonly nodes: ReadonlyMap<string, ClusterNode>;
  /** Pools by name. */
  readonly pools: ReadonlyMap<string, ClusterPool>;
  /** Blocks by CIDR as text. */
  readonly blocks: ReadonlyMap<string, ClusterBlock>;
}

/** One node's view of the cluster. */
export interface ClusterView {
  /** Name of this node. The cluster may lack it during the registration, or after it was deleted. */
  readonly self: string;
  readonly cluster: Cluster;
  /** Whether Calico's tools have locked the datastore, for example for a migration. Kept while IPAM is down. */
  readonly isDatastoreLocked: boolean;
}

/** Possible changes since the previous view. */
export interface ClusterChange {
  /** CIDRs of blocks that were created, changed or removed; 'all' after a new snapshot. */
  readonly blocks: ReadonlySet<string> | 'all';
  /** Whether a node or a pool was created, changed or removed; then any route may change. */
  readonly hasOtherChanges: boolean;
  /** Whether the datastore was locked or unlocked. Absent: false. */
  readonly hasLockChanged?: boolean;
}

/**
 * A part of this node that follows the cluster's state: routes, masquerading, BIRD.
 *
 * `follow` is called with each complete view, never before the first complete one: the existing state stays until then. It
 * returns at once; a view that arrives while an earlier one is being applied replaces the waiting ones, and their changes are
 * merged.
 */
export interface Follower {
  follow(view: ClusterView, change: ClusterChange): void;
  /** Leaves the kernel unchanged: pods keep their network while the service is down. */
  stop(): Promise<void>;
}

/** A pool in IPAM's messages: the routing attributes, and what it assigns addresses to. */
export interface IpamPool extends ClusterPool {
  /** Enabled, and not being deleted. */
  readonly isActive: boolean;
  /** Enabled, and allowed for tunnels. */
  readonly assignsTunnelAddresses: boolean;
}

/** The cluster as received from IPAM. */
export interface IpamCluster extends Cluster {
  readonly pools: ReadonlyMap<string, IpamPool>;
}

/** One node's view of that cluster. */
export interface IpamView extends ClusterView {
  readonly cluster: IpamCluster;
}

/** A `Follower` that also reads attributes beyond routing. */
export interface IpamFollower {
  follow(view: IpamView, change: ClusterChange): void;
  stop(): Promise<void>;
}

/** Merges two changes. */
export function joinChanges(earlier: ClusterChange, later: ClusterChange): ClusterChange {
  const hasOtherChanges = earlier.hasOtherChanges || later.hasOtherChanges;
  const hasLockChanged = earlier.hasLockChanged === true || later.hasLockChanged === true;
  const flags = { hasOtherChanges, ...(hasLockChanged && { hasLockChanged }) };
  if (earlier.blocks === 'all' || later.blocks === 'all') return { blocks: 'all', ...flags };
  return { blocks: new Set([...earlier.blocks, ...later.blocks]), ...flags };
}

/** The pool's encapsulation; none for a pool that was deleted, or is for load balancers alone. */
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

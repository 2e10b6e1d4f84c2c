import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Address, Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { PodRequests, PoolChoice } from '../records/request-policy.js';

/**
 * The records of the datastore as values: what Calico's v3 schema holds (reference: Calico's libcalico-go/lib/backend/model),
 * free of its JSON. All are immutable; a change is a new value. `store/record` maps them to and from the stored form, and keeps
 * there whatever fields it does not know.
 */

/** Number of an address within its block, counted from the block's first address. */
export type Ordinal = number;

/** Who owns a block: a node, or a virtual owner such as `load-balancer`. Stored as `host:<name>` or `virtual:<name>`. */
export interface BlockOwner {
  readonly kind: 'host' | 'virtual';
  readonly name: string;
}

/** What is known of an allocation besides its address. Several ordinals of a block may share one. */
export interface AllocationAttributes {
  /** Handle that owns the address; undefined when none does, as while an address cools down. */
  readonly handleId: string | undefined;
  /** The owner's own description: `node`, `namespace`, `pod`, `interface`, `network`, `timestamp`. Stored as `secondary`. */
  readonly owner: Readonly<Record<string, string>>;
  /**
   * The description of a second owner, as of the pod that a virtual machine is moving to: `alternateOwnerAttrs`. Never empty. Nothing is
   * decided by it: Calico's tools and SetAttributes write it, and it goes with the address.
   */
  readonly alternateOwner?: Readonly<Record<string, string>> | undefined;
  /** When the address was released, in epoch milliseconds, while it is cooling down; undefined while it is in use. */
  readonly releasedAtMs: number | undefined;
}

/** A run of addresses, and the lock on all of them: one key, one compare-and-swap. */
export interface Block {
  readonly prefix: Prefix;
  readonly owner: BlockOwner | undefined;
  /** When the owner claimed the block, in epoch milliseconds; undefined on old blocks. */
  readonly claimTimeMs: number | undefined;
  /** For each ordinal the index of its attributes, or null when it is free. */
  readonly allocations: readonly (number | null)[];
  /** The free ordinals in the order in which they are given out: taken from the head, returned to the tail. */
  readonly unallocated: readonly Ordinal[];
  readonly attributes: readonly AllocationAttributes[];
  /** One higher with every change of the block; starts at the clock, in epoch nanoseconds. */
  readonly sequenceNumber: bigint;
  /** For each ordinal the block's sequence number when it was allocated, or null when it is free. */
  readonly sequenceNumbers: readonly (bigint | null)[];
}

/** How far a node's claim of a block has come. */
export type AffinityState = 'pending' | 'confirmed' | 'pendingDeletion';

/** A node's claim of a block. Only a confirmed one, with a block that names the node, is ownership. */
export interface Affinity {
  readonly owner: BlockOwner;
  readonly block: Prefix;
  readonly state: AffinityState;
}

/** Index from an owner to the blocks that hold its addresses. */
export interface Handle {
  readonly id: string;
  /** For each block, by its CIDR, how many of its addresses the handle owns. */
  readonly blocks: ReadonlyMap<string, number>;
}

/** A range of addresses that is cut into blocks of one size. */
export interface Pool {
  readonly name: string;
  readonly uid: string;
  readonly prefix: Prefix;
  /** As Calico's tools set them; nothing but rules of request policies looks at them. */
  readonly labels: Readonly<Record<string, string>>;
  /** Prefix length of the pool's blocks, in bits. */
  readonly blockSizeBits: number;
  /** Switched off by its operator. See `outOfUse` for every reason for which a pool gives no address. */
  readonly disabled: boolean;
  /** When its deletion began, in epoch milliseconds: it gives no address any more, and goes with its last block. */
  readonly deletionTimeMs: number | undefined;
  /** Why Calico's pool controller keeps the pool out of use (`CIDROverlap`); undefined when it does not. */
  readonly notAllocatable: string | undefined;
  readonly createTimeMs: number;
  readonly ipipMode: EncapsulationMode;
  readonly vxlanMode: EncapsulationMode;
  /** Whether what pods send out of all pools leaves with the node's address. */
  readonly natOutgoing: boolean;
  readonly disableBgpExport: boolean;
  /** Which nodes the pool serves, in Calico's selector language; empty for all. */
  readonly nodeSelector: string;
  /** Which namespaces the pool serves, in Calico's selector language; empty for all. */
  readonly namespaceSelector: string;
  /** What the pool's addresses may be used for; pods need `Workload`. */
  readonly allowedUses: readonly string[];
  /** A manual pool serves only requests that name it. */
  readonly assignmentMode: 'Automatic' | 'Manual';
}

/** When packets to a pool's addresses on other nodes travel in a tunnel. */
export type EncapsulationMode = 'Never' | 'Always' | 'CrossSubnet';

/** What holds for all allocations. Stored under Calico's IPAM config key; while that is missing, the defaults hold. */
export interface IpamConfig {
  /** Nodes take addresses from their own blocks alone. */
  readonly strictAffinity: boolean;
  /** Nodes may claim blocks of themselves. */
  readonly autoAllocateBlocks: boolean;
  /** Blocks that a node may have per family in the pools that serve it; 0 for any number (Calico's built-in cap is 20). */
  readonly maxBlocksPerHostCount: number;
  /** How long a released address is kept from reuse, in seconds; not above 0: not at all. */
  readonly cooldownSeconds: number;
}

/** What Calico's tools say of the datastore as a whole. Never written. */
export interface ClusterInformation {
  /** Whether they have locked it, as for a migration. */
  readonly isLocked: boolean;
}

/** Addresses that are never given out unless asked for by themselves. */
export interface Reservation {
  readonly name: string;
  readonly uid: string;
  readonly createTimeMs: number;
  /** Host bits are cut off; addresses are prefixes of full length. What cannot be read is left out, as with Calico. */
  readonly prefixes: readonly Prefix[];
}

/** Kinds of a node's tunnels, by the `type` among the attributes of their addresses. */
export type TunnelKind =
  | 'ipipTunnelAddress'
  | 'vxlanTunnelAddress'
  | 'vxlanV6TunnelAddress'
  | 'wireguardTunnelAddress'
  | 'wireguardV6TunnelAddress';

/** A node's address with the subnet it is in: the host bits of `address`, cut at `length`, are the subnet. */
export interface NodeAddress {
  /** Of full length: /32 or /128. */
  readonly address: Prefix;
  /** Prefix length of the subnet in bits. */
  readonly subnetBits: number;
}

/** The node's end of a tunnel. */
export interface Tunnel {
  /** Of full length: /32 or /128. */
  readonly address: Prefix;
}

/** A network interface of a node that others may need to know. */
export interface NodeInterface {
  readonly name: string;
  readonly addresses: readonly NodeAddress[];
}

export interface Node {
  readonly name: string;
  readonly uid: string;
  readonly createTimeMs: number;
  /** When its deletion began, in epoch milliseconds: it gets no address any more, and gives back all it holds. */
  readonly deletionTimeMs: number | undefined;
  readonly labels: Readonly<Record<string, string>>;
  /** The labels that the node itself gave last. Where `labels` says otherwise, an operator wanted it so. */
  readonly registeredLabels: Readonly<Record<string, string>>;
  readonly ipv4: NodeAddress | undefined;
  readonly ipv6: NodeAddress | undefined;
  readonly tunnels: ReadonlyMap<TunnelKind, Tunnel>;
  /** MAC addresses of its VXLAN devices, where they are known; also before the device has an address. */
  readonly tunnelMacs: ReadonlyMap<TunnelKind, Mac>;
  readonly interfaces: readonly NodeInterface[];
  /** BGP autonomous system number; undefined for the cluster's. Never written. */
  readonly asNumber: number | undefined;
}

/** A past allocation: who held an address, and from when to when. Written with the release, never changed. */
export interface HistoryEntry {
  /** Of full length: /32 or /128. */
  readonly address: Prefix;
  readonly block: Prefix;
  readonly handleId: string | undefined;
  readonly owner: Readonly<Record<string, string>>;
  /** Undefined where the attributes do not tell it. */
  readonly allocatedAtMs: number | undefined;
  readonly releasedAtMs: number;
  /** Sequence number of the allocation; with the address it names it. */
  readonly sequenceNumber: bigint;
}

/** The Kubernetes pod behind an endpoint. */
export interface PodIdentity {
  readonly namespace: string;
  readonly name: string;
  /** Empty when the runtime did not pass it on. */
  readonly uid: string;
}

/** Tells one network namespace from every other that ever was on the node. */
export interface NetnsIdentity {
  readonly bootId: string;
  readonly inode: bigint;
}

/** An address that an endpoint holds, and the allocation it came from. */
export interface EndpointAddress {
  /** Of full length: /32 or /128. */
  readonly address: Prefix;
  readonly block: Prefix;
  readonly poolName: string;
  readonly sequenceNumber: bigint;
}

/** What an attachment was given. Stored as a Calico workload endpoint, whose key the attachments of a pod's interface share. */
export interface Endpoint {
  readonly attachment: Attachment;
  /** Empty where an earlier release made it. */
  readonly uid: string;
  /** When the attachment got its first address, in epoch milliseconds; undefined where an earlier release made it. */
  readonly createTimeMs: number | undefined;
  readonly nodeName: string;
  readonly pod: PodIdentity | undefined;
  readonly addresses: readonly EndpointAddress[];
  readonly mac: Mac;
  readonly hostInterfaceName: string;
  readonly netns: NetnsIdentity | undefined;
  /**
   * The endpoints whose key this one took over, the latest first, until they are released: with the release of this one the key is theirs
   * again. Never empty; of another writer's there is at most one, the last. They have no such list themselves.
   */
  readonly replaced?: readonly AnyEndpoint[] | undefined;
}

/** An endpoint that another writer keeps, such as Calico's own plugin. What it does not say, or cannot be read, is empty. */
export interface ForeignEndpoint {
  readonly nodeName: string;
  readonly containerId: string;
  /** Name of its interface inside the container. */
  readonly interfaceName: string;
  /** Name of its pod; empty outside Kubernetes. */
  readonly podName: string;
  /** Of full length: /32 or /128. */
  readonly addresses: readonly Prefix[];
  readonly uid: string;
  /** In epoch milliseconds. */
  readonly createTimeMs: number | undefined;
  readonly mac: string;
  readonly hostInterfaceName: string;
  /** Its stored text, for putting it back. */
  readonly stored: string;
}

/** An endpoint of Podwire's, or of another writer. */
export type AnyEndpoint =
  | { readonly kind: 'endpoint'; readonly value: Endpoint }
  | { readonly kind: 'foreignEndpoint'; readonly value: ForeignEndpoint };

/** What a caller asks of Allocate. */
export interface AllocationRequest {
  readonly attachment: Attachment;
  readonly nodeName: string;
  readonly pod: PodIdentity | undefined;
  readonly netns: NetnsIdentity | undefined;
  /** At least one, none twice. */
  readonly families: readonly Family[];
  /** Addresses wanted by themselves, at most one of a family, each of one of the families. */
  readonly addresses: readonly Address[];
  /** Names or CIDRs of pools to take from, in this order. A family of which there is none here gets one that selectors decide. */
  readonly pools: readonly string[];
  /** More about some of the pools; about the others, that the pod's author chose them. */
  readonly poolChoices: readonly PoolChoice[];
  /** What else the pod's author asked for. Only whether it is allowed depends on it. */
  readonly requests: PodRequests;
  /** Of the pod's namespace; empty where they are not known. */
  readonly namespaceLabels: Readonly<Record<string, string>>;
  /** Whether it is asked for whichever namespace, which only an explanation is. Default: false. */
  readonly isAnyNamespace?: boolean | undefined;
  /** Blocks per family that the node may have in the pools that serve; 0 for what the configuration says. */
  readonly maxBlocksCount: number;
  readonly unknownNodes: UnknownNodes;
}

/** What a caller of Allocate says; the rest is the service's. */
export type AskedAllocation = Omit<AllocationRequest, 'unknownNodes'>;

/** What becomes of a request for a node that is not registered. */
export type UnknownNodes =
  | { readonly policy: 'refuse' }
  /** The node's record is made with the allocation, without labels and with this UID. */
  | { readonly policy: 'register'; readonly uid: string };

/** Names one allocation of an address, and no later one. */
export interface AllocatedAddress {
  /** Address without prefix length, in canonical form (`10.65.0.7`). */
  readonly address: string;
  readonly sequenceNumber: bigint;
}

/** A Kubernetes pod. */
export interface PodName {
  readonly namespace: string;
  readonly name: string;
  /** Empty if the runtime did not pass it on. */
  readonly uid: string;
}

/** The network namespace of an allocation, unique over the lifetime of the node. */
export interface NetnsIdentity {
  /** Identity of the node's boot (proc(5), /proc/sys/kernel/random/boot_id). */
  readonly bootId: string;
  /** Inode number of the namespace. */
  readonly inode: bigint;
}

/** The allocation of an attachment's addresses in podwire-ipam, as the node records it. */
export interface RecordedAllocation {
  /** All addresses of the attachment. */
  readonly addresses: readonly AllocatedAddress[];
  /** The node's name in the request. */
  readonly nodeName: string;
  readonly pod: PodName | undefined;
  /** Whether podwire-ipam has recorded it for the attachment. Until then the addresses are leases of the node. */
  readonly isBound: boolean;
}

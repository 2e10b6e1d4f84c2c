import type { Prefix } from '@podwire/shared/net/prefix';

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

/** Addresses that are allocated only on explicit request. */
export interface Reservation {
  readonly name: string;
  readonly uid: string;
  readonly createTimeMs: number;
  /** Host bits are cut off; addresses are prefixes of full length. What cannot be read is left out, as with Calico. */
  readonly prefixes: readonly Prefix[];
}

/** What holds while none is stored, as with Calico. */
export const DEFAULT_CONFIG: IpamConfig = {
  strictAffinity: false,
  autoAllocateBlocks: true,
  maxBlocksPerHostCount: 0,
  cooldownSeconds: 0,
};

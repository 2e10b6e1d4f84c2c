import type { Prefix } from '@podwire/shared/net/prefix';

/** Settings of all allocations. Stored under Calico's IPAM config key; without it the defaults apply. */
export interface IpamConfig {
  /** Nodes take addresses only from their own blocks. */
  readonly strictAffinity: boolean;
  /** Nodes claim blocks automatically. */
  readonly autoAllocateBlocks: boolean;
  /** Blocks that a node may have per family in the pools that serve it; 0 for any number (Calico's built-in cap is 20). */
  readonly maxBlocksPerHostCount: number;
  /** Cool-down of a released address before its reuse, in seconds; none for 0 and below. */
  readonly cooldownSeconds: number;
}

/** Addresses that are allocated only on explicit request. */
export interface Reservation {
  readonly name: string;
  readonly uid: string;
  readonly createTimeMs: number;
  /** Prefixes without host bits; addresses are prefixes of full length. Unreadable entries are left out, as with Calico. */
  readonly prefixes: readonly Prefix[];
}

/** The settings while none are stored, as with Calico. */
export const DEFAULT_CONFIG: IpamConfig = {
  strictAffinity: false,
  autoAllocateBlocks: true,
  maxBlocksPerHostCount: 0,
  cooldownSeconds: 0,
};

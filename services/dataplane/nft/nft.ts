import type { JsonObject, NftCommand, TableName } from './table.js';

/** A filter chain of any program that packets of pods pass on their way through the node. */
export interface BaseChain {
  readonly table: TableName;
  readonly name: string;
  readonly hook: 'prerouting' | 'forward' | 'postrouting';
}

/**
 * The node's nftables. Implementations: the `nft` program, and memory (the fake); both pass `testing/contracts/nft-contract.ts`.
 *
 * Every method fails with KERNEL_UNSUPPORTED when the program or the kernel feature is missing, and with KERNEL_REFUSED when
 * nftables refuse or time out; both carry its own text.
 */
export interface Nft {
  /**
   * Reads one table (`nft -j -n list table FAMILY NAME`): protocols as numbers.
   * Result: its objects as nft lists them, complete; undefined when there is no such table. Idempotent.
   */
  read(table: TableName): Promise<readonly JsonObject[] | undefined>;

  /** Reads the filter chains of all tables that forwarded packets pass (`nft list chains`). Idempotent. */
  forwardChains(): Promise<readonly BaseChain[]>;

  /**
   * Applies commands as one transaction (`nft -j -f -`).
   * Result: all of it is in force, or none when it fails. As idempotent as the commands: adding an existing object succeeds,
   * deleting a missing one fails.
   */
  apply(commands: readonly NftCommand[]): Promise<void>;
}

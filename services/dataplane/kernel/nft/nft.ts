import type { JsonObject, NftCommand, TableName } from '../../filters/table.js';

/**
 * The node's nftables. Implementations: the `nft` program, and memory (the fake); both pass `nft.contract.ts`.
 *
 * Every method fails with KERNEL_UNSUPPORTED when the program or the kernel's part is missing, and with KERNEL_REFUSED when
 * nftables refuse or do not answer in time; both carry its own text.
 */
export interface Nft {
  /**
   * Reads one table (`nft -j -n list table FAMILY NAME`): names of protocols as numbers.
   * Result: its objects as nft shows them, complete; undefined when there is no such table. Idempotent.
   */
  read(table: TableName): Promise<readonly JsonObject[] | undefined>;

  /**
   * Carries out commands as one transaction (`nft -j -f -`).
   * Result: all of it is in force, or none when it fails. Idempotent as far as the commands are: adding what is there is, deleting what is not there fails.
   */
  apply(commands: readonly NftCommand[]): Promise<void>;
}

import type { ElementsChange, JsonObject, NftCommand, TableName } from './table.js';

/** Detail of the failure of a run of nft that did not end by itself, and so refuses nothing. */
export const NO_VERDICT_DETAIL = 'withoutVerdict';

/** A filter chain of any program that packets of pods pass on their way through the node. */
export interface BaseChain {
  readonly table: TableName;
  readonly name: string;
  readonly hook: 'prerouting' | 'forward' | 'postrouting';
}

/**
 * Rules and tables of the node's nftables. Every method fails with KERNEL_UNSUPPORTED when the program or the kernel feature is
 * missing, and with KERNEL_REFUSED when nftables refuse or time out; both carry its own text.
 */
export interface NftProgram {
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

/**
 * The node's nftables. Implementations: the program `nft` and netlink together, and memory (the fake); both pass
 * `testing/contracts/nft-contract.ts`. Every method fails like the methods of {@link NftProgram}.
 */
export interface Nft extends NftProgram {
  /**
   * Changes elements of one table in one transaction, without the program: 0.1 ms. Deletes first, as ranges must not overlap.
   * Result: all changes are in force, or none when it fails: a missing table, set or element, or another value of a key.
   * @returns the number of the transaction; undefined if it changed nothing
   */
  changeElements(table: TableName, changes: readonly ElementsChange[]): Promise<number | undefined>;

  /** Number of the latest transaction of any program in any table. */
  latestTransaction(): Promise<number>;

  /** Reports transactions of any program that change a table, from the moment when the promise resolves. */
  watch(table: TableName, watcher: TableWatcher): Promise<TableWatch>;
}

/** Receives reports about one table. Neither function may throw. */
export interface TableWatcher {
  /**
   * @param transaction - its number; undefined: some reports were lost
   * @param isDeleted - whether it deleted the table and made no new one
   */
  onChange(transaction: number | undefined, isDeleted: boolean): void;
  /** The reports end. */
  onEnd(): void;
}

/** A packet that a rule has logged. */
export interface LoggedPacket {
  readonly prefix: string;
  /** Interfaces of the node by name; undefined: gone, or none. */
  readonly input: string | undefined;
  readonly output: string | undefined;
  /** The packet from its IP header on, cut. */
  readonly bytes: Buffer;
}

/** Packets that rules log. */
export interface PacketLog {
  /**
   * Reports the packets that are logged to a group, from the moment when the promise resolves.
   * Errors: KERNEL_REFUSED, also while another program receives the group.
   */
  watch(options: PacketGroup, watcher: PacketWatcher): Promise<TableWatch>;
}

export interface PacketGroup {
  readonly group: number;
  /** Bytes of each packet at most. */
  readonly copyBytes: number;
}

/** No function may throw. */
export interface PacketWatcher {
  onPacket(packet: LoggedPacket): void;
  /** The kernel had more packets than this process read. */
  onLost(): void;
  /** The reports end, with the cause. */
  onEnd(error: unknown): void;
}

export interface TableWatch {
  /** Ends the reports. Idempotent. */
  close(): void;
}

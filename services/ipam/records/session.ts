import type { Address } from '@podwire/shared/net/address';

/**
 * A node's session: the machine, boot and process that may act for the node. All calls of a node compare the record, so
 * that a call of an earlier session is never executed, whenever it arrives. Podwire's own record.
 */
export interface NodeSession {
  /** Name of the node. */
  readonly name: string;
  /** Identity of the machine, the same after a reboot. */
  readonly machineId: string;
  /** Identity of the node's boot (proc(5), /proc/sys/kernel/random/boot_id). */
  readonly bootId: string;
  /** Rises with each opening. */
  readonly generation: number;
  /** The node's address, for messages about two machines with one name; empty if unknown. */
  readonly address: string;
  /** Rises with each write of the record. */
  readonly revision: number;
  /** When the node was last heard of, in epoch milliseconds, for messages. Calls within a minute do not renew it. */
  readonly heardAtMs: number;
  /**
   * All unbound leases of the node. No other holder is offered one of these addresses, even if its block says that it
   * is free because another writer released it.
   */
  readonly leases: readonly ListedLease[];
  /**
   * The machines that lost the node's name to another machine. Such a machine may be cut off from podwire-ipam while its
   * pods run, so its allocations stay for a time.
   */
  readonly displaced: readonly DisplacedMachine[];
  /** When the node last reported its inventory, in epoch milliseconds; undefined if it never did. */
  readonly reportedAtMs: number | undefined;
  /** ID of the store epoch ({@link StoreEpoch}) that the node reported its inventory in; empty if in none. */
  readonly epoch: string;
  /**
   * Addresses of pods in the node's last inventory that have another holder in the datastore. No further holder is
   * offered one that becomes free.
   */
  readonly conflicts: readonly AddressConflict[];
}

/** A machine that lost its node's name to another one. */
export interface DisplacedMachine {
  readonly machineId: string;
  /** Its boot at that time. */
  readonly bootId: string;
}

/** An unbound lease. */
export interface ListedLease {
  readonly address: Address;
  readonly sequenceNumber: bigint;
}

/** An address of a pod on the node that another holder has in the datastore. Texts for operators. */
export interface AddressConflict {
  readonly address: Address;
  /** The attachment on the node, with its pod. */
  readonly attachment: string;
  /** Holder of the address in the datastore, with its node. */
  readonly holder: string;
}

/** A node whose session has not changed for this long counts as not running, in milliseconds. */
export const ALIVE_MS = 4 * 60_000;

/**
 * How long a node may give leases to pods after it asked for them, in milliseconds. The node measures it by its monotonic
 * clock. podwire-ipam does not free the leases afterwards: the node may have given them to pods that it could not bind.
 */
export const LEASE_VALID_MS = 3_600_000;

/** How long the allocations of a displaced machine stay, in milliseconds: longer than its leases are valid. */
export const DISPLACED_MS = LEASE_VALID_MS + 300_000;

/**
 * A period in which the datastore only went forward. A new one begins when the datastore was restored from a backup.
 * Until the nodes have reported in it what they hold, the datastore is not trusted to know every holder.
 */
export interface StoreEpoch {
  readonly id: string;
  /** ID of the last import into the datastore when the epoch began; empty for none. */
  readonly importId: string;
  /**
   * `first`: nothing was restored, and no node is awaited. `waiting`: new addresses wait for the nodes' reports. `waited`:
   * they no longer do, but blocks of nodes without a report are left to these.
   */
  readonly phase: 'first' | 'waiting' | 'waited';
}

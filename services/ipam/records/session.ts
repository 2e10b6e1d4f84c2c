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
  /** When the node was last heard of, in epoch milliseconds. Calls within a minute of it do not renew it. */
  readonly heardAtMs: number;
  /**
   * All unbound leases of the node. No other holder is offered one of these addresses, even if its block says that it
   * is free because another writer released it.
   */
  readonly leases: readonly ListedLease[];
  /** The machine that had the node's name before, if this one took the name over; absent if none did. */
  readonly displaced?: DisplacedMachine | undefined;
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

/**
 * A machine that another one replaced after a silence. It may be cut off, with pods and leases that no other holder may get:
 * what was allocated for it stays for a time.
 */
export interface DisplacedMachine {
  /** Its last boot. */
  readonly bootId: string;
  /** When it was displaced, in epoch milliseconds. */
  readonly sinceMs: number;
  /** Until then its allocations stay, in epoch milliseconds. */
  readonly untilMs: number;
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

/** A node of which nothing was heard for this long counts as not running, in milliseconds. */
export const ALIVE_MS = 4 * 60_000;

/** Whether the node runs, as far as podwire-ipam knows. A time in the future comes from another replica's clock. */
export function isAlive({ heardAtMs }: Pick<NodeSession, 'heardAtMs'>, nowMs: number): boolean {
  return nowMs - heardAtMs < ALIVE_MS;
}

/**
 * How long a node may give leases to pods after it asked for them, in milliseconds. The node measures it by its monotonic
 * clock. podwire-ipam does not free the leases afterwards: the node may have given them to pods that it could not bind.
 */
export const LEASE_VALID_MS = 3_600_000;

/** For the difference between clocks, in milliseconds. */
const CLOCK_MARGIN_MS = 300_000;

/** The machine of a session that another machine replaces. */
export function displace({ bootId, heardAtMs }: NodeSession, nowMs: number): DisplacedMachine {
  return { bootId, sinceMs: nowMs, untilMs: Math.max(heardAtMs, nowMs) + LEASE_VALID_MS + CLOCK_MARGIN_MS };
}

/**
 * A period in which the datastore only went forward. A new one begins when the datastore was restored from a backup.
 * Until the nodes known to run have reported in it what they hold, the datastore is not trusted to know every holder.
 */
export interface StoreEpoch {
  readonly id: string;
  /** In epoch milliseconds. */
  readonly startedAtMs: number;
  /** ID of the last import into the datastore when the epoch began; empty for none. */
  readonly importId: string;
  /**
   * Nodes that were heard of since this time, in epoch milliseconds, were known to run when the epoch began. Undefined
   * for the first epoch, which awaits no node.
   */
  readonly heardSinceMs: number | undefined;
}

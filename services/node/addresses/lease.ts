import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import type { Family } from '@podwire/shared/net/address';

/** An address that podwire-ipam has lent to this node, and that no pod has. */
export interface Lease extends AllocatedAddress {
  /** Empty if it is unknown or was deleted since. */
  readonly poolName: string;
}

export function familyOf({ address }: Pick<Lease, 'address'>): Family {
  return address.includes(':') ? 6 : 4;
}

/** How many unbound leases of a family the node keeps. */
export interface LeaseMarks {
  /** A refill begins when this many are left. */
  readonly lowCount: number;
  /** A refill ends with this many; 0 turns leasing off. */
  readonly highCount: number;
}

/** How long bindings and returns are collected, so that one transaction of podwire-ipam carries many. */
export interface SettlementInterval {
  /** Time without a further pod, in milliseconds. */
  readonly quietMs: number;
  /** The longest wait, in milliseconds. */
  readonly longestMs: number;
}

/** Change that podwire-ipam has not recorded yet. */
export interface Unsettled {
  /** Attachments whose addresses are not recorded for them. */
  readonly unboundCount: number;
  /** Attachments without a wire whose addresses are still allocated. */
  readonly unreturnedCount: number;
  /** Age of the oldest one, in milliseconds; 0 if there is none. */
  readonly oldestMs: number;
}

import type { Attachment } from '@podwire/shared/attachment/attachment';
import { parseJson } from '@podwire/shared/json/parse';
import { parseAddress, type Family } from '@podwire/shared/net/address';
import { z } from 'zod';

import type { AllocatedAddress, AttachmentRecord } from '../records/record.js';

/** An address that podwire-ipam has lent to this node, and that no pod had since. */
export interface Lease extends AllocatedAddress {
  /** Empty if the pool was deleted since. */
  readonly poolName: string;
}

export function familyOf({ address }: Pick<Lease, 'address'>): Family {
  return address.includes(':') ? 6 : 4;
}

/** Names one allocation of an address, for sets and maps. */
export function allocationKey({ address, sequenceNumber }: AllocatedAddress): string {
  return `${address}#${sequenceNumber}`;
}

/** A lease as podwire-ipam lists it. */
export interface ListedLease extends Lease {
  /** Whether a pod without requests would no longer get this address. */
  readonly isOutdated: boolean;
}

export interface LeaseListing {
  /** All unbound leases of the node and family, in the order in which to use them. */
  readonly leases: readonly ListedLease[];
  /** Why there are fewer than wanted; empty if there are not. */
  readonly explanation: string;
}

/** The addresses of an attachment without a record, whose interface is in the kernel. */
export interface AdoptedAddresses {
  readonly attachment: Attachment;
  readonly addresses: readonly AllocatedAddress[];
}

/**
 * The node's leases in podwire-ipam. Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED. All are
 * idempotent.
 */
export interface LeaseBook {
  /** Makes the node hold this many unbound leases of a family, if there are enough. 0 lists them. */
  lease(family: Family, count: number, signal: AbortSignal): Promise<LeaseListing>;
  /**
   * Records the allocations of attachments.
   * @returns for each, why it was refused; undefined if it is recorded
   */
  bind(records: readonly AttachmentRecord[], signal: AbortSignal): Promise<(string | undefined)[]>;
  /** Records the addresses of an attachment without a record. @returns why it was refused; undefined if it is recorded */
  adopt(adopted: AdoptedAddresses, signal: AbortSignal): Promise<string | undefined>;
  /**
   * Frees the addresses of dead records.
   * @returns for each, whether none of its addresses is left
   */
  return(records: readonly AttachmentRecord[], signal: AbortSignal): Promise<boolean[]>;
  /** Frees unbound leases. */
  returnLeases(leases: readonly Lease[], signal: AbortSignal): Promise<void>;
}

/** What podwire-ipam has not recorded yet. */
export interface Unsettled {
  /** Attachments whose addresses are still leases. */
  readonly unboundCount: number;
  /** Attachments without a wire whose addresses are still allocated. */
  readonly unreturnedCount: number;
  /** Age of the oldest one, in milliseconds; 0 if there is none. */
  readonly oldestMs: number;
  /** Attachments whose binding podwire-ipam refused, with the reason. */
  readonly refused: ReadonlyMap<string, string>;
}

/** The node's leases as the next process finds them. */
export interface StoredLeases {
  /** Without an attachment, unless a record or an interface in the kernel says otherwise. */
  readonly leases: readonly Lease[];
  /** On their way to podwire-ipam: a call of this process may return them at any moment. */
  readonly withdrawn: readonly Lease[];
}

export const NO_LEASES: StoredLeases = { leases: [], withdrawn: [] };

const LEASES = z.array(
  z.strictObject({
    address: z.string().refine((text) => parseAddress(text) !== undefined),
    sequenceNumber: z
      .string()
      .regex(/^\d{1,20}$/)
      .transform(BigInt),
    poolName: z.string(),
  }),
);

/** The file, as JSON. */
const STORED = z.strictObject({ version: z.literal(1), bootId: z.string(), leases: LEASES, withdrawn: LEASES });

export function encodeLeases({ leases, withdrawn }: StoredLeases, bootId: string): string {
  return JSON.stringify({ version: 1, bootId, leases: leases.map(encode), withdrawn: withdrawn.map(encode) });
}

function encode({ address, sequenceNumber, poolName }: Lease): object {
  return { address, sequenceNumber: sequenceNumber.toString(), poolName };
}

/** @returns undefined for any other text, and for leases of another boot */
export function decodeLeases(text: string, bootId: string): StoredLeases | undefined {
  const parsed = STORED.safeParse(parseJson(text));
  if (!parsed.success || parsed.data.bootId !== bootId) return undefined;
  const { leases, withdrawn } = parsed.data;
  return { leases, withdrawn };
}

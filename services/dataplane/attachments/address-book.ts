import type { Attachment } from '@podwire/shared/attachment/attachment';

/** An address that IPAM has given, and which of its allocations that was. */
export interface HeldAddress {
  /** Without prefix length. */
  readonly address: string;
  readonly sequenceNumber: bigint;
}

/** What IPAM has recorded for an attachment. */
export interface HeldEndpoint {
  readonly attachment: Attachment;
  readonly addresses: readonly HeldAddress[];
  /** The namespace that the addresses were asked for; undefined when that was not told. */
  readonly netns: { readonly bootId: string; readonly inode: bigint } | undefined;
  /** Epoch milliseconds; undefined where an earlier release made the endpoint. */
  readonly createdAtMs: number | undefined;
}

/** What is to be given back of an endpoint, as it was read. */
export type ReleasedEndpoint = Pick<HeldEndpoint, 'attachment' | 'addresses' | 'netns'>;

/** What the dataplane wants from podwire-ipam. Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED. */
export interface AddressBook {
  /** @returns undefined when the attachment holds nothing */
  endpoint(attachment: Attachment, signal: AbortSignal): Promise<HeldEndpoint | undefined>;

  /** Every endpoint of a node. Complete, or a failure. */
  endpointsOf(nodeName: string, signal: AbortSignal): Promise<readonly HeldEndpoint[]>;

  /**
   * Gives back exactly these allocations, as long as they are recorded for this namespace, where one is told: an address that the
   * attachment's container holds by a later allocation, or for another namespace since it was added again, stays. Idempotent.
   * @returns the addresses that were given back by this call
   */
  release(endpoint: ReleasedEndpoint, signal: AbortSignal): Promise<readonly string[]>;
}

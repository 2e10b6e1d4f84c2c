import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';

import type { Condition } from '../conditions/conditions.js';
import type { AttachmentRecord } from '../records/record.js';
import type { LostAddress, SharedAddress } from '../records/registry.js';
import type { Difference } from '@podwire/shared/attachment/pod-network';
import type { ObservedLink } from '../wiring/observed.js';

/** Rejects an operation that would take an address from its latest holder. @throws Failure ROUTE_TAKEN when an address is lost */
export function rejectLostAddresses([lost]: readonly LostAddress[]): void {
  if (!lost) return;
  const address = formatAddress(lost.address);
  const message = `${address} was assigned to ${lost.holder} since; run podwirectl who ${address} and delete the pod that it does not report`;
  throw new Failure('ROUTE_TAKEN', message, { details: { route: address, interface: '' } });
}

/** Conditions for addresses that several of the node's pods have. */
export function addressConflicts(shared: readonly SharedAddress[]): Condition[] {
  return shared.map(({ address, holder, earlierHolders }) => ({
    reason: 'AddressShared',
    message:
      `${address} was assigned to ${holder} while ${earlierHolders.join(', ')} had it, for example after a restore of IPAM’s datastore. ` +
      `The node routes it to ${holder}; the other pods cannot use it. Run podwirectl who ${address} and delete the pod that it does not report`,
  }));
}

/** A pod that is wired. */
export interface AttachResult {
  readonly host: ObservedLink;
  readonly pod: ObservedLink;
  /** Number of changes made; 0 when the kernel already matched. */
  readonly changes: number;
}

/** The wire to remove. */
export interface DetachRequest {
  readonly attachment: Attachment;
  readonly hostInterfaceName: string;
  /** Path of the pod's namespace, if the caller knows it. The path may be gone, or belong to another pod. */
  readonly netns?: string | undefined;
}

/** Result of repairing a recorded attachment. */
export type RepairResult =
  /** It matches its record; these differences were repaired. */
  | { readonly outcome: 'matches'; readonly differences: readonly Difference[] }
  /** The path has no namespace, or the namespace cannot be identified; nothing was changed. */
  | { readonly outcome: 'namespace-gone' }
  /** The whole wire is gone, and IPAM must confirm the addresses first; nothing was changed. */
  | { readonly outcome: 'wire-lost'; readonly record: AttachmentRecord }
  /** It has no record, or its detach has begun. */
  | { readonly outcome: 'not-attached' };

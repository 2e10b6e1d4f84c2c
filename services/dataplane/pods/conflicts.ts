import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';

import type { Condition } from '../conditions/conditions.js';
import type { Difference } from '../wiring/difference.js';
import type { ObservedLink } from '../wiring/observed.js';
import type { AttachedLink } from './kernel.js';
import type { AttachmentRecord } from './record.js';
import type { LostAddress, SharedAddress } from './registry.js';

/** Takes no address from the attachment that was given it last. @throws Failure ROUTE_TAKEN where one is lost */
export function refuseLost([lost]: readonly LostAddress[]): void {
  if (!lost) return;
  const address = formatAddress(lost.address);
  const message = `${address} was given to ${lost.holder} since: delete the one of the two that podwirectl who ${address} does not name`;
  throw new Failure('ROUTE_TAKEN', message, { details: { route: address, interface: '' } });
}

/** What an operator should know of addresses that several of the node's pods have. */
export function addressConflicts(shared: readonly SharedAddress[]): Condition[] {
  return shared.map(({ address, holder, others }) => ({
    reason: 'AddressShared',
    message:
      `${address} was given to ${holder} while ${others.join(', ')} had it, as may be where IPAM's datastore was restored: the node leads it ` +
      `to the former, and the latter neither gets nor sends packets with it. Delete the pod that podwirectl who ${address} does not name`,
  }));
}

export interface Page {
  readonly limit: number;
  /** Only links whose names come after this one; empty for the first page. */
  readonly after: string;
}

export interface AttachedPage {
  readonly links: readonly AttachedLink[];
  /** Name of the last link when others follow. */
  readonly last: string | undefined;
}

/** @param all - in the order of the links' names */
export function pageOf(all: readonly AttachedLink[], { limit, after }: Page): AttachedPage {
  const following = all.filter(({ link }) => link.name > after);
  const links = following.slice(0, limit);
  return { links, last: following.length > limit ? links.at(-1)?.link.name : undefined };
}

/** A pod that is wired. */
export interface Attached {
  readonly host: ObservedLink;
  readonly pod: ObservedLink;
  /** Number of changes that were made; 0 when everything was as wanted. */
  readonly changes: number;
}

/** The wire that is to go. */
export interface Detachment {
  readonly attachment: Attachment;
  readonly hostInterfaceName: string;
  /** Path of the pod's namespace, where the caller knows it; by then it may lead nowhere, or to another pod's. */
  readonly netns?: string | undefined;
}

/** What came of looking after an attachment that is recorded. */
export type Mended =
  /** It is as recorded now; these were the differences. */
  | { readonly outcome: 'as-wanted'; readonly differences: readonly Difference[] }
  /** Its namespace is not at the path any more, or cannot be told from another one; nothing was changed. */
  | { readonly outcome: 'namespace-gone' }
  /** Its whole wire is gone, and its addresses are IPAM's to confirm first; nothing was changed. */
  | { readonly outcome: 'wire-lost'; readonly record: AttachmentRecord }
  /** It is not recorded, or is being taken down. */
  | { readonly outcome: 'not-attached' };

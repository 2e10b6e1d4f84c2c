import type { Address } from '@podwire/shared/net/address';
import { ordinalOf } from '@podwire/shared/net/prefix';

import { attachmentOf, holderOf } from './attributes.js';
import { attributesAt } from './block.js';
import { blockOf, unreadableBlockOf } from './block-lists.js';
import { endpointKey, sameNetns, storedEndpoint } from './endpoint.js';
import { giveBack, isHeld, nextBatch } from './give-back.js';
import type { HeldAddress } from './holding.js';
import type { NetnsIdentity } from './records.js';
import type { Decision, View } from './view.js';

/** An address to give back, and whose it has to be. */
export interface AddressRelease {
  readonly address: Address;
  /** The handle that has to hold it; undefined for any, or none. */
  readonly handleId: string | undefined;
  /** The sequence number of the allocation that is meant; undefined for whichever there is. */
  readonly sequenceNumber: bigint | undefined;
  /**
   * The network namespace that the holder's endpoint has to be recorded for: an attachment that is added again keeps its allocation,
   * for another namespace. Undefined for any, or none.
   */
  readonly netns?: NetnsIdentity | undefined;
}

/** Who holds an address. */
export interface AddressHolder {
  /** Undefined when no handle does. */
  readonly handleId: string | undefined;
  readonly owner: Readonly<Record<string, string>>;
  /** What a second owner says of itself; undefined where there is none. */
  readonly alternateOwner?: Readonly<Record<string, string>> | undefined;
  readonly sequenceNumber: bigint;
}

/** What became of one address. */
export type AddressReleaseResult =
  | { readonly state: 'released'; readonly holder: AddressHolder }
  /** Free, cooling down, or in no block: nobody has it. */
  | { readonly state: 'notAllocated' }
  /** It is held, but not as said: it stays with its holder. */
  | { readonly state: 'mismatch'; readonly holder: AddressHolder }
  /** Its block cannot be read, so that nobody knows who holds it: nothing was changed. */
  | { readonly state: 'unreadable' };

export interface AddressReleases {
  /** No address twice. */
  readonly releases: readonly AddressRelease[];
  readonly nowMs: number;
}

/** What one step came to. */
export interface AddressReleaseStep {
  /** One for each of the first releases that were asked for, in their order. */
  readonly results: readonly AddressReleaseResult[];
}

/**
 * Gives back addresses by themselves, as many of the first ones as a transaction takes; ask again for those behind them. Each is
 * judged for itself: one that is somebody else's, or in a block that cannot be read, stays, and hinders no other. Idempotent.
 */
export function continueAddressRelease(view: View, { releases, nowMs }: AddressReleases): Decision<AddressReleaseStep> {
  const judged = releases.map((release) => judge(view, release));
  const wanted = judged.flatMap(({ held, result }) => (held && result.state === 'released' ? [held] : []));
  const batch = nextBatch(view, wanted);
  const next = wanted[batch.length];
  const end = next ? judged.findIndex(({ held }) => held === next) : judged.length;
  return {
    changes: giveBack(view, batch, nowMs),
    outcome: { results: judged.slice(0, end).map(({ result }) => result) },
  };
}

/** The allocation of an address; undefined when nobody holds it. */
export function allocationOf(view: View, address: Address): HeldAddress | undefined {
  const block = blockOf(view, address);
  if (!block) return undefined;
  const ordinal = ordinalOf(block.prefix, address);
  const attributes = attributesAt(block, ordinal);
  return attributes && isHeld(attributes) ? { block, ordinal, attributes } : undefined;
}

export function holderOfAddress({ block, ordinal, attributes }: HeldAddress): AddressHolder {
  const { handleId, owner, alternateOwner } = attributes;
  return { handleId, owner, alternateOwner, sequenceNumber: block.sequenceNumbers[ordinal] ?? 0n };
}

interface Judged {
  readonly held: HeldAddress | undefined;
  readonly result: AddressReleaseResult;
}

function judge(view: View, release: AddressRelease): Judged {
  if (unreadableBlockOf(view, release.address)) return { held: undefined, result: { state: 'unreadable' } };
  const held = allocationOf(view, release.address);
  if (!held) return { held, result: { state: 'notAllocated' } };
  const holder = holderOfAddress(held);
  const isMeant =
    (release.handleId === undefined || release.handleId === holder.handleId) &&
    (release.sequenceNumber === undefined || release.sequenceNumber === holder.sequenceNumber) &&
    (release.netns === undefined || sameNetns(release.netns, netnsOf(view, held)));
  return { held, result: { state: isMeant ? 'released' : 'mismatch', holder } };
}

/**
 * What the holder's endpoint tells. A release that rests on it changes the endpoint, so that it loses its comparison against an
 * allocation that has written another namespace meanwhile.
 */
function netnsOf(view: View, { attributes }: HeldAddress): NetnsIdentity | undefined {
  const attachment = attachmentOf(attributes);
  return attachment && storedEndpoint(view, endpointKey({ attachment, ...holderOf(attributes) }), attachment)?.netns;
}

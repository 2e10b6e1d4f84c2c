import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import type { Address } from '@podwire/shared/net/address';
import { hostPrefix, ordinalOf } from '@podwire/shared/net/prefix';

import { EndpointEdits, namesAllocation, type EndedAllocation } from '../blocks/endpoint-edits.js';
import { replacedBy } from '../blocks/endpoint-key.js';
import type { HeldAddress } from '../blocks/holding.js';
import { blockOf, unreadableBlockOf } from '../blocks/lookup.js';
import { giveBack, isHeld, nextBatch } from '../blocks/release-changes.js';
import { attachmentOf, containerIdsOf, holderOf } from '../records/attributes.js';
import { attributesAt } from '../records/block.js';
import { endpointKey, recordedEndpoint, sameNetns } from '../records/endpoint.js';
import type { Change, Decision, EndpointKey, StoredEndpoint, View } from '../records/view.js';
import type { NetnsIdentity } from './records.js';

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

/** Endpoints that are corrected by one step. */
const ENDPOINTS_PER_STEP = 25;

/**
 * Gives back addresses by themselves, as many of the first ones as a transaction takes; ask again for those behind them. Each is
 * judged for itself: one that is somebody else's, or in a block that cannot be read, stays, and hinders no other. Where a handle and a
 * sequence number name an allocation that has ended already, an endpoint that names it still loses the address. Idempotent.
 */
export function continueAddressRelease(view: View, { releases, nowMs }: AddressReleases): Decision<AddressReleaseStep> {
  const judged = releases.map((release) => judge(view, release));
  const first = judged.find(({ held, result, outdated }) => outdated.length > 0 || isGiven({ held, result }));
  const isCorrection = first !== undefined && first.outdated.length > 0;
  const { changes, end } = isCorrection ? correctEndpoints(view, judged) : giveBackFirst(view, judged, nowMs);
  return { changes, outcome: { results: judged.slice(0, end).map(({ result }) => result) } };
}

interface Step {
  readonly changes: readonly Change[];
  /** How many of the releases are done with it. */
  readonly end: number;
}

function giveBackFirst(view: View, judged: readonly Judged[], nowMs: number): Step {
  const outdatedAt = judged.findIndex(({ outdated }) => outdated.length > 0);
  const among = outdatedAt < 0 ? judged : judged.slice(0, outdatedAt);
  const wanted = among.flatMap((each) => (isGiven(each) && each.held ? [each.held] : []));
  const batch = nextBatch(view, wanted);
  const next = wanted[batch.length];
  const end = next ? among.findIndex(({ held }) => held === next) : among.length;
  return { changes: giveBack(view, batch, nowMs), end };
}

function correctEndpoints(view: View, judged: readonly Judged[]): Step {
  const edits = new EndpointEdits(view, []);
  let count = 0;
  for (const [end, each] of judged.entries()) {
    const isOver = count > 0 && count + each.outdated.length > ENDPOINTS_PER_STEP;
    if (isGiven(each) || isOver) return { changes: edits.changes(), end };
    for (const { key, attachment, allocation } of each.outdated) edits.drop(key, attachment, allocation);
    count += each.outdated.length;
  }
  return { changes: edits.changes(), end: judged.length };
}

function isGiven({ held, result }: Pick<Judged, 'held' | 'result'>): boolean {
  return held !== undefined && result.state === 'released';
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
  /** Endpoints that name the allocation that is meant, which has ended. */
  readonly outdated: readonly Outdated[];
}

interface Outdated {
  readonly key: EndpointKey;
  readonly attachment: Attachment;
  readonly allocation: EndedAllocation;
}

function judge(view: View, release: AddressRelease): Judged {
  if (unreadableBlockOf(view, release.address))
    return { held: undefined, result: { state: 'unreadable' }, outdated: [] };
  const held = allocationOf(view, release.address);
  if (!held) return { held, result: { state: 'notAllocated' }, outdated: outdatedBy(view, release) };
  const holder = holderOfAddress(held);
  const isSame =
    (release.handleId === undefined || release.handleId === holder.handleId) &&
    (release.sequenceNumber === undefined || release.sequenceNumber === holder.sequenceNumber);
  const isMeant = isSame && (release.netns === undefined || sameNetns(release.netns, netnsOf(view, held)));
  if (isMeant) return { held, result: { state: 'released', holder }, outdated: [] };
  return { held, result: { state: 'mismatch', holder }, outdated: isSame ? [] : outdatedBy(view, release) };
}

function outdatedBy(view: View, { address, handleId: handle, sequenceNumber, netns }: AddressRelease): Outdated[] {
  if (handle === undefined || sequenceNumber === undefined) return [];
  const allocation = { address: hostPrefix(address), sequenceNumber };
  return recordedOfHandle(view, handle).flatMap(({ key, value: { attachment, addresses, netns: recorded } }) => {
    const isMeant = netns === undefined || sameNetns(netns, recorded);
    const isNamed = addresses.some((named) => namesAllocation(named, allocation));
    return isMeant && isNamed ? [{ key, attachment, allocation }] : [];
  });
}

/** What is recorded of the attachments of a handle. */
function recordedOfHandle(view: View, handle: string): StoredEndpoint[] {
  const records = containerIdsOf(handle).flatMap((containerId) => [...view.endpointsOfContainer(containerId)]);
  return records.flatMap((record) =>
    [record, ...replacedBy(record)].flatMap((one) =>
      one.kind === 'endpoint' && handleId(one.value.attachment) === handle
        ? [{ key: record.key, value: one.value }]
        : [],
    ),
  );
}

/**
 * What the holder's endpoint tells. A release that rests on it changes the endpoint, so that it loses its comparison against an
 * allocation that has written another namespace meanwhile.
 */
function netnsOf(view: View, { attributes }: HeldAddress): NetnsIdentity | undefined {
  const attachment = attachmentOf(attributes);
  return attachment && recordedEndpoint(view, endpointKey({ attachment, ...holderOf(attributes) }), attachment)?.netns;
}

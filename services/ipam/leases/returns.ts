import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { compareAddresses, formatAddress, type Address } from '@podwire/shared/net/address';
import { ordinalOf, prefixContains } from '@podwire/shared/net/prefix';

import { addressHolder, allocationOf, netnsOf } from '../addresses/addresses.js';
import { attributesFor } from '../addresses/allocate/allocate.js';
import {
  outdatedEndpoints,
  releaseEvaluated,
  type AddressReleaseResult,
  type EvaluatedRelease,
} from '../addresses/release.js';
import { sameAttachment } from '../records/derived-endpoint.js';
import { blockOf, unreadableBlockOf } from '../blocks/lookup.js';
import type { EndingAllocation } from '../blocks/release-changes.js';
import { allocatedAtMs, belongsTo, type NetnsIdentity } from '../records/attributes.js';
import { attributesAt, type HeldAddress } from '../records/block.js';
import { sameNetns } from '../records/endpoint.js';
import { historyEntry } from '../records/history.js';
import { isLease, isLeaseOf, leaseAttributes } from '../records/lease.js';
import type { ListedLease, NodeSession } from '../records/session.js';
import type { Change, Decision, View } from '../records/view.js';
import { beginMs, type AllocationName } from './bindings.js';
import { TAKEN_BACK_PER_STEP } from './leases.js';
import { retakeLeases } from './reallocation.js';
import { requireSession, updateSession, type SessionName } from './session.js';

/** An address that a node gives back. */
export interface AddressReturn {
  readonly allocation: AllocationName;
  /** Last holder of the address, and its end; undefined for a lease that no attachment had. */
  readonly use: AddressUse | undefined;
}

/** The use of an address by an attachment, whether its binding was recorded or not. */
interface AddressUse {
  readonly attachment: Attachment;
  /** The network namespace that had the address; undefined for any. */
  readonly netns: NetnsIdentity | undefined;
  /** When the attachment got the address, in epoch milliseconds by the node's clock; undefined: when it was leased. */
  readonly attachedAtMs: number | undefined;
  /** When the attachment gave the address up, in epoch milliseconds by the node's clock. */
  readonly detachedAtMs: number;
  /** Whether the address stays with the node as an unbound lease, a new allocation. Default: false. */
  readonly isKept?: boolean | undefined;
}

interface ReturnInput {
  readonly nodeName: string;
  readonly session: SessionName;
  /** Returns without duplicate addresses. */
  readonly returns: readonly AddressReturn[];
  readonly nowMs: number;
}

/** The result of one step. */
export interface ReturnStep {
  /** Results of the first returns, in their order. */
  readonly results: readonly AddressReleaseResult[];
  /** Sequence numbers of the node's leases that kept addresses are now, by the results; 0 for all other results. */
  readonly leaseNumbers: readonly bigint[];
  readonly sessionRevision: number;
}

/**
 * Frees addresses of a node, as many of the first ones as fit in a transaction; call again for the rest. An address is
 * freed only if it is the named allocation: an unbound lease of the node, or an address of the attachment that had it.
 * An address of an attachment cools down, unless the node keeps it: then it is allocated again, because the history has one
 * entry of an allocation, and a repeated return must not end the further pod's. Idempotent.
 * @throws Failure SESSION_SUPERSEDED
 */
export function continueReturn(view: View, { nodeName, returns, nowMs, ...rest }: ReturnInput): Decision<ReturnStep> {
  const session = requireSession(view, nodeName, rest.session);
  const vanished = vanishedLeases(view, session, returns);
  if (vanished.length > 0) return takeBack(view, { session, vanished, nowMs });
  const context = { nodeName, bootId: session.bootId, nowMs };
  const evaluated = returns.map((each) => evaluateReturn(view, each, context));
  const { changes, outcome } = releaseEvaluated(view, evaluated, nowMs);
  const done = returns.slice(0, outcome.results.length);
  const ended = unlistedAddresses(session, done, outcome.results);
  const leaseNumbers = done.map((each) => leaseNumberOf(view, changes, each, nodeName));
  const kept = done.flatMap(({ allocation: { address } }, index): ListedLease[] => {
    const [result, sequenceNumber = 0n] = [outcome.results[index], leaseNumbers[index]];
    return result?.state === 'released' && sequenceNumber > 0n ? [{ address, sequenceNumber }] : [];
  });
  const leases = changeList(session.leases, ended, kept);
  const updated = updateSession(view, { session, patch: { leases }, nowMs });
  const isChanged = changes.length > 0 || updated.isWritten;
  return {
    changes: isChanged
      ? [...changes, ...ended.flatMap((address) => expectBlockOf(view, address)), ...updated.changes]
      : [],
    outcome: { ...outcome, leaseNumbers, sessionRevision: updated.revision },
  };
}

/** Listed leases that pods had and another tool released meanwhile. They have to cool down after their pods. */
function vanishedLeases(view: View, { name, leases }: NodeSession, returns: readonly AddressReturn[]): Address[] {
  const node = view.node(name);
  if (!node || node.deletionTimeMs !== undefined) return [];
  const listed = new Set(leases.map(({ address }) => formatAddress(address)));
  return returns.flatMap(({ allocation: { address }, use }) => {
    const isVanished =
      use !== undefined && use.isKept !== true && listed.has(formatAddress(address)) && !allocationOf(view, address);
    return isVanished && !unreadableBlockOf(view, address) ? [address] : [];
  });
}

interface VanishedLeases {
  readonly session: NodeSession;
  readonly vanished: readonly Address[];
  readonly nowMs: number;
}

/** A step without results, so that the next one releases them. Leases that another holder got leave the list. */
function takeBack(view: View, { session, vanished, nowMs }: VanishedLeases): Decision<ReturnStep> {
  const batch = vanished.slice(0, TAKEN_BACK_PER_STEP);
  const { changes, blocks, lost } = retakeLeases(view, session, batch, nowMs);
  const retaken = batch.flatMap((address): ListedLease[] => {
    const block = blocks.find(({ prefix }) => prefixContains(prefix, address));
    const sequenceNumber = block?.sequenceNumbers[ordinalOf(block.prefix, address)] ?? 0n;
    return lost.includes(address) ? [] : [{ address, sequenceNumber }];
  });
  const patch = { leases: changeList(session.leases, lost, retaken) };
  const updated = updateSession(view, { session, patch, nowMs });
  return {
    changes: [...changes, ...updated.changes],
    outcome: { results: [], leaseNumbers: [], sessionRevision: updated.revision },
  };
}

/** The sequence number of the lease that the node keeps of an address; 0 if there is none. */
function leaseNumberOf(
  view: View,
  changes: readonly Change[],
  { allocation: { address }, use }: AddressReturn,
  nodeName: string,
): bigint {
  if (use?.isKept !== true) return 0n;
  const [changed] = changes.flatMap((change) => {
    const isOfBlock = change.type === 'put' && change.record.kind === 'block';
    return isOfBlock && prefixContains(change.record.value.prefix, address) ? [change.record.value] : [];
  });
  const block = changed ?? blockOf(view, address);
  if (!block) return 0n;
  const ordinal = ordinalOf(block.prefix, address);
  const attributes = attributesAt(block, ordinal);
  return attributes && isLeaseOf(nodeName)(attributes) ? (block.sequenceNumbers[ordinal] ?? 0n) : 0n;
}

/** The leases that the list loses: the node returned them without keeping them. */
function unlistedAddresses(
  { leases }: NodeSession,
  returns: readonly AddressReturn[],
  results: readonly AddressReleaseResult[],
): Address[] {
  const listed = new Map(leases.map(({ address, sequenceNumber }) => [formatAddress(address), sequenceNumber]));
  return returns.flatMap(({ allocation: { address, sequenceNumber }, use }, index) => {
    const result = results[index];
    const isLost = result?.state === 'notAllocated' && listed.get(formatAddress(address)) === sequenceNumber;
    const isFreed = result?.state === 'released' && isLease(result.holder) && listed.has(formatAddress(address));
    return (isLost || isFreed) && use?.isKept !== true ? [address] : [];
  });
}

function changeList(
  leases: readonly ListedLease[],
  ended: readonly Address[],
  kept: readonly ListedLease[],
): readonly ListedLease[] {
  if (ended.length === 0 && kept.length === 0) return leases;
  const changed = new Map(leases.map((lease) => [formatAddress(lease.address), lease]));
  for (const address of ended) changed.delete(formatAddress(address));
  for (const lease of kept) changed.set(formatAddress(lease.address), lease);
  return [...changed.values()].sort((a, b) => compareAddresses(a.address, b.address));
}

/** A listed address that was found free leaves the list only if it still is. */
function expectBlockOf(view: View, address: Address): Change[] {
  const value = blockOf(view, address);
  return value ? [{ type: 'expect', record: { kind: 'block', value } }] : [];
}

interface ReturnContext {
  readonly nodeName: string;
  readonly bootId: string;
  readonly nowMs: number;
}

function evaluateReturn(view: View, returned: AddressReturn, context: ReturnContext): EvaluatedRelease {
  const { address, sequenceNumber } = returned.allocation;
  if (unreadableBlockOf(view, address)) return { held: undefined, result: { state: 'unreadable' }, outdated: [] };
  const held = allocationOf(view, address);
  if (!held) return { held, result: { state: 'notAllocated' }, outdated: endedEndpoints(view, returned) };
  const holder = addressHolder(held);
  if (holder.sequenceNumber !== sequenceNumber && !isTakenBack(held, returned, context.nodeName))
    return { held, result: { state: 'mismatch', holder }, outdated: endedEndpoints(view, returned) };
  const ending = endingOf(view, held, { ...returned, ...context });
  if (!ending) return { held, result: { state: 'mismatch', holder }, outdated: [] };
  return { held: ending, result: { state: 'released', holder }, outdated: [] };
}

/**
 * Whether the node took the lease of an ended attachment back after another tool had released it: it has another sequence number,
 * and has to cool down all the same.
 */
function isTakenBack({ attributes }: HeldAddress, { use }: AddressReturn, nodeName: string): boolean {
  return use !== undefined && use.isKept !== true && isLeaseOf(nodeName)(attributes);
}

/** End of the allocation; undefined if it is not the returned one. */
function endingOf(
  view: View,
  held: HeldAddress,
  { use, nodeName, bootId, nowMs }: AddressReturn & ReturnContext,
): EndingAllocation | undefined {
  if (!use) return isLeaseOf(nodeName)(held.attributes) ? { ...held, isUnused: true } : undefined;
  const end = (used: HeldAddress): EndingAllocation => {
    const endedAtMs = endMs(used, use, nowMs);
    // The further pod may have had the address since then.
    const successor = use.isKept === true ? leaseAttributes({ nodeName, bootId, nowMs: endedAtMs }) : undefined;
    return { ...held, entry: historyEntry(used, endedAtMs), successor };
  };
  if (!isLeaseOf(nodeName)(held.attributes)) {
    if (!belongsTo(use.attachment)(held.attributes)) return undefined;
    // An endpoint that a repair wrote again does not name the namespace.
    const netns = netnsOf(view, held);
    if (use.netns && netns && !sameNetns(use.netns, netns)) return undefined;
    return end(held);
  }
  // The return has overtaken the binding.
  const sinceMs = beginMs([held], use.attachedAtMs ?? 0, nowMs);
  const attributes = attributesFor({ attachment: use.attachment, nodeName, pod: undefined }, sinceMs);
  return end({ ...held, attributes });
}

/** The node's clock may differ: a tenure ends neither before it began, nor in the future. */
function endMs({ attributes }: HeldAddress, { detachedAtMs }: AddressUse, nowMs: number): number {
  return Math.max(Math.min(detachedAtMs, nowMs), allocatedAtMs(attributes) ?? 0);
}

/** Endpoints of the attachment that still name the allocation, which has ended. */
function endedEndpoints(view: View, { allocation, use }: AddressReturn): EvaluatedRelease['outdated'] {
  if (!use) return [];
  const { attachment } = use;
  const named = outdatedEndpoints(view, { ...allocation, handleId: handleId(attachment) });
  return named.filter((endpoint) => sameAttachment(endpoint.attachment, attachment));
}

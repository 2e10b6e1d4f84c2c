import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';

import { addressHolder, allocationOf, netnsOf } from '../addresses/addresses.js';
import { attributesFor } from '../addresses/allocate/allocate.js';
import {
  outdatedEndpoints,
  releaseEvaluated,
  type AddressReleaseResult,
  type EvaluatedRelease,
} from '../addresses/release.js';
import { sameAttachment } from '../blocks/holding.js';
import { unreadableBlockOf } from '../blocks/lookup.js';
import type { EndingAllocation } from '../blocks/release-changes.js';
import { allocatedAtMs, belongsTo, type NetnsIdentity } from '../records/attributes.js';
import type { HeldAddress } from '../records/block.js';
import { sameNetns } from '../records/endpoint.js';
import { historyEntry } from '../records/history.js';
import { isLeaseOf } from '../records/lease.js';
import type { Decision, View } from '../records/view.js';
import { beginMs, type AllocationName } from './bindings.js';

/** An address that a node gives back. */
export interface AddressReturn {
  readonly allocation: AllocationName;
  /** Who had the address, and until when; undefined for a lease that no attachment had. */
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
}

interface ReturnInput {
  readonly nodeName: string;
  /** Without duplicate addresses. */
  readonly returns: readonly AddressReturn[];
  readonly nowMs: number;
}

/** The result of one step. */
interface ReturnStep {
  /** Results of the first returns, in their order. */
  readonly results: readonly AddressReleaseResult[];
}

/**
 * Frees addresses of a node, as many of the first ones as fit in a transaction; call again for the rest. An address is
 * freed only if it is the named allocation: an unbound lease of the node, or an address of the attachment that had it.
 * What an attachment had cools down. Idempotent.
 */
export function continueReturn(view: View, { nodeName, returns, nowMs }: ReturnInput): Decision<ReturnStep> {
  const evaluated = returns.map((each) => evaluateReturn(view, each, { nodeName, nowMs }));
  return releaseEvaluated(view, evaluated, nowMs);
}

interface ReturnContext {
  readonly nodeName: string;
  readonly nowMs: number;
}

function evaluateReturn(view: View, returned: AddressReturn, context: ReturnContext): EvaluatedRelease {
  const { address, sequenceNumber } = returned.allocation;
  if (unreadableBlockOf(view, address)) return { held: undefined, result: { state: 'unreadable' }, outdated: [] };
  const held = allocationOf(view, address);
  if (!held) return { held, result: { state: 'notAllocated' }, outdated: endedEndpoints(view, returned) };
  const holder = addressHolder(held);
  if (holder.sequenceNumber !== sequenceNumber)
    return { held, result: { state: 'mismatch', holder }, outdated: endedEndpoints(view, returned) };
  const ending = endingOf(view, held, { ...returned, ...context });
  if (!ending) return { held, result: { state: 'mismatch', holder }, outdated: [] };
  return { held: ending, result: { state: 'released', holder }, outdated: [] };
}

/** How the allocation ends; undefined if it is not the one that is returned. */
function endingOf(
  view: View,
  held: HeldAddress,
  { use, nodeName, nowMs }: AddressReturn & ReturnContext,
): EndingAllocation | undefined {
  if (!isLeaseOf(nodeName)(held.attributes)) {
    if (!use || !belongsTo(use.attachment)(held.attributes)) return undefined;
    // An endpoint that a repair wrote again does not name the namespace.
    const netns = netnsOf(view, held);
    if (use.netns && netns && !sameNetns(use.netns, netns)) return undefined;
    return { ...held, entry: historyEntry(held, endMs(held, use, nowMs)) };
  }
  if (!use) return { ...held, isUnused: true };
  // The return has overtaken the binding.
  const sinceMs = beginMs([held], use.attachedAtMs ?? 0, nowMs);
  const attributes = attributesFor({ attachment: use.attachment, nodeName, pod: undefined }, sinceMs);
  const used = { ...held, attributes };
  return { ...held, entry: historyEntry(used, endMs(used, use, nowMs)) };
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

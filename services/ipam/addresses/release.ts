import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import type { Address } from '@podwire/shared/net/address';
import { comparePrefixes, hostPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';

import { EndpointEdits, isSameAllocation, type EndedAllocation } from '../blocks/endpoint-edits.js';
import { replacedEndpoints } from '../blocks/endpoint-key.js';
import { addressOf } from '../records/block.js';
import { blocksOf, handleChanges, isRecounted, requireHandleReadable } from '../records/handle-counts.js';
import { allBlocks, unreadableBlockOf } from '../blocks/lookup.js';
import { expectSessions, ofFewNodes, RunningNodes, type SilentNodes } from '../blocks/running-nodes.js';
import {
  releaseHolder,
  releaseHeld,
  nextBatch,
  releaseStep,
  type EndingAllocation,
  type ReleaseStep,
} from '../blocks/release-changes.js';
import { expectBlock } from '../records/absence.js';
import {
  belongsTo,
  containerIdsOf,
  isUnattached,
  type AllocationAttributes,
  type NetnsIdentity,
} from '../records/attributes.js';
import { heldAddressesIn, type Block, type Handle, type HeldAddress } from '../records/block.js';
import { sameNetns, type EndpointKey } from '../records/endpoint.js';
import { storedHandleNames } from '../records/names.js';
import type { Change, Decision, StoredEndpoint, View } from '../records/view.js';
import { allocationOf, addressHolder, netnsOf, type AddressHolder } from './addresses.js';

/** The result of a release. */
export interface Released {
  /** Released addresses of full length; empty when there was nothing to release. */
  readonly addresses: readonly Prefix[];
}

/**
 * Releases every address of an attachment, with its entries in the handle and its endpoint, even if the endpoint names
 * addresses that it no longer holds. Addresses and endpoints of other attachments stay, also those under the same key.
 *
 * Addresses under the attachment's handle without an interface, or under the container ID as handle, were allocated by
 * Calico's own plugin. They are released too, and that plugin's endpoint of the container is removed: its DEL frees the
 * whole handle.
 *
 * An empty block keeps its owner; an empty block without an owner is removed, as with Calico. Idempotent: nothing to
 * release is not an error.
 */
export function release(view: View, attachment: Attachment, nowMs: number): Decision<Released> {
  const id = handleId(attachment);
  requireHandleReadable(view, id);
  const held = addressesToRelease(view, attachment);
  const mark: Change = { type: 'release', handleId: id, nowMs };
  return {
    changes: [
      ...releaseHolder(view, { target: { type: 'attachment', attachment }, held, nowMs }),
      ...(held.length > 0 ? [] : handleChanges(view, id, [])),
      mark,
    ],
    outcome: { addresses: held.map(addressOf) },
  };
}

/** The addresses that a release of the attachment frees, IPv4 before IPv6. */
export function addressesToRelease(view: View, attachment: Attachment): HeldAddress[] {
  const { containerId } = attachment;
  const id = handleId(attachment);
  const isOwn = belongsTo(attachment);
  // Calico's plugin of 2017 named the handle by the container alone. Today's handles of containers and leases have a dot.
  const oldest = containerId.includes('.') ? undefined : containerId;
  const isCalicos = (attributes: AllocationAttributes): boolean =>
    isUnattached(attributes) &&
    (attributes.handleId === id || (attributes.handleId === oldest && attributes.owner.type === undefined));
  const blocks = new Set([id, oldest ?? id].flatMap((handle) => blocksOf(view, view.handle(handle))));
  return [...blocks]
    .sort((a, b) => comparePrefixes(a.prefix, b.prefix))
    .flatMap((block) => heldAddressesIn(block, (attributes) => isOwn(attributes) || isCalicos(attributes)));
}

/** An address to release, and its expected holder. */
export interface AddressRelease {
  readonly address: Address;
  /** The expected handle; undefined for any or none. */
  readonly handleId: string | undefined;
  /** The expected sequence number of the allocation; undefined for any. */
  readonly sequenceNumber: bigint | undefined;
  /**
   * The expected network namespace in the holder's endpoint: an attachment that is added again keeps its allocation,
   * with another namespace. Undefined for any or none.
   */
  readonly netns?: NetnsIdentity | undefined;
}

/** The result for one address. */
export type AddressReleaseResult =
  | { readonly state: 'released'; readonly holder: AddressHolder }
  /** Free, cooling down, or in no block. */
  | { readonly state: 'notAllocated' }
  /** Its holder differs from the expected one and keeps it. */
  | { readonly state: 'mismatch'; readonly holder: AddressHolder }
  /** A node that runs may use it, and keeps it. */
  | { readonly state: 'inUse'; readonly holder: AddressHolder }
  /** Its block cannot be read, so its holder is unknown. Nothing was changed. */
  | { readonly state: 'unreadable' };

interface AddressReleases {
  readonly nowMs: number;
  /** Default: none. */
  readonly silent?: SilentNodes | undefined;
  /** Releases without duplicate addresses. */
  readonly releases: readonly AddressRelease[];
  /** The node that releases, as no pod there has the addresses any more; undefined for other callers. */
  readonly callingNode?: string | undefined;
}

/** The result of one step. */
interface AddressReleaseStep {
  /** Results of the first requested releases, in their order. */
  readonly results: readonly AddressReleaseResult[];
}

/** Maximum number of endpoints corrected by one step. */
const ENDPOINTS_PER_STEP = 25;

/**
 * Releases single addresses, as many of the first ones as fit in a transaction; call again for the rest. Each is
 * evaluated separately: one with another holder, or in an unreadable block, stays and does not stop the rest. If a
 * handle and a sequence number name an allocation that has already ended, the address is removed from endpoints that
 * still name it. Addresses that another running node may use are kept. Idempotent.
 */
export function continueAddressRelease(view: View, input: AddressReleases): Decision<AddressReleaseStep> {
  const running = new RunningNodes(view, input.silent);
  const isOther = ({ attributes }: HeldAddress): boolean => attributes.owner.node !== input.callingNode;
  const evaluated = input.releases.map((release): EvaluatedRelease => {
    const each = evaluateRelease(view, release);
    const isKept = each.held !== undefined && isOther(each.held) && running.mayUse(each.held.attributes);
    return isKept && each.result.state === 'released'
      ? { ...each, result: { state: 'inUse', holder: each.result.holder } }
      : each;
  });
  const ending = evaluated.flatMap((each) => (isReleased(each) && each.held && isOther(each.held) ? [each.held] : []));
  const compared = [...ofFewNodes(view, ending)];
  const next = ending[compared.length];
  const end = next ? evaluated.findIndex(({ held }) => held === next) : evaluated.length;
  const { changes, outcome } = releaseEvaluated(view, evaluated.slice(0, end), input.nowMs);
  return { changes: changes.length > 0 ? [...changes, ...expectSessions(view, compared)] : changes, outcome };
}

/** One step of releases that were evaluated on the same view: as many of the first ones as fit in a transaction. */
export function releaseEvaluated(
  view: View,
  evaluated: readonly EvaluatedRelease[],
  nowMs: number,
): Decision<AddressReleaseStep> {
  const first = evaluated.find(({ held, result, outdated }) => outdated.length > 0 || isReleased({ held, result }));
  const isCorrection = first !== undefined && first.outdated.length > 0;
  const { changes, end } = isCorrection ? correctEndpoints(view, evaluated) : releaseFirst(view, evaluated, nowMs);
  return { changes, outcome: { results: evaluated.slice(0, end).map(({ result }) => result) } };
}

interface StepResult {
  readonly changes: readonly Change[];
  /** Number of releases that are done after this step. */
  readonly end: number;
}

function releaseFirst(view: View, evaluated: readonly EvaluatedRelease[], nowMs: number): StepResult {
  const outdatedAt = evaluated.findIndex(({ outdated }) => outdated.length > 0);
  const among = outdatedAt < 0 ? evaluated : evaluated.slice(0, outdatedAt);
  const toRelease = among.flatMap((each) => (isReleased(each) && each.held ? [each.held] : []));
  const batch = nextBatch(view, toRelease);
  const next = toRelease[batch.length];
  const end = next ? among.findIndex(({ held }) => held === next) : among.length;
  return { changes: releaseHeld(view, batch, nowMs), end };
}

function correctEndpoints(view: View, evaluated: readonly EvaluatedRelease[]): StepResult {
  const edits = new EndpointEdits(view, []);
  let count = 0;
  for (const [end, each] of evaluated.entries()) {
    const isOver = count > 0 && count + each.outdated.length > ENDPOINTS_PER_STEP;
    if (isReleased(each) || isOver) return { changes: edits.changes(), end };
    for (const { key, attachment, allocation } of each.outdated) edits.removeAllocation(key, attachment, allocation);
    count += each.outdated.length;
  }
  return { changes: edits.changes(), end: evaluated.length };
}

function isReleased({ held, result }: Pick<EvaluatedRelease, 'held' | 'result'>): boolean {
  return held !== undefined && result.state === 'released';
}

/** A release that was compared with the allocation of its address. */
export interface EvaluatedRelease {
  readonly held: EndingAllocation | undefined;
  readonly result: AddressReleaseResult;
  /** Endpoints that still name the requested allocation, which has ended. */
  readonly outdated: readonly OutdatedEndpoint[];
}

interface OutdatedEndpoint {
  readonly key: EndpointKey;
  readonly attachment: Attachment;
  readonly allocation: EndedAllocation;
}

function evaluateRelease(view: View, release: AddressRelease): EvaluatedRelease {
  if (unreadableBlockOf(view, release.address))
    return { held: undefined, result: { state: 'unreadable' }, outdated: [] };
  const held = allocationOf(view, release.address);
  if (!held) return { held, result: { state: 'notAllocated' }, outdated: outdatedEndpoints(view, release) };
  const holder = addressHolder(held);
  const isSame =
    (release.handleId === undefined || release.handleId === holder.handleId) &&
    (release.sequenceNumber === undefined || release.sequenceNumber === holder.sequenceNumber);
  const isMatch = isSame && (release.netns === undefined || sameNetns(release.netns, netnsOf(view, held)));
  if (isMatch) return { held, result: { state: 'released', holder }, outdated: [] };
  return { held, result: { state: 'mismatch', holder }, outdated: isSame ? [] : outdatedEndpoints(view, release) };
}

/** The allocation that a release would end; undefined if it ends none. */
export function releasable(view: View, release: AddressRelease): HeldAddress | undefined {
  const { held, result } = evaluateRelease(view, release);
  return result.state === 'released' ? held : undefined;
}

/** The endpoints that still name an allocation that a handle and a sequence number name, and that has ended. */
export function outdatedEndpoints(
  view: View,
  { address, handleId: handle, sequenceNumber, netns }: AddressRelease,
): OutdatedEndpoint[] {
  if (handle === undefined || sequenceNumber === undefined) return [];
  const allocation = { address: hostPrefix(address), sequenceNumber };
  return endpointsOfHandle(view, handle).flatMap(({ key, value: { attachment, addresses, netns: recorded } }) => {
    const isMatch = netns === undefined || sameNetns(netns, recorded);
    const isNamed = addresses.some((named) => isSameAllocation(named, allocation));
    return isMatch && isNamed ? [{ key, attachment, allocation }] : [];
  });
}

/** The endpoints of a handle's attachments, current and replaced ones. */
function endpointsOfHandle(view: View, handle: string): StoredEndpoint[] {
  const records = containerIdsOf(handle).flatMap((containerId) => [...view.endpointsOfContainer(containerId)]);
  return records.flatMap((record) =>
    [record, ...replacedEndpoints(record)].flatMap((one) =>
      one.kind === 'endpoint' && handleId(one.value.attachment) === handle
        ? [{ key: record.key, value: one.value }]
        : [],
    ),
  );
}

export interface HandleRelease {
  readonly nowMs: number;
  /** Default: none. */
  readonly silent?: SilentNodes | undefined;
  readonly handleId: string;
  /**
   * Whether to search every block instead of the blocks that the handle's record names. Finds addresses whose handle was
   * lost, at the cost of a full scan.
   */
  readonly searchesAllBlocks: boolean;
}

/** Maximum entries of a handle removed in one step: each takes a comparison of its block. */
const ENTRIES_PER_STEP = 100;

/**
 * Releases every address of a handle, as many per step as fit in a transaction, and removes the handle, even if it
 * counts missing blocks or addresses that it does not hold. All endpoints of its containers are removed. Addresses that
 * running nodes may use are kept, with their endpoints.
 *
 * Idempotent; a missing handle has no addresses.
 * @throws Failure STORE_CORRUPT when the handle, or a block that it names, cannot be read
 */
export function continueHandleRelease(view: View, release: HandleRelease): Decision<ReleaseStep> {
  const { handleId, nowMs } = release;
  const mark: Change = { type: 'release', handleId, nowMs };
  for (const id of storedHandleNames(handleId)) requireHandleReadable(view, id);
  const running = new RunningNodes(view, release.silent);
  const all = heldByHandle(view, release);
  const held = all.filter(({ attributes }) => !running.mayUse(attributes));
  if (held.length < all.length) return releaseUnused(view, held, nowMs);
  const batch = nextBatch(view, ofFewNodes(view, held));
  const [first, ...rest] = recordsOf(view, handleId);
  const end = (ended: readonly HeldAddress[]): Change[] =>
    releaseHolder(view, { target: { type: 'handle', handleId }, held: ended, nowMs });
  if (held.length === 0) {
    const isLast = rest.length === 0 && (first?.blocks.size ?? 0) <= ENTRIES_PER_STEP;
    const changes = [...(first ? removeEntries(view, first) : []), ...(isLast ? end([]) : []), mark];
    return { changes, outcome: { state: isLast ? 'done' : 'more', addresses: [] } };
  }
  const isRight = !first || (first.id === handleId && isRecounted(first));
  const isWhole = batch.length === held.length && rest.length === 0 && isRight;
  return {
    changes: [...(isWhole ? end(held) : releaseHeld(view, batch, nowMs)), ...expectSessions(view, batch), mark],
    outcome: { state: isWhole ? 'done' : 'more', addresses: batch.map(addressOf) },
  };
}

/** A step of the release of a handle that keeps some addresses, and so its record and endpoints. */
function releaseUnused(view: View, unused: readonly HeldAddress[], nowMs: number): Decision<ReleaseStep> {
  const batch = nextBatch(view, ofFewNodes(view, unused));
  const changes = [...releaseHeld(view, batch, nowMs), ...expectSessions(view, batch)];
  return releaseStep(batch, changes);
}

/** The records under all possible names of a handle. */
function recordsOf(view: View, handleId: string): Handle[] {
  return storedHandleNames(handleId).flatMap((id) => view.handle(id) ?? []);
}

/** Removes some of the handle's entries, all without addresses, and compares that their blocks are unchanged. */
function removeEntries(view: View, handle: Handle): Change[] {
  const entries = [...handle.blocks];
  const left = new Map(entries.slice(ENTRIES_PER_STEP));
  return [
    ...entries.slice(0, ENTRIES_PER_STEP).flatMap(([cidr]) => {
      const parsed = parsePrefix(cidr);
      return parsed.ok ? expectBlock(view, parsed.prefix) : [];
    }),
    { type: left.size > 0 ? 'put' : 'delete', record: { kind: 'handle', value: { ...handle, blocks: left } } },
  ];
}

/** The addresses of a handle, in the order of its blocks. */
export function heldByHandle(
  view: View,
  { handleId, searchesAllBlocks }: Pick<HandleRelease, 'handleId' | 'searchesAllBlocks'>,
): HeldAddress[] {
  const blocks = searchesAllBlocks ? [...allBlocks(view)] : namedBlocks(view, handleId);
  return blocks.flatMap((block) => heldAddressesIn(block, (attributes) => attributes.handleId === handleId));
}

function namedBlocks(view: View, handleId: string): Block[] {
  return [...new Set(recordsOf(view, handleId).flatMap((handle) => blocksOf(view, handle)))];
}

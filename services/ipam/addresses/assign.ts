import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { addressAt, formatPrefix } from '@podwire/shared/net/prefix';

import { authorizeNode, type Demand, type AuthorizedNode, type Need, type PoolUse } from '../blocks/demand.js';
import { requireReports } from '../blocks/epoch.js';
import { blocksOf, handleChanges, requireHandleReadable } from '../records/handle-counts.js';
import { endpointAddress } from '../records/derived-endpoint.js';
import { blockOf } from '../blocks/lookup.js';
import { beginSearch, type Offer } from '../blocks/search.js';
import { checkRequestedPools, servingPools } from '../pools/selection.js';
import { handleAttributes, type AllocationAttributes } from '../records/attributes.js';
import { heldAddressesIn, takeOrdinals, type BlockOwner, type HeldAddress } from '../records/block.js';
import type { EndpointAddress } from '../records/endpoint.js';
import type { UnknownNodes } from '../records/node.js';
import type { Change, Decision, View } from '../records/view.js';
import {
  collectAddresses,
  chooseRequestedAddress,
  type CollectedAddresses,
  type CollectInput,
} from './allocate/block-choice.js';
import { explainDemand, explainRefusal, refusalOf, type PoolExplanation } from './allocate/refusal.js';

/**
 * Assigns addresses to a handle that does not belong to an attachment. They may need more blocks than one transaction
 * can hold, so each step is one transaction. Addresses of a committed step stay allocated when a later step fails.
 */

export type Counts = Readonly<Record<Family, number>>;

export interface AssignmentRequest {
  readonly handleId: string;
  /** Its blocks are tried first. */
  readonly owner: BlockOwner;
  readonly use: PoolUse;
  readonly counts: Counts;
  /** Requested addresses, without duplicates; then the counts are 0. */
  readonly addresses: readonly Address[];
  /** Pools, as in an allocation. */
  readonly pools: readonly string[];
  readonly namespaceLabels: Readonly<Record<string, string>>;
  readonly maxBlocksCount: number;
  /** Limit of the handle's addresses per family; 0 for none. Not below the counts. */
  readonly maxPerHandleCount: number;
  /** The owner's own description. */
  readonly attributes: Readonly<Record<string, string>>;
  readonly allOrNothing: boolean;
  readonly unknownNodes: UnknownNodes;
}

/** The part of the input that the caller of AssignAddresses provides. */
export type RequestedAssignment = Omit<AssignmentRequest, 'unknownNodes'>;

/** The result of an assignment, over all its steps. */
export type Assignment = Omit<AssignmentStep, 'left'>;

interface AssignmentInput {
  readonly request: AssignmentRequest;
  readonly nowMs: number;
  /** The remaining counts; undefined in the first step. */
  readonly left: Counts | undefined;
}

/** Why no more addresses of a family are available. */
export interface Shortage {
  readonly text: string;
  readonly pools: readonly PoolExplanation[];
  /** Number of addresses that were not assigned. */
  readonly missingCount: number;
}

/** The result of one step. */
interface AssignmentStep {
  readonly newAddresses: readonly EndpointAddress[];
  /** Addresses that the handle had before, if they are part of the answer. */
  readonly held: readonly EndpointAddress[];
  /** The remaining counts for the next step; undefined after the last step. */
  readonly left: Counts | undefined;
  /** Shortages of the families without any available address in this step. */
  readonly shortages: ReadonlyMap<Family, Shortage>;
}

/** Blocks named in the explanation of a shortage. */
const NAMED_BLOCKS = 100;

/**
 * One step of an assignment.
 * @throws Failure NO_POOL when no pool fits this use and owner, or a requested pool is disabled; INVALID_REQUEST for
 * pools that do not exist, and where all or nothing needs more than one transaction; POOLS_EXHAUSTED when no address is
 * available; ADDRESS_IN_USE, ADDRESS_REFUSED, NODE_NOT_FOUND, NODE_BEING_DELETED, STORE_RESTORED
 */
export function assignAddresses(view: View, input: AssignmentInput): Decision<AssignmentStep> {
  const { request } = input;
  const node = ownerNode(view, input);
  requireReports(view);
  if (request.addresses.length > 0) return assignRequested(view, input, node);
  const before = heldByHandle(view, request.handleId);
  const counts = stepCounts(input, before);
  const families = ([4, 6] as const).filter((family) => counts[family] > 0);
  if (!input.left) checkRequestedPools(view, { pools: request.pools, families: familiesOf(request.counts) });
  const parts: FamilyResult[] = [];
  for (const family of families) {
    const bytesTaken = parts.reduce((bytes, { collected }) => bytes + collected.bytes, 0);
    const familyRequest = { count: counts[family], bytesTaken, handleId: request.handleId };
    parts.push(collectFamily(view, demandOf(family, input, node), familyRequest));
  }
  const collected = parts.flatMap(({ collected: { grants } }) => grants);
  if (request.allOrNothing) requireAll(view, parts, request);
  const shortages = new Map(
    parts.flatMap((part) => (part.shortage ? [[part.demand.family, part.shortage] as const] : [])),
  );
  const left = leftOf(parts);
  const isLast = left[4] + left[6] === 0;
  const granted = grantChanges(view, { input, node, grants: collected });
  const held = request.maxPerHandleCount > 0 && !input.left ? before.filter(isOfRequestedFamily(request)) : [];
  return {
    changes: granted.changes,
    outcome: {
      newAddresses: granted.newAddresses,
      held: held.map((address) => endpointAddress(view, address)),
      left: isLast ? undefined : left,
      shortages,
    },
  };
}

/** Authorizes the owner's node; virtual owners have none. */
function ownerNode(view: View, { request, nowMs }: AssignmentInput): AuthorizedNode {
  const { owner, unknownNodes } = request;
  return owner.kind === 'host'
    ? authorizeNode(view, { nodeName: owner.name, unknownNodes, nowMs })
    : { labels: {}, changes: [] };
}

function heldByHandle(view: View, handleId: string): HeldAddress[] {
  requireHandleReadable(view, handleId);
  return blocksOf(view, view.handle(handleId)).flatMap((block) =>
    heldAddressesIn(block, (attributes) => attributes.handleId === handleId),
  );
}

function familiesOf(counts: Counts): Family[] {
  return ([4, 6] as const).filter((family) => counts[family] > 0);
}

function isOfRequestedFamily({ counts }: AssignmentRequest): (address: HeldAddress) => boolean {
  return ({ block }) => counts[block.prefix.family] > 0;
}

/**
 * The counts of this step. A call that would exceed the maximum per handle only completes the handle to the requested
 * count, so that a retry assigns nothing.
 */
function stepCounts({ request, left }: AssignmentInput, before: readonly HeldAddress[]): Counts {
  const { counts, maxPerHandleCount: max } = request;
  const countOf = (family: Family): number => {
    const requested = left?.[family] ?? counts[family];
    const held = before.filter(({ block }) => block.prefix.family === family).length;
    if (max === 0 || held + requested <= max) return requested;
    return Math.max(0, Math.min(requested, left ? max - held : counts[family] - held));
  };
  return { 4: countOf(4), 6: countOf(6) };
}

/** Addresses that an assignment takes, if it can. */
export function needOf(request: AssignmentRequest, nowMs: number): Need {
  const { owner, counts, addresses } = request;
  const demands = (view: View): Demand[] => {
    const { labels = {} } = (owner.kind === 'host' ? view.node(owner.name) : undefined) ?? {};
    const input = { request, nowMs, left: undefined };
    return familiesOf(counts).map((family) => demandOf(family, input, { labels, changes: [] }));
  };
  return { demands, addresses };
}

function demandOf(family: Family, { request, nowMs }: AssignmentInput, node: AuthorizedNode): Demand {
  const { owner, use, namespaceLabels, pools, maxBlocksCount, handleId } = request;
  const seed = `${owner.name}/${handleId}`;
  return { family, use, owner, nodeLabels: node.labels, namespaceLabels, pools, maxBlocksCount, seed, nowMs };
}

interface FamilyResult {
  readonly demand: Demand;
  readonly requestedCount: number;
  readonly collected: CollectedAddresses;
  readonly shortage: Shortage | undefined;
}

interface FamilyRequest extends CollectInput {
  readonly handleId: string;
}

function collectFamily(view: View, demand: Demand, { handleId, ...want }: FamilyRequest): FamilyResult {
  const pools = servingPools(view, demand);
  const shortage = (): Shortage => ({
    text: explainRefusal(view, demand, `handle ${handleId}`),
    pools: explainDemand(view, demand, { maxBlocksCount: NAMED_BLOCKS }),
    missingCount: want.count,
  });
  if (pools.length === 0)
    throw refusalOf(view, [demand], { subject: `handle ${handleId}`, details: { use: demand.use } });
  const collected = collectAddresses(beginSearch(view, demand, pools), want);
  const isShort = collected.count === 0 && collected.isExhausted;
  return { demand, requestedCount: want.count, collected, shortage: isShort ? shortage() : undefined };
}

/** The counts for another step: of each family of which this step found some, but not all. */
function leftOf(found: readonly FamilyResult[]): Counts {
  const left = (family: Family): number => {
    const part = found.find(({ demand }) => demand.family === family);
    return part && !part.shortage ? part.requestedCount - part.collected.count : 0;
  };
  return { 4: left(4), 6: left(6) };
}

/** @throws Failure POOLS_EXHAUSTED, or INVALID_REQUEST when the addresses need more than one transaction */
function requireAll(view: View, found: readonly FamilyResult[], { handleId }: AssignmentRequest): void {
  const short = found.find(({ requestedCount, collected }) => collected.count < requestedCount);
  if (!short) return;
  const { demand, requestedCount, collected } = short;
  const have = `${collected.count} of ${requestedCount} IPv${demand.family} addresses for handle ${handleId}`;
  if (collected.isExhausted) {
    const text = `only ${have} are available, and the request is all or nothing. ${explainRefusal(view, demand, 'the rest')}`;
    throw new Failure('POOLS_EXHAUSTED', text, { details: { handle: handleId } });
  }
  const reason = `is set, and one transaction holds ${have}; request fewer at a time, or unset it`;
  throw violationsFailure('INVALID_REQUEST', 'AssignAddresses refused', [{ field: 'all_or_nothing', reason }]);
}

function assignRequested(
  view: View,
  { request, nowMs }: AssignmentInput,
  node: AuthorizedNode,
): Decision<AssignmentStep> {
  const input = { request, nowMs, left: undefined };
  const held: EndpointAddress[] = [];
  const grants = new Map<string, { offer: Offer; ordinals: number[] }>();
  for (const address of request.addresses) {
    const own = heldAt(view, request.handleId, address);
    if (own) {
      held.push(endpointAddress(view, own));
      continue;
    }
    const { offer, ordinal } = chooseRequestedAddress(view, demandOf(address.family, input, node), address);
    const cidr = formatPrefix(offer.block.prefix);
    const grant = grants.get(cidr);
    if (grant) grant.ordinals.push(ordinal);
    else grants.set(cidr, { offer, ordinals: [ordinal] });
  }
  requireWithinMaximum(view, request, held.length);
  const granted = grantChanges(view, { input, node, grants: [...grants.values()] });
  return {
    changes: granted.changes,
    outcome: { newAddresses: granted.newAddresses, held, left: undefined, shortages: new Map() },
  };
}

function heldAt(view: View, handleId: string, address: Address): HeldAddress | undefined {
  const block = blockOf(view, address);
  const [held] = block
    ? heldAddressesIn(block, (attributes) => attributes.handleId === handleId).filter(isAtAddress(address))
    : [];
  return held;
}

function isAtAddress({ value }: Address): (held: HeldAddress) => boolean {
  return ({ block, ordinal }) => addressAt(block.prefix, ordinal).value === value;
}

/** @throws Failure INVALID_REQUEST when the handle would have more than its maximum */
function requireWithinMaximum(
  view: View,
  { handleId, addresses, maxPerHandleCount }: AssignmentRequest,
  already: number,
): void {
  if (maxPerHandleCount === 0 || already === addresses.length) return;
  const before = heldByHandle(view, handleId);
  for (const family of [4, 6] as const) {
    const held = before.filter(({ block }) => block.prefix.family === family);
    const missing = addresses.filter((address) => address.family === family && !held.some(isAtAddress(address)));
    if (held.length + missing.length <= maxPerHandleCount) continue;
    const names = held.map(({ block, ordinal }) => formatAddress(addressAt(block.prefix, ordinal)));
    const reason = `has ${missing.length} IPv${family} addresses that handle ${handleId} does not have; it has ${names.slice(0, 8).join(', ') || 'none'}, and the maximum is ${maxPerHandleCount}`;
    throw violationsFailure('INVALID_REQUEST', 'AssignAddresses refused', [{ field: 'addresses', reason }]);
  }
}

interface GrantInput {
  readonly input: AssignmentInput;
  readonly node: AuthorizedNode;
  readonly grants: readonly { readonly offer: Offer; readonly ordinals: readonly number[] }[];
}

interface GrantResult {
  readonly changes: readonly Change[];
  readonly newAddresses: readonly EndpointAddress[];
}

/** Allocates the addresses, block by block, and updates the handle's counts. */
function grantChanges(view: View, { input, node, grants }: GrantInput): GrantResult {
  if (grants.length === 0) return { changes: [], newAddresses: [] };
  const { handleId } = input.request;
  const attributes = attributesOf(input);
  const taken = grants.map(({ offer, ordinals }) => ({
    ordinals,
    changes: offer.changes,
    block: takeOrdinals(offer.block, ordinals, attributes),
  }));
  const blocks = taken.map(({ block }) => block);
  return {
    changes: [
      ...node.changes,
      ...taken.flatMap(({ changes }) => changes),
      ...blocks.map((value): Change => ({ type: 'put', record: { kind: 'block', value } })),
      ...handleChanges(view, handleId, blocks),
      { type: 'expectUnreleased', handleId },
    ],
    newAddresses: taken.flatMap(({ block, ordinals }) =>
      ordinals.map((ordinal) => endpointAddress(view, { block, ordinal })),
    ),
  };
}

function attributesOf({ request, nowMs }: AssignmentInput): AllocationAttributes {
  const { handleId, owner, attributes } = request;
  return handleAttributes({ handleId, attributes, nodeName: owner.kind === 'host' ? owner.name : undefined, nowMs });
}

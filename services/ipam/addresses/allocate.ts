import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import { authorizeNode, type Demand, type AuthorizedNode } from '../blocks/demand.js';
import { endpointAt, rewriteEndpoint, takeOverKey } from '../blocks/endpoint-key.js';
import {
  describeEndpoint,
  endpointAddress,
  handleChanges,
  heldAddressesOf,
  recordedEndpoint,
  requireHandleReadable,
  sameAttachment,
} from '../blocks/holding.js';
import { beginSearch, type OfferOrigin } from '../blocks/search.js';
import { labelsWithName, authorizeRequests, type PolicyInput } from '../policies/evaluation.js';
import { checkRequestedPools, servingPools } from '../pools/selection.js';
import { calicoTime, type AllocationAttributes, type NetnsIdentity, type PodIdentity } from '../records/attributes.js';
import { takeOrdinals, touchBlock, type Block, type HeldAddress } from '../records/block.js';
import { endpointKey, makeEndpoint, sameNetns, type Endpoint, type EndpointAddress } from '../records/endpoint.js';
import type { UnknownNodes } from '../records/node.js';
import type { PodRequests, PoolChoice } from '../records/request-policy.js';
import type { Change, Decision, View } from '../records/view.js';
import {
  chooseBlocks,
  chooseRequestedAddress,
  blockChoices,
  type BlockChoice,
  type BlockChoices,
} from './block-choice.js';
import { refusalOf } from './refusal.js';

export interface AllocationInput {
  readonly request: AllocationRequest;
  readonly nowMs: number;
}

/** The result of an allocation. */
export interface Allocation {
  readonly endpoint: Endpoint;
  /** The families that got an address; empty when the attachment already held all of them. */
  readonly added: readonly Family[];
  /** The blocks that the node claimed with it. */
  readonly claimed: readonly Prefix[];
  /** Those of the claimed blocks that belonged to another node. */
  readonly reclaimed: readonly Prefix[];
  /** The blocks of other owners that addresses were borrowed from. */
  readonly borrowed: readonly Prefix[];
  /** Another attachment of the same pod, whose endpoint this one replaced; it keeps its addresses. */
  readonly replaced: Attachment | undefined;
}

/**
 * Allocates one address of each requested family that the attachment does not hold yet: all of them or none.
 *
 * Idempotent per attachment: addresses it already holds are returned in full, even when the request names fewer.
 * @throws Failure NO_POOL when a family has no pool, or a requested pool is disabled; POOLS_EXHAUSTED when no pool can
 * serve, with the reason for each; INVALID_REQUEST for pools that do not exist; NODE_NOT_FOUND, NODE_BEING_DELETED; for
 * requested addresses ADDRESS_IN_USE, ADDRESS_REFUSED, and ADDRESS_DIFFERS when the attachment holds another;
 * STORE_CORRUPT when its handle, or a block that the handle names, cannot be read, or the configuration when nothing
 * else can be allocated, or the request policies when the request needs their permission; REQUEST_DENIED when they deny
 * it
 */
export function allocate(view: View, { request, nowMs }: AllocationInput): Decision<Allocation> {
  const { attachment } = request;
  const policyInput = policyInputOf(request);
  const policyComparisons = policyInput ? authorizeRequests(view, policyInput) : [];
  const handle = requireHandleReadable(view, handleId(attachment));
  const [first, ...rest] = handle ? heldAddressesOf(view, attachment) : [];
  const decision = first
    ? allocateMissing(view, { request, nowMs, held: [first, ...rest] })
    : allocateFirst(view, { request, nowMs });
  const { changes, outcome } = decision;
  // A decision without changes runs on a view with all acknowledged commits, so it needs no comparison.
  if (policyComparisons.length === 0 || changes.length === 0) return decision;
  return { changes: [...changes, ...policyComparisons], outcome };
}

/** The input of request policies; undefined without a pod, and so without a namespace. */
export function policyInputOf(request: AllocationRequest): PolicyInput | undefined {
  const { pod, namespaceLabels: labels, pools, poolChoices, addresses, requests } = request;
  return pod && { namespace: { name: pod.namespace, labels }, pools, poolChoices, addresses, requests };
}

interface PartialInput extends AllocationInput {
  readonly held: readonly [HeldAddress, ...HeldAddress[]];
}

/** Allocates the requested families that an attachment does not hold yet. */
function allocateMissing(view: View, { request, nowMs, held }: PartialInput): Decision<Allocation> {
  const { attachment } = request;
  for (const address of request.addresses) requireHeld(held, address, attachment);
  const known = describeEndpoint(view, attachment, held);
  const missing = request.families.filter((family) => !held.some(({ block }) => block.prefix.family === family));
  // The container is on the node of its first address; its other family is allocated there too.
  const subject = { ...request, nodeName: known.nodeName, pod: known.pod };
  const written = [...new Set(held.map(({ block }) => block))];
  const granted = grantAll(view, { request: { ...subject, families: missing }, nowMs }, written);
  const { grants } = granted;
  const netns = request.netns ?? known.netns;
  const endpoint = { ...known, netns, addresses: [...known.addresses, ...grants.map(({ address }) => address)] };
  return {
    changes: [
      ...allocationChanges(view, attachment, granted),
      ...refreshEndpoint(view, {
        endpoint,
        held,
        changed: missing.length > 0 || !sameNetns(endpoint.netns, known.netns),
      }),
    ],
    outcome: { endpoint, added: missing, ...blocksGainedBy(grants), replaced: undefined },
  };
}

function allocateFirst(view: View, { request, nowMs }: AllocationInput): Decision<Allocation> {
  const { attachment, nodeName, pod, netns, families } = request;
  const granted = grantAll(view, { request, nowMs });
  const { grants } = granted;
  const endpoint = makeEndpoint(
    { attachment, nodeName, pod, netns, createdAtMs: nowMs },
    grants.map(({ address }) => address),
  );
  const key = endpointKey(request);
  const before = view.endpoint(key);
  const replaced = before && !sameAttachment(before.attachment, attachment) ? before.attachment : undefined;
  const changes = allocationChanges(view, attachment, granted);
  changes.push(takeOverKey(view, key, endpoint));
  const { claimed, reclaimed, borrowed } = blocksGainedBy(grants);
  return { changes, outcome: { endpoint, added: families, claimed, reclaimed, borrowed, replaced } };
}

/** @throws Failure ADDRESS_DIFFERS when the attachment holds another address of the family */
function requireHeld(held: readonly HeldAddress[], requested: Address, attachment: Attachment): void {
  const ofFamily = held.filter(({ block }) => block.prefix.family === requested.family);
  const values = ofFamily.map(({ block, ordinal }) => block.prefix.value + BigInt(ordinal));
  const [value] = values;
  if (value === undefined || values.includes(requested.value)) return;
  const name = formatAttachment(attachment);
  const text = `${name} requests ${formatAddress(requested)} and holds ${formatAddress({ ...requested, value })}; release that first`;
  throw new Failure('ADDRESS_DIFFERS', text);
}

/** An allocated address: the view has the block without it, and the changes store the block with it. */
interface Grant {
  readonly block: Block;
  readonly address: EndpointAddress;
  readonly origin: OfferOrigin;
}

interface Granted {
  readonly grants: readonly Grant[];
  /** The comparisons that they depend on, and the changed blocks. */
  readonly changes: readonly Change[];
}

/** @param written - further blocks of the same transaction */
function grantAll(view: View, { request, nowMs }: AllocationInput, written: readonly Block[] = []): Granted {
  const { families, pools, poolChoices, nodeName, unknownNodes } = request;
  if (families.length === 0) return { grants: [], changes: [] };
  const node = authorizeNode(view, { nodeName, unknownNodes, nowMs });
  checkRequestedPools(view, { pools, poolChoices, families });
  const demands = families.map((family) => demandOf(family, { request, nowMs, node }));
  const choices = chooseBlocks(
    demands.map((demand) => choicesFor(view, demand, request)),
    written,
  );
  const refused = demands.filter((_, index) => !choices[index]);
  if (refused.length > 0) throw refusal(view, refused, request);
  const grants: Grant[] = [];
  const changes = [...node.changes];
  for (const choice of choices) {
    if (!choice) continue;
    const granted = grant(view, choice, { request, nowMs });
    grants.push(granted);
    changes.push(...choice.offer.changes, { type: 'put', record: { kind: 'block', value: granted.block } });
  }
  return { grants, changes };
}

/** The demand of an allocation for one family. */
export function demandOf(family: Family, { request, nowMs, node }: AllocationInput & { node: AuthorizedNode }): Demand {
  const { attachment, nodeName, pod, namespaceLabels, isAnyNamespace, pools, maxBlocksCount } = request;
  return {
    family,
    use: 'Workload',
    owner: { kind: 'host', name: nodeName },
    nodeLabels: node.labels,
    namespaceLabels: pod ? labelsWithName({ name: pod.namespace, labels: namespaceLabels }) : namespaceLabels,
    isAnyNamespace,
    pools,
    maxBlocksCount,
    seed: `${nodeName}/${formatAttachment(attachment)}`,
    nowMs,
  };
}

/** The requested address, or the best address of each block. */
function choicesFor(view: View, demand: Demand, { addresses }: AllocationRequest): BlockChoices {
  const requested = addresses.find(({ family }) => family === demand.family);
  return requested
    ? [chooseRequestedAddress(view, demand, requested)]
    : blockChoices(beginSearch(view, demand, servingPools(view, demand)));
}

function grant(view: View, { offer, ordinal }: BlockChoice, { request, nowMs }: AllocationInput): Grant {
  const block = takeOrdinals(offer.block, [ordinal], attributesFor(request, nowMs));
  return { block, address: endpointAddress(view, { block, ordinal }), origin: offer.origin };
}

function refusal(view: View, demands: readonly Demand[], { attachment, nodeName }: AllocationRequest): Failure {
  return refusalOf(view, demands, { subject: formatAttachment(attachment), details: { node: nodeName } });
}

function allocationChanges(view: View, attachment: Attachment, { grants, changes }: Granted): Change[] {
  if (grants.length === 0) return [];
  const blocks = grants.map(({ block }) => block);
  const id = handleId(attachment);
  return [...changes, ...handleChanges(view, id, blocks), { type: 'expectUnreleased', handleId: id }];
}

interface EndpointRefresh {
  readonly endpoint: Endpoint;
  readonly held: readonly HeldAddress[];
  readonly changed: boolean;
}

/**
 * Writes the endpoint of an attachment with addresses if it is missing or outdated. A key of another attachment is left
 * alone. A concurrent release that does not see the endpoint would leave it over; the changed blocks make that release
 * lose its comparison.
 */
function refreshEndpoint(view: View, { endpoint, held, changed }: EndpointRefresh): Change[] {
  const key = endpointKey(endpoint);
  const isRecorded = recordedEndpoint(view, key, endpoint.attachment) !== undefined;
  const needsWrite = isRecorded ? changed : !endpointAt(view, key);
  if (!needsWrite) return [];
  const blocks = held.map(({ block }): Change => ({
    type: 'put',
    record: { kind: 'block', value: touchBlock(block) },
  }));
  return [...blocks, rewriteEndpoint(view, key, endpoint) ?? takeOverKey(view, key, endpoint)];
}

function blocksGainedBy(grants: readonly Grant[]): Pick<Allocation, 'claimed' | 'reclaimed' | 'borrowed'> {
  const claimed: Prefix[] = [];
  const reclaimed: Prefix[] = [];
  const borrowed: Prefix[] = [];
  for (const { origin, block } of grants) {
    if (origin === 'claimed' || origin === 'reclaimed') claimed.push(block.prefix);
    if (origin === 'reclaimed') reclaimed.push(block.prefix);
    if (origin === 'borrowed') borrowed.push(block.prefix);
  }
  return { claimed, reclaimed, borrowed };
}

/** The input of Allocate. */
export interface AllocationRequest {
  readonly attachment: Attachment;
  readonly nodeName: string;
  readonly pod: PodIdentity | undefined;
  readonly netns: NetnsIdentity | undefined;
  /** At least one, without duplicates. */
  readonly families: readonly Family[];
  /** Requested addresses, at most one per family, each of one of the families. */
  readonly addresses: readonly Address[];
  /** Names or CIDRs of pools to allocate from, in this order. For a family without a pool here, selectors decide. */
  readonly pools: readonly string[];
  /** Details of some of the pools. A pool without an entry was chosen by the pod's author. */
  readonly poolChoices: readonly PoolChoice[];
  /** Further requests of the pod's author. They only affect the authorization. */
  readonly requests: PodRequests;
  /** Labels of the pod's namespace; empty when unknown. */
  readonly namespaceLabels: Readonly<Record<string, string>>;
  /** Whether to ignore namespace selectors, used by previews only. Default: false. */
  readonly isAnyNamespace?: boolean | undefined;
  /** Limit of the node's blocks per family in the serving pools; 0 for the configured one. */
  readonly maxBlocksCount: number;
  readonly unknownNodes: UnknownNodes;
}

/** The part of the input that the caller of Allocate provides. */
export type RequestedAllocation = Omit<AllocationRequest, 'unknownNodes'>;

export function attributesFor(
  { attachment, nodeName, pod }: Pick<AllocationRequest, 'attachment' | 'nodeName' | 'pod'>,
  nowMs: number,
): AllocationAttributes {
  const owner: Record<string, string> = {
    node: nodeName,
    timestamp: calicoTime(nowMs),
    network: attachment.network,
    interface: attachment.interfaceName,
  };
  if (pod) {
    owner.namespace = pod.namespace;
    owner.pod = pod.name;
  }
  return { handleId: handleId(attachment), owner, releasedAtMs: undefined };
}

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import { authorizeNode, type Demand, type AuthorizedNode, type Need } from '../../blocks/demand.js';
import { requireReports } from '../../blocks/epoch.js';
import { endpointAt, rewriteEndpoint, takeOverKey } from '../../blocks/endpoint-key.js';
import {
  describeEndpoint,
  endpointAddress,
  heldAddressesOf,
  recordedEndpoint,
  sameAttachment,
  touchBlocks,
} from '../../records/derived-endpoint.js';
import { handleChanges, requireHandleReadable } from '../../records/handle-counts.js';
import { requireBoot } from '../../blocks/running-nodes.js';
import { beginSearch, type OfferOrigin } from '../../blocks/search.js';
import { labelsWithName, authorizeRequests, type PolicyInput } from '../../request-policies/evaluation.js';
import { checkRequestedPools, servingPools } from '../../pools/selection.js';
import {
  calicoTime,
  type AllocationAttributes,
  type NetnsIdentity,
  type PodIdentity,
} from '../../records/attributes.js';
import { takeOrdinals, type Block, type HeldAddress } from '../../records/block.js';
import { endpointKey, makeEndpoint, sameNetns, type Endpoint, type EndpointAddress } from '../../records/endpoint.js';
import type { UnknownNodes } from '../../records/node.js';
import type { PodRequests, PoolChoice } from '../../records/request-policy.js';
import type { Change, Decision, View } from '../../records/view.js';
import {
  chooseBlocks,
  chooseRequestedAddress,
  blockChoices,
  type BlockChoice,
  type BlockChoices,
} from './block-choice.js';
import { refusalOf } from './refusal.js';

/** The input of Allocate. */
export interface AllocationRequest {
  readonly attachment: Attachment;
  readonly nodeName: string;
  readonly pod: PodIdentity | undefined;
  readonly netns: NetnsIdentity | undefined;
  /** Requested families: at least one, without duplicates. */
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
  /** Claimed blocks that belonged to another node. */
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
 * @throws Failure NO_POOL when a family has no pool, or a requested pool is disabled; POOLS_EXHAUSTED when no pool
 * can serve, with the reason for each; INVALID_REQUEST for pools that do not exist; NODE_NOT_FOUND,
 * NODE_BEING_DELETED; NODE_NAME_TAKEN for a pod of another boot than the running owner of the node's name; for
 * requested addresses ADDRESS_IN_USE, ADDRESS_REFUSED, and ADDRESS_DIFFERS when the attachment holds another;
 * STORE_RESTORED after a restore of the datastore; STORE_CORRUPT when its handle, or a block that the handle names,
 * cannot be read, or the configuration when nothing else can be allocated, or the request policies when the request
 * needs their permission; REQUEST_DENIED when they deny it
 */
export function allocate(view: View, { request, nowMs }: AllocationInput): Decision<Allocation> {
  const { attachment } = request;
  const policyComparisons = authorizeRequests(view, policyInputOf(request));
  requireHandleReadable(view, handleId(attachment));
  const held = heldAddressesOf(view, attachment);
  for (const address of request.addresses) requireHeld(held, address, attachment);
  const [first, ...rest] = held;
  const known = first && describeEndpoint(view, attachment, [first, ...rest]);
  // The container is on the node of its first address; its other family is allocated there too.
  const { nodeName, pod } = known ?? request;
  const families = request.families.filter((family) => !held.some(({ block }) => block.prefix.family === family));
  const granted = grantAll(view, { request: { ...request, nodeName, pod, families }, nowMs }, held);
  const netns = request.netns ?? known?.netns;
  const base = known ?? makeEndpoint({ attachment, nodeName, pod, netns, createdAtMs: nowMs }, []);
  const added = granted.grants.map(({ address }) => address);
  const endpoint = { ...base, netns, addresses: [...base.addresses, ...added] };
  const endpointChanges = known
    ? refreshEndpoint(view, known, endpoint, held)
    : [takeOverKey(view, endpointKey(endpoint), endpoint)];
  const changes = [...granted.changes, ...endpointChanges];
  const replaced = known ? undefined : otherOnKey(view, endpoint);
  return {
    // A decision without changes runs on a view with all acknowledged commits, so it needs no comparison.
    changes: changes.length > 0 ? [...changes, ...policyComparisons] : [],
    outcome: { endpoint, added: families, ...blocksGainedBy(granted.grants), replaced },
  };
}

/** The input of request policies. Without a pod the namespace is unknown, so that every policy restricts the request. */
export function policyInputOf(request: AllocationRequest): PolicyInput {
  const { pod, namespaceLabels: labels, pools, poolChoices, addresses, requests } = request;
  return { namespace: { name: pod?.namespace ?? '', labels }, pools, poolChoices, addresses, requests };
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
  readonly changes: readonly Change[];
}

interface Granted {
  readonly grants: readonly Grant[];
  /** Changes of the grants, with the comparisons that they depend on and the handle. */
  readonly changes: readonly Change[];
}

/** @param held - the attachment's addresses of other families, whose blocks the transaction may write too */
function grantAll(view: View, { request, nowMs }: AllocationInput, held: readonly HeldAddress[]): Granted {
  const { attachment, families, pools, poolChoices, nodeName, unknownNodes } = request;
  if (families.length === 0) return { grants: [], changes: [] };
  requireReports(view);
  requireBoot(view, nodeName, request.netns?.bootId);
  const node = authorizeNode(view, { nodeName, unknownNodes, nowMs });
  checkRequestedPools(view, { pools, poolChoices, families });
  const demands = families.map((family) => demandOf(family, { request, nowMs, node }));
  const choices = chooseBlocks(
    demands.map((demand) => choicesFor(view, demand, request)),
    [...new Set(held.map(({ block }) => block))],
  );
  const refused = demands.filter((_, index) => !choices[index]);
  if (refused.length > 0)
    throw refusalOf(view, refused, { subject: formatAttachment(attachment), details: { node: nodeName } });
  const attributes = attributesFor(request, nowMs);
  const grants = choices.flatMap((choice) => (choice ? [grant(view, choice, attributes)] : []));
  const id = handleId(attachment);
  const blocks = grants.map(({ block }) => block);
  const changes: Change[] = [
    ...node.changes,
    ...grants.flatMap((granted) => granted.changes),
    ...handleChanges(view, id, blocks),
    { type: 'expectUnreleased', handleId: id },
  ];
  return { grants, changes };
}

/** Addresses that an allocation takes, if it can. */
export function needOf(request: AllocationRequest, nowMs: number): Need {
  const demands = (view: View): Demand[] => {
    const { labels = {} } = view.node(request.nodeName) ?? {};
    return request.families.map((family) => demandOf(family, { request, nowMs, node: { labels, changes: [] } }));
  };
  return { demands, addresses: request.addresses };
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
    isLimitedToShare: true,
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

function grant(view: View, { offer, ordinal }: BlockChoice, attributes: AllocationAttributes): Grant {
  const block = takeOrdinals(offer.block, [ordinal], attributes);
  const changes: Change[] = [...offer.changes, { type: 'put', record: { kind: 'block', value: block } }];
  return { block, address: endpointAddress(view, { block, ordinal }), origin: offer.origin, changes };
}

/** Another attachment that has the endpoint's key. */
function otherOnKey(view: View, endpoint: Endpoint): Attachment | undefined {
  const current = view.endpoint(endpointKey(endpoint))?.attachment;
  return current && !sameAttachment(current, endpoint.attachment) ? current : undefined;
}

/**
 * Writes the endpoint of an attachment with addresses if it is missing or outdated. A key of another attachment is left
 * alone. A concurrent release that does not see the endpoint would leave it over; the changed blocks make that release
 * lose its comparison.
 */
export function refreshEndpoint(
  view: View,
  known: Endpoint,
  endpoint: Endpoint,
  held: readonly HeldAddress[],
): Change[] {
  const key = endpointKey(endpoint);
  const isRecorded = recordedEndpoint(view, key, endpoint.attachment) !== undefined;
  const isChanged = endpoint.addresses.length > known.addresses.length || !sameNetns(endpoint.netns, known.netns);
  const needsWrite = isRecorded ? isChanged : !endpointAt(view, key);
  if (!needsWrite) return [];
  return [...touchBlocks(held), rewriteEndpoint(view, key, endpoint) ?? takeOverKey(view, key, endpoint)];
}

function blocksGainedBy(grants: readonly Grant[]): Pick<Allocation, 'claimed' | 'reclaimed' | 'borrowed'> {
  const blocksOf = (...origins: OfferOrigin[]): Prefix[] =>
    grants.filter(({ origin }) => origins.includes(origin)).map(({ block }) => block.prefix);
  return {
    claimed: blocksOf('claimed', 'reclaimed'),
    reclaimed: blocksOf('reclaimed'),
    borrowed: blocksOf('borrowed'),
  };
}

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

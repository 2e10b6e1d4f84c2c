import { compareAddresses, formatAddress, type Family } from '@podwire/shared/net/address';
import { addressAt, comparePrefixes, formatPrefix, prefixSize, type Prefix } from '@podwire/shared/net/prefix';

import { collectAddresses, type CollectedAddresses } from '../addresses/allocate/block-choice.js';
import { explainRefusal } from '../addresses/allocate/refusal.js';
import { authorizeNode, type AuthorizedNode, type Demand } from '../blocks/demand.js';
import { requireReports } from '../blocks/epoch.js';
import { blocksOf, handleChanges, requireHandleReadable } from '../records/handle-counts.js';
import { endpointAddress } from '../records/derived-endpoint.js';
import { requestLeases } from '../blocks/node-requests.js';
import { nextBatch, releaseHeld } from '../blocks/release-changes.js';
import { beginSearch } from '../blocks/search.js';
import { evaluatePools, servingPools } from '../pools/selection.js';
import { allocatedAtMs } from '../records/attributes.js';
import { heldAddressesIn, takeOrdinals, type Block, type HeldAddress } from '../records/block.js';
import { DEFAULT_CONFIG } from '../records/config.js';
import { isLeaseOf, leaseAttributes, leaseBootId, leaseHandle } from '../records/lease.js';
import type { UnknownNodes } from '../records/node.js';
import { poolOf, type Pool } from '../records/pool.js';
import type { ListedLease, NodeSession } from '../records/session.js';
import type { Change, Decision, View } from '../records/view.js';
import { reservedIn } from '../reservations/reservations.js';
import { selectsAll } from '../selectors/selector.js';
import { foreignAllocator } from './foreign-allocators.js';
import { retakeLeases } from './reallocation.js';
import { displacedBoots, requireSession, updateSession, type SessionName } from './session.js';

/** A request for the unbound leases of a node. */
export interface LeaseRequest {
  readonly nodeName: string;
  /** Identity of the node's boot (proc(5), /proc/sys/kernel/random/boot_id). */
  readonly bootId: string;
  readonly family: Family;
  /** Number of leases of the family that the node wants to hold. */
  readonly count: number;
  /** Session of the boot. */
  readonly session: SessionName;
}

interface LeaseInput {
  readonly request: LeaseRequest;
  readonly unknownNodes: UnknownNodes;
  readonly nowMs: number;
}

/** An unbound lease. */
export interface Lease {
  /** Address of full length: /32 or /128. */
  readonly address: Prefix;
  readonly sequenceNumber: bigint;
  /** Empty when the pool was deleted. */
  readonly poolName: string;
  /** Whether a pod without requests would not get the address now. */
  readonly isOutdated: boolean;
}

/** The result of one step. */
export interface LeaseStep {
  readonly state: 'more' | 'done';
  /** All unbound leases of the node's boot and the family; longest free leases first. */
  readonly leases: readonly Lease[];
  /** Why the node holds fewer than it wants; empty if it does not. */
  readonly explanation: string;
  /** Number of leases of the family that the node may hold. */
  readonly limit: number;
  /** Time before an address of an ended pod may be used again, in milliseconds. */
  readonly coolDownMs: number;
  readonly sessionRevision: number;
  /** Blocks that the node claimed in this step. */
  readonly claimed: readonly Prefix[];
  /** Number of leases that this step made. */
  readonly newCount: number;
  /** Number of leases of former boots that this step freed. */
  readonly freedCount: number;
  /** Number of leases that another tool had released, and that this step took back. */
  readonly takenBackCount: number;
}

const NO_CHANGE = {
  leases: [],
  explanation: '',
  limit: 0,
  coolDownMs: 0,
  sessionRevision: 0,
  claimed: [],
  newCount: 0,
  freedCount: 0,
  takenBackCount: 0,
};

/**
 * Makes a node hold a number of unbound leases: addresses that its pods without requests would get, from its own blocks
 * and from unclaimed ones. Leases of other boots are freed first, with their cool-down. Then the node's listed leases
 * that another tool released are taken back. Idempotent; each step is one transaction.
 * @throws Failure NODE_NOT_FOUND, NODE_BEING_DELETED, SESSION_SUPERSEDED; STORE_RESTORED while nodes are awaited after a
 * restore, because a lease of the backup may be another node's pod by now; STORE_CORRUPT when the session, the handle of the leases, or a block that it names, cannot
 * be read
 */
export function leaseAddresses(view: View, input: LeaseInput): Decision<LeaseStep> {
  const { request, unknownNodes, nowMs } = input;
  const { nodeName, bootId, family, count } = request;
  const session = requireSession(view, nodeName, request.session);
  const node = authorizeNode(view, { nodeName, unknownNodes, nowMs });
  requireReports(view);
  const ofAllBoots = leasesOf(view, nodeName);
  // A machine that was displaced may still give its leases to pods.
  const going = new Set([bootId, ...displacedBoots(view, nodeName)]);
  const former = ofAllBoots.filter(({ attributes }) => !going.has(leaseBootId(attributes)));
  const all = ofBoot(ofAllBoots, bootId);
  if (former.length > 0) return freeFormer(view, former, session, nowMs);
  const vanished = vanishedLeases(session, all);
  if (vanished.length > 0) return takeBack(view, { session, vanished, held: all, node, nowMs });
  const held = all.filter(({ block }) => block.prefix.family === family);
  const demand = leaseDemand(request, node, nowMs);
  const pools = servingPools(view, demand);
  const limit = limitOf(view, demand, { pools, heldCount: held.length });
  const missing = Math.min(count, limit.count) - held.length;
  const collected =
    missing > 0
      ? collectAddresses(beginSearch(view, demand, pools), { count: missing, bytesTaken: 0 })
      : NOTHING_COLLECTED;
  const taken = takeLeases(view, collected, input);
  const holdingAll = [
    ...all.filter(({ block }) => !isAmong(taken.blocks, block)),
    ...ofBoot(leasesIn(taken.blocks, nodeName), bootId),
  ];
  const holding = holdingAll.filter(({ block }) => block.prefix.family === family);
  const updated = updateSession(view, { session, patch: { leases: listedLeases(holdingAll) }, nowMs });
  const isShort = held.length + collected.count < count;
  const explain = () => (count > limit.count ? limit.explanation : shortageText(view, demand, pools));
  return {
    changes:
      taken.changes.length > 0
        ? [...node.changes, ...taken.changes, ...updated.changes]
        : updated.isWritten
          ? updated.changes
          : [],
    outcome: {
      ...NO_CHANGE,
      state: collected.count < missing && !collected.isExhausted ? 'more' : 'done',
      leases: describeLeases(view, demand, holding),
      explanation: isShort ? explain() : '',
      limit: limit.count,
      coolDownMs: Math.max(0, (view.config() ?? DEFAULT_CONFIG).cooldownSeconds) * 1000,
      sessionRevision: updated.revision,
      claimed: collected.grants.flatMap(({ offer }) => (offer.origin === 'own' ? [] : [offer.block.prefix])),
      newCount: collected.count,
    },
  };
}

const NOTHING_COLLECTED: CollectedAddresses = { grants: [], count: 0, isExhausted: true, bytes: 0 };

/**
 * The unbound leases of a node, of all its boots.
 * @throws Failure STORE_CORRUPT when their handle, or a block that it names, cannot be read
 */
export function leasesOf(view: View, nodeName: string): HeldAddress[] {
  return leasesIn(blocksOf(view, requireHandleReadable(view, leaseHandle(nodeName))), nodeName);
}

function leasesIn(blocks: readonly Block[], nodeName: string): HeldAddress[] {
  return blocks.flatMap((block) => heldAddressesIn(block, isLeaseOf(nodeName)));
}

function ofBoot(leases: readonly HeldAddress[], bootId: string): HeldAddress[] {
  return leases.filter(({ attributes }) => leaseBootId(attributes) === bootId);
}

function isAmong(blocks: readonly Block[], { prefix }: Block): boolean {
  return blocks.some((block) => comparePrefixes(block.prefix, prefix) === 0);
}

/** The leases as the session lists them. */
function listedLeases(held: readonly HeldAddress[]): ListedLease[] {
  return held
    .map((lease) => ({ address: addressAt(lease.block.prefix, lease.ordinal), sequenceNumber: numberOf(lease) }))
    .sort((a, b) => compareAddresses(a.address, b.address));
}

/** The listed leases whose allocation is not the node's lease: another tool released them. */
function vanishedLeases({ leases }: NodeSession, held: readonly HeldAddress[]): ListedLease[] {
  if (leases.length === 0) return [];
  const known = new Set(listedLeases(held).map(({ address }) => formatAddress(address)));
  return leases.filter(({ address }) => !known.has(formatAddress(address)));
}

/** Frees former leases with a cool-down: a pod may have had one whose binding the end of the boot prevented. */
function freeFormer(
  view: View,
  leases: readonly HeldAddress[],
  session: NodeSession,
  nowMs: number,
): Decision<LeaseStep> {
  const batch = nextBatch(view, leases);
  const outcome: LeaseStep = { ...NO_CHANGE, state: 'more', freedCount: batch.length };
  const { changes } = updateSession(view, { session, patch: {}, nowMs });
  return { changes: [...releaseHeld(view, batch, nowMs), ...changes], outcome };
}

/** Leases that one step takes back: each may need a block, its affinity and its pool. */
export const TAKEN_BACK_PER_STEP = 24;

interface VanishedLeases {
  readonly session: NodeSession;
  readonly vanished: readonly ListedLease[];
  readonly held: readonly HeldAddress[];
  readonly node: AuthorizedNode;
  readonly nowMs: number;
}

/**
 * Allocates leases again that another tool released. A lease that another holder got meanwhile leaves the list; the node
 * is asked to list again, because the lease may be of the other family.
 */
function takeBack(view: View, { session, vanished, held, node, nowMs }: VanishedLeases): Decision<LeaseStep> {
  const { name: nodeName, bootId } = session;
  const batch = vanished.slice(0, TAKEN_BACK_PER_STEP).map(({ address }) => address);
  const { changes, blocks, lost } = retakeLeases(view, session, batch, nowMs);
  const holding = [
    ...held.filter(({ block }) => !isAmong(blocks, block)),
    ...ofBoot(leasesIn(blocks, nodeName), bootId),
  ];
  const leases = [...listedLeases(holding), ...vanished.slice(TAKEN_BACK_PER_STEP)];
  return {
    changes: [
      ...node.changes,
      ...changes,
      ...updateSession(view, { session, patch: { leases }, nowMs }).changes,
      ...(lost.length > 0 ? requestLeases(view, nodeName) : []),
    ],
    outcome: { ...NO_CHANGE, state: 'more', takenBackCount: batch.length - lost.length },
  };
}

/** The demand of a pod that asks for nothing. */
function leaseDemand({ nodeName, family }: LeaseRequest, { labels }: AuthorizedNode, nowMs: number): Demand {
  return {
    family,
    use: 'Workload',
    owner: { kind: 'host', name: nodeName },
    nodeLabels: labels,
    namespaceLabels: {},
    pools: [],
    maxBlocksCount: 0,
    sparesOtherNodes: true,
    isLimitedToShare: true,
    seed: `${nodeName}/${leaseHandle(nodeName)}`,
    nowMs,
  };
}

/** A pool that serves pods of the node in some namespaces only. */
function namespacedPool(view: View, demand: Demand): Pool | undefined {
  return evaluatePools(view, { ...demand, isAnyNamespace: true }).find(
    ({ pool, skipReason }) => skipReason === undefined && !selectsAll(pool.namespaceSelector),
  )?.pool;
}

interface Limit {
  readonly count: number;
  /** Why the node gets no more. */
  readonly explanation: string;
}

/** The part of the free addresses that one node may lease, so that leases do not use up a small pool. */
const SHARE = 8n;

/** How many leases a node may hold where other nodes need the addresses. */
const SCARCE_COUNT = 2;

interface LimitInput {
  readonly pools: readonly Pool[];
  readonly heldCount: number;
}

/** How many leases a node may hold. */
function limitOf(view: View, demand: Demand, { pools, heldCount }: LimitInput): Limit {
  const dependent = namespacedPool(view, demand);
  if (dependent) {
    const explanation = `pool "${dependent.name}" serves only namespaces that "${dependent.namespaceSelector}" selects, so the pool of a pod depends on its namespace`;
    return { count: 0, explanation };
  }
  if (pools.length === 0) return { count: 0, explanation: explainRefusal(view, demand, 'a lease') };
  const free = pools.reduce((sum, pool) => sum + freeCount(view, pool), BigInt(heldCount));
  const count = Number(free / SHARE);
  const reason = count > SCARCE_COUNT ? scarcityReason(view, pools, free) : undefined;
  if (reason !== undefined)
    return { count: SCARCE_COUNT, explanation: `a node may lease ${SCARCE_COUNT} addresses: ${reason}` };
  const explanation = `a node may lease an eighth of the free addresses, which is ${count} of ${free}`;
  return { count, explanation };
}

/** Why a node holds few leases in the pools, although they have free addresses; undefined if it need not. */
function scarcityReason(view: View, pools: readonly Pool[], free: bigint): string | undefined {
  const size = pools.reduce((sum, { prefix }) => sum + prefixSize(prefix), 0n);
  if (free * 4n < size) return `less than a quarter of the addresses of its pools is free, ${free} of ${size}`;
  const nodeName = foreignAllocator(view, pools);
  return nodeName === undefined ? undefined : `another program allocates in its pools, on node ${nodeName}`;
}

/**
 * Addresses without a holder: cooling ones are free soon, or already and not counted as such before their block is next
 * used. A lower bound: reserved addresses in use count twice, because finding them would take a look at each block.
 */
function freeCount(view: View, { prefix }: Pool): bigint {
  const { used, cooling } = view.blockStatsIn(prefix);
  const free = prefixSize(prefix) - BigInt(used - cooling) - reservedIn(view).countIn(prefix);
  return free > 0n ? free : 0n;
}

function shortageText(view: View, demand: Demand, pools: readonly Pool[]): string {
  const { shares } = beginSearch(view, demand, pools);
  for (const pool of pools) {
    const kept = shares.obstacle(pool);
    if (kept) return `pool "${pool.name}" ${formatPrefix(pool.prefix)}: ${kept.reason}; ${kept.remedy}`;
  }
  const names = pools.map(({ name, prefix }) => `"${name}" ${formatPrefix(prefix)}`).join(', ');
  return `the blocks of node ${demand.owner.name} and the unclaimed ones have no further free address in pool ${names}; addresses of other nodes' blocks are not leased`;
}

interface TakenLeases {
  /** Blocks with the new leases. */
  readonly blocks: readonly Block[];
  readonly changes: readonly Change[];
}

function takeLeases(view: View, { grants }: CollectedAddresses, { request, nowMs }: LeaseInput): TakenLeases {
  if (grants.length === 0) return { blocks: [], changes: [] };
  const attributes = leaseAttributes({ ...request, nowMs });
  // One after another: the sequence numbers keep the order in which the block allocates.
  const blocks = grants.map(({ offer, ordinals }) =>
    ordinals.reduce((block, ordinal) => takeOrdinals(block, [ordinal], attributes), offer.block),
  );
  const handleId = leaseHandle(request.nodeName);
  return {
    blocks,
    changes: [
      ...grants.flatMap(({ offer }) => offer.changes),
      ...blocks.map((value): Change => ({ type: 'put', record: { kind: 'block', value } })),
      ...handleChanges(view, handleId, blocks),
      { type: 'expectUnreleased', handleId },
    ],
  };
}

/**
 * A pod would not get a lease whose pool no longer serves it, that is reserved, or that a pod of another node has, as after
 * the restore of a datastore.
 */
function describeLeases(view: View, demand: Demand, held: readonly HeldAddress[]): Lease[] {
  const serving = namespacedPool(view, demand) ? [] : servingPools(view, demand);
  const reserved = reservedIn(view);
  return held.toSorted(compareLeases).map((lease) => {
    const { address, sequenceNumber, poolName } = endpointAddress(view, lease);
    const isClaimed = view.lessee(address, demand.owner.name) !== undefined;
    const isOutdated = isClaimed || !poolOf(serving, lease.block.prefix) || reserved.contains(address);
    return { address, sequenceNumber, poolName, isOutdated };
  });
}

/** Order by lease time, which in each block is the order of the releases. */
function compareLeases(a: HeldAddress, b: HeldAddress): number {
  const byTime = (allocatedAtMs(a.attributes) ?? 0) - (allocatedAtMs(b.attributes) ?? 0);
  return byTime || comparePrefixes(a.block.prefix, b.block.prefix) || Number(numberOf(a) - numberOf(b));
}

function numberOf({ block, ordinal }: HeldAddress): bigint {
  return block.sequenceNumbers[ordinal] ?? 0n;
}

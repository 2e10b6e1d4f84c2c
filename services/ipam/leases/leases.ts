import type { Family } from '@podwire/shared/net/address';
import { comparePrefixes, formatPrefix, prefixSize, type Prefix } from '@podwire/shared/net/prefix';

import { collectAddresses, type CollectedAddresses } from '../addresses/allocate/block-choice.js';
import { explainRefusal } from '../addresses/allocate/refusal.js';
import { authorizeNode, type AuthorizedNode, type Demand } from '../blocks/demand.js';
import { blocksOf, endpointAddress, handleChanges, requireHandleReadable } from '../blocks/holding.js';
import { nextBatch, releaseHeld } from '../blocks/release-changes.js';
import { beginSearch } from '../blocks/search.js';
import { evaluatePools, servingPools } from '../pools/selection.js';
import { allocatedAtMs } from '../records/attributes.js';
import { heldAddressesIn, takeOrdinals, type Block, type HeldAddress } from '../records/block.js';
import { isLeaseOf, leaseAttributes, leaseBootId, leaseHandle } from '../records/lease.js';
import type { UnknownNodes } from '../records/node.js';
import { poolOf, type Pool } from '../records/pool.js';
import type { Change, Decision, View } from '../records/view.js';
import { reservedIn } from '../reservations/reservations.js';
import { selectsAll } from '../selectors/selector.js';

/** A request for the unbound leases of a node. */
export interface LeaseRequest {
  readonly nodeName: string;
  /** Identity of the node's boot (proc(5), /proc/sys/kernel/random/boot_id). */
  readonly bootId: string;
  readonly family: Family;
  /** Number of leases of the family that the node wants to hold. */
  readonly count: number;
}

interface LeaseInput {
  readonly request: LeaseRequest;
  readonly unknownNodes: UnknownNodes;
  readonly nowMs: number;
}

/** An unbound lease. */
export interface Lease {
  /** Of full length: /32 or /128. */
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
  /** All unbound leases of the node's boot and the family; those that have been free longest first. */
  readonly leases: readonly Lease[];
  /** Why the node holds fewer than it wants; empty if it does not. */
  readonly explanation: string;
  /** Blocks that the node claimed in this step. */
  readonly claimed: readonly Prefix[];
  /** Number of leases that this step made. */
  readonly newCount: number;
  /** Number of leases of former boots that this step freed. */
  readonly freedCount: number;
}

const NO_CHANGE = { leases: [], explanation: '', claimed: [], newCount: 0, freedCount: 0 };

/**
 * Makes a node hold a number of unbound leases: addresses that its pods without requests would get, from its own blocks
 * and from unclaimed ones. Leases of other boots are freed first, with their cool-down. Idempotent; each step is
 * one transaction.
 * @throws Failure NODE_NOT_FOUND, NODE_BEING_DELETED; STORE_CORRUPT when the handle of the leases, or a block that it
 * names, cannot be read
 */
export function leaseAddresses(view: View, input: LeaseInput): Decision<LeaseStep> {
  const { request, unknownNodes, nowMs } = input;
  const { nodeName, bootId, family, count } = request;
  const node = authorizeNode(view, { nodeName, unknownNodes, nowMs });
  const all = leasesOf(view, nodeName);
  const former = all.filter(({ attributes }) => leaseBootId(attributes) !== bootId);
  if (former.length > 0) return freeFormer(view, former, nowMs);
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
  const holding = [...held.filter(({ block }) => !isAmong(taken.blocks, block)), ...leasesIn(taken.blocks, nodeName)];
  const isShort = held.length + collected.count < count;
  const explanation = count > limit.count ? limit.explanation : shortageText(view, demand, pools);
  return {
    changes: taken.changes.length > 0 ? [...node.changes, ...taken.changes] : [],
    outcome: {
      ...NO_CHANGE,
      state: collected.count < missing && !collected.isExhausted ? 'more' : 'done',
      leases: describeLeases(view, demand, holding),
      explanation: isShort ? explanation : '',
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

function isAmong(blocks: readonly Block[], { prefix }: Block): boolean {
  return blocks.some((block) => comparePrefixes(block.prefix, prefix) === 0);
}

/** With their cool-down: a pod may have had one whose binding the end of the boot prevented. */
function freeFormer(view: View, leases: readonly HeldAddress[], nowMs: number): Decision<LeaseStep> {
  const batch = nextBatch(view, leases);
  const outcome: LeaseStep = { ...NO_CHANGE, state: 'more', freedCount: batch.length };
  return { changes: releaseHeld(view, batch, nowMs), outcome };
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
    sparesOthers: true,
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
  const explanation = `a node may lease an eighth of the free addresses, which is ${count} of ${free}`;
  return { count, explanation };
}

/**
 * Addresses without a holder: those that cool down are free soon, or already and not counted as such before their block
 * is next used. At least: reserved addresses in use count twice, because finding them would take a look at each block.
 */
function freeCount(view: View, { prefix }: Pool): bigint {
  const { used, cooling } = view.blockStatsIn(prefix);
  const free = prefixSize(prefix) - BigInt(used - cooling) - reservedIn(view).countIn(prefix);
  return free > 0n ? free : 0n;
}

function shortageText(view: View, demand: Demand, pools: readonly Pool[]): string {
  const names = pools.map(({ name, prefix }) => `"${name}" ${formatPrefix(prefix)}`).join(', ');
  return `the blocks of node ${demand.owner.name} and the unclaimed ones have no further free address in pool ${names}; addresses of other nodes' blocks are not leased`;
}

interface TakenLeases {
  /** With the new leases. */
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

/** A pod would not get a lease whose pool no longer serves it, or that is reserved. */
function describeLeases(view: View, demand: Demand, held: readonly HeldAddress[]): Lease[] {
  const serving = namespacedPool(view, demand) ? [] : servingPools(view, demand);
  const reserved = reservedIn(view);
  return held.toSorted(compareLeases).map((lease) => {
    const { address, sequenceNumber, poolName } = endpointAddress(view, lease);
    const isOutdated = !poolOf(serving, lease.block.prefix) || reserved.contains(address);
    return { address, sequenceNumber, poolName, isOutdated };
  });
}

/** In the order in which the addresses were leased, which each block does in the order of their releases. */
function compareLeases(a: HeldAddress, b: HeldAddress): number {
  const byTime = (allocatedAtMs(a.attributes) ?? 0) - (allocatedAtMs(b.attributes) ?? 0);
  return byTime || comparePrefixes(a.block.prefix, b.block.prefix) || Number(numberOf(a) - numberOf(b));
}

function numberOf({ block, ordinal }: HeldAddress): bigint {
  return block.sequenceNumbers[ordinal] ?? 0n;
}

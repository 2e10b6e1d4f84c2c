import { familyBits } from '@podwire/shared/net/address';
import { formatPrefix, ordinalOf, prefixContains, prefixSize, type Prefix } from '@podwire/shared/net/prefix';

import { cannotRead, expectBlock, removeAffinity } from '../records/absence.js';
import {
  collectCooled,
  isInGracePeriod,
  makeBlock,
  sameOwner,
  takeOrdinals,
  usedCount,
  wholeSeconds,
  type Affinity,
  type Block,
  type BlockOwner,
} from '../records/block.js';
import { DEFAULT_CONFIG, type IpamConfig } from '../records/config.js';
import { handleChanges } from '../records/handle-counts.js';
import { deselects, unavailableReason, poolOf, type Pool } from '../records/pool.js';
import { tunnelAttributes, tunnelHandleId } from '../records/node.js';
import { fnv1a32 } from '../records/versions.js';
import type { Change, View } from '../records/view.js';
import { hasRoom, reservedIn, type ReservedAddresses } from '../reservations/reservations.js';
import type { Demand } from './demand.js';
import { isAwaited } from './epoch.js';
import { overlappingRange } from './lookup.js';
import { NodeShares } from './node-shares.js';

/** A demand with everything that the search for an address depends on. */
export interface Search {
  readonly view: View;
  readonly demand: Demand;
  /** The pools that may serve, in the order of attempts. */
  readonly pools: readonly Pool[];
  /** The defaults if the stored one cannot be read: then no change that depends on it is committed. */
  readonly config: IpamConfig;
  /** Infinite if the configuration cannot be read, because the end of a cool-down is unknown then. */
  readonly cooldownSeconds: number;
  readonly reserved: ReservedAddresses;
  /** How much of each pool the demand's node may take. */
  readonly shares: NodeShares;
}

export function beginSearch(view: View, demand: Demand, pools: readonly Pool[]): Search {
  const config = view.config() ?? DEFAULT_CONFIG;
  const cooldownSeconds = cannotRead(view, { kind: 'config' }) ? Number.POSITIVE_INFINITY : config.cooldownSeconds;
  const input = { view, demand, config, cooldownSeconds, reserved: reservedIn(view) };
  return { ...input, pools, shares: new NodeShares(input) };
}

/** Why an address can be allocated from a block. */
export type OfferOrigin =
  /** The owner had it before. */
  | 'own'
  /** It was unclaimed. */
  | 'claimed'
  /** Another node owned it, and it was empty after the grace period. */
  | 'reclaimed'
  /** It stays with its other owner, or without one. */
  | 'borrowed';

/** A block with an available address. */
export interface Offer {
  /** The block before the allocation, with the cooled addresses freed. */
  readonly block: Block;
  readonly pool: Pool;
  readonly origin: OfferOrigin;
  /** The changes required besides the block's. */
  readonly changes: readonly Change[];
}

/**
 * The blocks to allocate from, best first: the owner's own in address order, unclaimed ones, empty ones of other nodes,
 * and then, unless affinity is strict, any other block with room; none of a pool whose free addresses are kept for other
 * nodes. Lazy and without duplicates: a caller that needs
 * several blocks takes further offers.
 *
 * Both phases of Calico's claim are one transaction here, so no crash leaves a pending affinity. Pending affinities of
 * other writers are completed when their block is available, and removed when another owner has the block.
 */
export function* blockOffers(search: Search): Generator<Offer, void, void> {
  const affinities = ownAffinities(search);
  const stale: Change[] = [];
  yield* withCleanup(search, affinities, stale, candidates());

  function* candidates(): Generator<Offer, void, void> {
    const { autoAllocateBlocks, strictAffinity } = search.config;
    const ownCount = yield* ownOffers(search, affinities, stale);
    const maxNewCount = autoAllocateBlocks ? blockCap(search) - ownCount : 0;
    const unclaimed = yield* upTo(maxNewCount, unclaimedOffers(search));
    if (search.demand.sparesOtherNodes) return;
    const reclaimed = yield* upTo(maxNewCount - unclaimed.length, reclaimableOffers(search));
    if (!strictAffinity) yield* borrowedOffers(search, [...unclaimed, ...reclaimed]);
  }
}

/** Yields a limited number of offers and returns their blocks. Finding one offer more may walk a whole pool. */
function* upTo(limit: number, offers: Iterable<Offer>): Generator<Offer, readonly Prefix[], void> {
  const blocks: Prefix[] = [];
  if (limit <= 0) return blocks;
  for (const offer of offers) {
    yield offer;
    blocks.push(offer.block.prefix);
    if (blocks.length >= limit) break;
  }
  return blocks;
}

/** The pools in which the node may take more than its own blocks. */
function admittedPools({ pools, shares }: Search): Pool[] {
  return pools.filter((pool) => shares.admits(pool));
}

/** The block cap of the owner in the pools of a search: the smaller of the configured and the requested limit. */
export function blockCap({ config, demand }: Pick<Search, 'config' | 'demand'>): number {
  return Math.min(capOf(config.maxBlocksPerHostCount), capOf(demand.maxBlocksCount));
}

function capOf(count: number): number {
  return count > 0 ? count : Number.POSITIVE_INFINITY;
}

/** Own blocks: the blocks that the owner's affinities name. */

/** The owner's affinities. Affinities of full blocks are included only if they count against a block cap. */
function ownAffinities(search: Search): readonly Affinity[] {
  const { view, demand } = search;
  return Number.isFinite(blockCap(search)) ? view.affinitiesOf(demand.owner) : view.usableAffinitiesOf(demand.owner);
}

/**
 * The owner's blocks with available addresses. A block that an affinity names and that is missing is created.
 * @param stale - gets the changes that remove affinities whose block is not the owner's
 * @returns the number of blocks that count against the owner's cap, with or without available addresses
 */
function* ownOffers(search: Search, affinities: readonly Affinity[], stale: Change[]): Generator<Offer, number, void> {
  let count = 0;
  for (const affinity of affinities) {
    const pool = poolOf(search.pools, affinity.block);
    if (!pool) continue;
    const block = search.view.block(affinity.block);
    if (!isOwned(search, pool, affinity.block, block)) {
      if (block) stale.push(...dropStale(search, affinity));
      continue;
    }
    count++;
    const offer = block ? ownOffer(search, pool, block, affinity) : claimOffer(search, pool, affinity.block);
    if (hasRoom(offer.block, search) && search.shares.admitsOffer(offer)) yield offer;
  }
  return count;
}

/** Number of blocks that count against the owner's cap. */
export function ownedCount(search: Search): number {
  const { view, demand, pools } = search;
  return view.affinitiesOf(demand.owner).filter(({ block }) => {
    const pool = poolOf(pools, block);
    return pool !== undefined && isOwned(search, pool, block, view.block(block));
  }).length;
}

/**
 * Whether a block that the owner's affinity names is the owner's, or can be created. It cannot if the pool's blocks have
 * another size, or a block overlaps it.
 */
function isOwned({ view, demand, reserved }: Search, pool: Pool, prefix: Prefix, block: Block | undefined): boolean {
  if (block) return sameOwner(block.owner, demand.owner);
  return prefix.length === pool.blockSizeBits && !overlappingRange(view, prefix) && !reserved.coversAll(prefix);
}

/** A block of the owner. Its next use writes a missing affinity and confirms one that is pending or being deleted. */
export function ownOffer(search: Search, pool: Pool, stored: Block, affinity: Affinity | undefined): Offer {
  const block = collectBlock(search, stored);
  // Whether a cool-down is over depends on the configuration.
  const changes = block === stored ? [expectPool(pool)] : expectRules(search, pool);
  if (affinity?.state !== 'confirmed') changes.push(confirmAffinity(search.demand.owner, block.prefix));
  return { block, pool, origin: 'own', changes };
}

/** Unclaimed blocks: possible ones that do not exist, and orphans. */

/** A missing block that an affinity of the owner names is left out: it was offered as an own one. */
function* unclaimedOffers(search: Search): Generator<Offer, void, void> {
  const { view, demand } = search;
  for (const pool of admittedPools(search)) {
    for (const offer of unclaimedIn(search, pool)) {
      const { prefix } = offer.block;
      if (!view.affinity(demand.owner, prefix) || view.block(prefix)) yield offer;
    }
  }
}

/**
 * Whether a pool has a block that the owner may claim under the pool's rules: an unclaimed one, or one from an
 * unfinished claim.
 */
export function isClaimable(search: Search, pool: Pool): boolean {
  return !unclaimedIn(search, pool).next().done;
}

function* unclaimedIn(search: Search, pool: Pool): Generator<Offer, void, void> {
  for (const result of walkBlocks(search, pool)) {
    if (result.kind === 'unclaimed') {
      if (canChangeAffinity(search, search.demand.owner, result.prefix)) yield claimOffer(search, pool, result.prefix);
      continue;
    }
    const block = collectBlock(search, result.block);
    if (isOrphan(search, block)) yield adoptOffer(search, pool, block);
  }
}

/** A block that is created with the allocation. */
export function claimOffer(search: Search, pool: Pool, prefix: Prefix): Offer {
  const { owner, nowMs } = search.demand;
  const { block, changes } = withRecordedTunnels(search, makeBlock({ prefix, owner, nowMs }));
  return {
    block,
    pool,
    origin: 'claimed',
    changes: [...expectRules(search, pool), confirmAffinity(owner, prefix), ...changes],
  };
}

/**
 * Allocates the tunnel addresses that the owner's record has in the new block. There are some if another tool has deleted the
 * block that had them.
 */
function withRecordedTunnels({ view, demand }: Search, made: Block): Pick<Offer, 'block' | 'changes'> {
  const node = demand.owner.kind === 'host' ? view.node(demand.owner.name) : undefined;
  // The assignment of a tunnel's address replaces the recorded one.
  if (!node || demand.use === 'Tunnel') return { block: made, changes: [] };
  let block = made;
  const handles: string[] = [];
  for (const [kind, { address }] of node.tunnels) {
    if (!prefixContains(block.prefix, address)) continue;
    block = takeOrdinals(block, [ordinalOf(block.prefix, address)], tunnelAttributes(node.name, kind));
    handles.push(tunnelHandleId(node.name, kind));
  }
  if (handles.length === 0) return { block, changes: [] };
  const expectNode: Change = { type: 'expect', record: { kind: 'node', value: node } };
  return { block, changes: [expectNode, ...handles.flatMap((id) => handleChanges(view, id, [block]))] };
}

/**
 * A block that names the owner without an affinity, as after an unfinished claim of another writer, or an empty block
 * without an owner.
 */
function isOrphan(search: Search, block: Block): boolean {
  const { view, demand } = search;
  if (!hasRoom(block, search)) return false;
  if (!canChangeAffinity(search, demand.owner, block.prefix)) return false;
  if (!block.owner) return usedCount(block) === 0;
  return sameOwner(block.owner, demand.owner) && !view.affinity(demand.owner, block.prefix);
}

/** An offer of an orphan (see {@link isOrphan}), owned by the demand's owner. */
function adoptOffer(search: Search, pool: Pool, block: Block): Offer {
  if (!block.owner) return takeoverOffer(search, pool, block);
  return { block, pool, origin: 'claimed', changes: [confirmAffinity(block.owner, block.prefix)] };
}

/** A block that changes its owner with the allocation. The affinity of the previous owner is removed. */
export function takeoverOffer(search: Search, pool: Pool, block: Block): Offer {
  const { view, demand } = search;
  const { owner: before, prefix, sequenceNumber } = block;
  const dropped = before ? removeAffinity(view, before, prefix) : [];
  return {
    block: {
      ...block,
      owner: demand.owner,
      claimTimeMs: wholeSeconds(demand.nowMs),
      sequenceNumber: sequenceNumber + 1n,
    },
    pool,
    origin: before ? 'reclaimed' : 'claimed',
    changes: [...expectRules(search, pool), ...dropped, confirmAffinity(demand.owner, prefix)],
  };
}

/**
 * Reclaimable blocks: empty ones of other nodes. One transaction names the new owner, removes the old affinity and
 * confirms the new one. A concurrent allocation from the block makes that transaction lose its comparison and is not
 * affected.
 */

function* reclaimableOffers(search: Search): Generator<Offer, void, void> {
  for (const { pool, block } of goneFirst(search.view, reclaimableBlocks(search)))
    yield takeoverOffer(search, pool, block);
}

type PoolBlock = Pick<Offer, 'pool' | 'block'>;

function* reclaimableBlocks(search: Search): Generator<PoolBlock, void, void> {
  for (const pool of admittedPools(search)) {
    for (const stored of idleBlocks(search, pool)) {
      const block = collectBlock(search, stored);
      if (isReclaimable(search, block)) yield { pool, block };
    }
  }
}

/** @param block - with the cooled addresses freed; an address that still cools down keeps the block with its owner */
function isReclaimable(search: Search, block: Block): boolean {
  const { view, demand } = search;
  const { owner, prefix } = block;
  if (owner?.kind !== 'host' || sameOwner(owner, demand.owner) || isAwaited(view, owner.name)) return false;
  if (usedCount(block) > 0 || isInGracePeriod(block, demand.nowMs) || !hasRoom(block, search)) return false;
  return canChangeAffinity(search, demand.owner, prefix) && canChangeAffinity(search, owner, prefix);
}

/** Number of blocks searched for one of a deleted node, to bound the cost. */
const MAX_COMPARED_BLOCKS = 64;

/** Blocks of deleted nodes first, among the first {@link MAX_COMPARED_BLOCKS}; then the rest. Lazy. */
function* goneFirst(view: View, blocks: Generator<PoolBlock, void, void>): Generator<PoolBlock, void, void> {
  const compared: PoolBlock[] = [];
  // Not for…of: leaving such a loop would end the generator.
  for (let next = blocks.next(); !next.done; next = blocks.next()) {
    compared.push(next.value);
    if (compared.length === MAX_COMPARED_BLOCKS) break;
  }
  yield* compared.filter(({ block }) => isGone(view, block));
  yield* compared.filter(({ block }) => !isGone(view, block));
  yield* blocks;
}

function isGone(view: View, { owner }: Block): boolean {
  const node = owner && view.node(owner.name);
  if (node) return node.deletionTimeMs !== undefined;
  return !owner || !cannotRead(view, { kind: 'node', name: owner.name });
}

/** Borrowed addresses, from other blocks with room. */

/** @param offered - the blocks that were offered as new ones */
function* borrowedOffers(search: Search, offered: readonly Prefix[]): Generator<Offer, void, void> {
  const excluded = new Set(offered.map(formatPrefix));
  for (const pool of admittedPools(search)) {
    for (const stored of blocksWithRoom(search, pool)) {
      const block = collectBlock(search, stored);
      if (!isBorrowable(search, block) || !hasRoom(block, search)) continue;
      if (!excluded.has(formatPrefix(block.prefix))) yield borrowOffer(search, pool, block);
    }
  }
}

/** A block that keeps its other owner, or stays without one. Each borrowed address gets its own route. */
export function borrowOffer(search: Search, pool: Pool, block: Block): Offer {
  return { block, pool, origin: 'borrowed', changes: expectRules(search, pool) };
}

/**
 * The owner's own blocks were offered before, or exceed its block cap. Blocks of a virtual owner serve load balancers
 * only. Blocks of a node that has not reported since a restore may have more pods than the datastore knows.
 */
function isBorrowable({ view, demand }: Search, { owner }: Block): boolean {
  if (owner?.kind === 'host' && isAwaited(view, owner.name)) return false;
  return !sameOwner(owner, demand.owner) && (owner?.kind !== 'virtual' || demand.use === 'LoadBalancer');
}

/** Comparisons and changes of all kinds of offers. */

/** The block with its cooled addresses freed. */
export function collectBlock({ demand, cooldownSeconds }: Search, block: Block): Block {
  return collectCooled(block, demand.nowMs, cooldownSeconds);
}

export function confirmAffinity(owner: BlockOwner, block: Prefix): Change {
  return { type: 'put', record: { kind: 'affinity', value: { owner, block, state: 'confirmed' } } };
}

/** Whether an affinity can be written or removed: not if its record cannot be read. */
function canChangeAffinity({ view }: Search, owner: BlockOwner, block: Prefix): boolean {
  return !cannotRead(view, { kind: 'affinity', owner, block });
}

/** The comparison for every allocation: nothing is allocated from a pool that is disabled or being deleted. */
export function expectPool(value: Pool): Change {
  return { type: 'expect', record: { kind: 'pool', value } };
}

/**
 * Creating a block or borrowing from it requires that pool and configuration are unchanged at the commit. So a disabled
 * pool gets no new block, and borrowing stops when affinity becomes strict.
 */
function expectRules({ config }: Search, pool: Pool): Change[] {
  return [
    expectPool(pool),
    // If none is stored, this compares that there is still none.
    { type: 'expect', record: { kind: 'config', value: config } },
  ];
}

/** Cleanup of the owner's affinities and blocks, in the transactions of the offers. */

/** Maximum number of changes for stale affinities per offer, two for each affinity. */
const STALE_PER_OFFER = 16;

/** Maximum number of blocks released with one allocation; the next allocation releases more. */
const DESELECTED_PER_ALLOCATION = 4;

/**
 * The offers with the changes for stale affinities found so far. The first offer also releases deselected blocks.
 * @param stale - each change is removed from it when an offer has it
 */
function* withCleanup(
  search: Search,
  affinities: readonly Affinity[],
  stale: Change[],
  offers: Iterable<Offer>,
): Generator<Offer, void, void> {
  let isFirst = true;
  for (const offer of offers) {
    const released = isFirst ? releaseDeselectedBlocks(search, affinities) : [];
    isFirst = false;
    yield { ...offer, changes: [...stale.splice(0, STALE_PER_OFFER), ...released, ...offer.changes] };
  }
}

/** The view may have the affinity of a new claim, but the block from before the claim. */
function dropStale({ view }: Search, affinity: Affinity): Change[] {
  return [dropAffinity(affinity), ...expectBlock(view, affinity.block)];
}

export function dropAffinity(value: Affinity): Change {
  return { type: 'delete', record: { kind: 'affinity', value } };
}

/**
 * Releases empty blocks of the node in pools that no longer select it, with the node's next allocation, so that
 * selected nodes can claim them. Only the node's selection counts. A pool that is skipped for another reason may serve
 * the node's next request, and unavailable pools are left to the operator. The search of the other family handles its
 * own blocks, because it may allocate from them.
 * @param affinities - the node's; affinities of full blocks may be missing
 */
function releaseDeselectedBlocks(search: Search, affinities: readonly Affinity[]): Change[] {
  if (search.demand.owner.kind !== 'host') return [];
  const changes: Change[] = [];
  for (const affinity of affinities) {
    if (changes.length >= 2 * DESELECTED_PER_ALLOCATION) break;
    if (isDeselected(search, affinity)) changes.push(...releaseBlock(search, affinity));
  }
  return changes;
}

function isDeselected({ view, demand, pools }: Search, { block }: Affinity): boolean {
  if (block.family !== demand.family || poolOf(pools, block)) return false;
  const pool = poolOf(view.pools(), block);
  if (!pool || unavailableReason(pool) !== undefined) return false;
  return deselects(pool, demand.nodeLabels);
}

/** A claim writes block and affinity; the view may have the new state of only one of them. */
function releaseBlock(search: Search, affinity: Affinity): Change[] {
  const { view } = search;
  if (cannotRead(view, { kind: 'block', prefix: affinity.block })) return [];
  const stored = view.block(affinity.block);
  if (!stored || !sameOwner(stored.owner, affinity.owner)) return dropStale(search, affinity);
  if (usedCount(collectBlock(search, stored)) > 0) return [];
  return [dropAffinity(affinity), { type: 'delete', record: { kind: 'block', value: stored } }];
}

/**
 * The walk: once around a pool's possible blocks, from a start that differs by owner. Existing blocks that cannot serve
 * cost no time, and neither does the size of the pool.
 */

/** A result of a walk: a possible block that is unclaimed, or an existing block without an affinity. */
export type WalkResult =
  { readonly kind: 'unclaimed'; readonly prefix: Prefix } | { readonly kind: 'existing'; readonly block: Block };

/**
 * Every unclaimed block of a pool, once, in the order of the walk: possible blocks, and existing blocks without an
 * affinity. Lazy, because the blocks of a large pool are too many to list.
 */
export function* walkBlocks(search: Search, pool: Pool): Generator<WalkResult, void, void> {
  const run = { from: 0n, end: 0n };
  for (const part of partsOf(search, pool)) {
    const withoutAffinity = search.view.blocksWithoutAffinityIn(part)[Symbol.iterator]();
    let next = withoutAffinity.next();
    for (const prefix of missingBlocks(search, pool, part, run)) {
      for (; !next.done && next.value.prefix.value < prefix.value; next = withoutAffinity.next())
        yield { kind: 'existing', block: next.value };
      yield { kind: 'unclaimed', prefix };
    }
    for (; !next.done; next = withoutAffinity.next()) yield { kind: 'existing', block: next.value };
  }
}

/** The blocks of a pool that have free or cooling addresses, once each, in the order of the walk. */
export function* blocksWithRoom(search: Search, pool: Pool): Generator<Block, void, void> {
  for (const part of partsOf(search, pool)) yield* search.view.blocksWithRoomIn(part);
}

/** The blocks of a pool that hosts own without an allocated address, once each, in the order of the walk. */
export function* idleBlocks(search: Search, pool: Pool): Generator<Block, void, void> {
  for (const part of partsOf(search, pool)) yield* search.view.idleBlocksIn(part);
}

/** The pool in the order of the walk, as prefixes. */
function* partsOf({ demand }: Search, pool: Pool): Generator<Prefix, void, void> {
  const count = blockCount(pool);
  if (count === 0n) return;
  const start = BigInt(fnv1a32(walkSeed(demand, pool))) % count;
  yield* alignedParts(pool, start, count);
  yield* alignedParts(pool, 0n, start);
}

/** Each owner starts elsewhere, so they seldom collide. For blocks of a single address, each request does. */
function walkSeed({ owner, seed }: Demand, { prefix, blockSizeBits }: Pool): string {
  return blockSizeBits === familyBits(prefix.family) ? seed : owner.name;
}

/** Number of blocks that fit into a pool; 0 if the pool is smaller than a block. */
export function blockCount({ prefix, blockSizeBits }: Pool): bigint {
  return blockSizeBits < prefix.length ? 0n : 1n << BigInt(blockSizeBits - prefix.length);
}

/**
 * A range of a pool's blocks as the fewest possible prefixes, in order: at most two per bit of the range.
 * @param first - number of the first block, counted from 0
 * @param end - number of the block after the last one
 */
function* alignedParts({ prefix, blockSizeBits }: Pool, first: bigint, end: bigint): Generator<Prefix, void, void> {
  const hostBits = BigInt(familyBits(prefix.family) - blockSizeBits);
  for (let index = first; index < end;) {
    let bits = 0n;
    while ((index >> bits) % 2n === 0n && index + (1n << (bits + 1n)) <= end) bits++;
    yield { ...prefix, value: prefix.value + (index << hostBits), length: blockSizeBits - Number(bits) };
    index += 1n << bits;
  }
}

/**
 * The possible blocks of a part that do not exist. Existing blocks are skipped in runs. A surrounding block of another
 * size, an unreadable block, and a reservation of the whole block rule a block out; the range they cover is skipped in
 * one step.
 * @param run - the last run of existing blocks: it may extend over the next parts
 */
function* missingBlocks(
  { view, reserved }: Search,
  pool: Pool,
  part: Prefix,
  run: { from: bigint; end: bigint },
): Generator<Prefix, void, void> {
  const step = 1n << BigInt(familyBits(part.family) - pool.blockSizeBits);
  const end = part.value + prefixSize(part);
  for (let value = run.end > part.value && run.from <= part.value ? run.end : part.value; value < end;) {
    const prefix: Prefix = { family: part.family, value, length: pool.blockSizeBits };
    const next = value + step;
    const existing = view.consecutiveBlocks(prefix);
    if (existing > 0) {
      run.from = value;
      run.end = value + BigInt(existing) * step;
      value = run.end;
      continue;
    }
    if (reserved.coversAll(prefix)) {
      const free = reserved.nextFree(prefix);
      value += ((free - value) / step) * step;
      continue;
    }
    const across = overlappingRange(view, prefix);
    if (!across) yield prefix;
    const acrossEnd = across ? across.value + prefixSize(across) : next;
    value = acrossEnd > next ? acrossEnd : next;
  }
}

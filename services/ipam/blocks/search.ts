import { familyBits } from '@podwire/shared/net/address';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import { cannotRead, expectNoAffinity, expectNoBlock } from '../records/absence.js';
import {
  collectCooled,
  makeBlock,
  sameOwner,
  usedCount,
  wholeSeconds,
  type Affinity,
  type Block,
  type BlockOwner,
} from '../records/block.js';
import { DEFAULT_CONFIG, type IpamConfig } from '../records/config.js';
import { unavailableReason, poolOf, type Pool } from '../records/pool.js';
import type { Change, View } from '../records/view.js';
import { hasRoom, reservedIn, type ReservedAddresses } from '../reservations/reservations.js';
import { matches } from '../selectors/selector.js';
import type { Demand } from './demand.js';
import { overlappingRange } from './lookup.js';
import { idleBlocks, blocksWithRoom, walkBlocks } from './pool-walk.js';

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
}

export function beginSearch(view: View, demand: Demand, pools: readonly Pool[]): Search {
  const config = view.config() ?? DEFAULT_CONFIG;
  const cooldownSeconds = cannotRead(view, { kind: 'config' }) ? Number.POSITIVE_INFINITY : config.cooldownSeconds;
  return { view, demand, pools, config, cooldownSeconds, reserved: reservedIn(view) };
}

/** The block cap of the owner in the pools of a search: the smaller of the configured and the requested limit. */
export function blockCap({ config, demand }: Pick<Search, 'config' | 'demand'>): number {
  return Math.min(capOf(config.maxBlocksPerHostCount), capOf(demand.maxBlocksCount));
}

function capOf(count: number): number {
  return count > 0 ? count : Number.POSITIVE_INFINITY;
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

/** The block with its cooled addresses freed. */
export function collectBlock({ demand, cooldownSeconds }: Search, block: Block): Block {
  return collectCooled(block, demand.nowMs, cooldownSeconds);
}

export function confirmAffinity(owner: BlockOwner, block: Prefix): Change {
  return { type: 'put', record: { kind: 'affinity', value: { owner, block, state: 'confirmed' } } };
}

/** Whether the owner's affinity can be written: not if its record cannot be read. */
function canConfirm({ view, demand: { owner } }: Search, block: Prefix): boolean {
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
export function expectRules({ config }: Search, pool: Pool): Change[] {
  return [
    expectPool(pool),
    // If none is stored, this compares that there is still none.
    { type: 'expect', record: { kind: 'config', value: config } },
  ];
}

interface Claim {
  readonly pool: Pool;
  readonly prefix: Prefix;
}

/** A block that is created with the allocation. */
export function claimOffer(search: Search, { pool, prefix }: Claim): Offer {
  const { owner, nowMs } = search.demand;
  return {
    block: makeBlock({ prefix, owner, nowMs }),
    pool,
    origin: 'claimed',
    changes: [...expectRules(search, pool), confirmAffinity(owner, prefix)],
  };
}

export interface ExistingBlock {
  readonly block: Block;
  readonly pool: Pool;
}

/** A block that changes its owner with the allocation. The affinity of the previous owner is removed. */
export function takeoverOffer(search: Search, { block, pool }: ExistingBlock): Offer {
  const { view, demand } = search;
  const { owner: before, prefix, sequenceNumber } = block;
  const affinity = before && view.affinity(before, prefix);
  const dropped: Change[] = affinity
    ? [{ type: 'delete', record: { kind: 'affinity', value: affinity } }]
    : before
      ? expectNoAffinity(view, before, prefix)
      : [];
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

/** Each owner starts elsewhere. For blocks of a single address, each request does. */
function walkSeed({ demand }: Search, { blockSizeBits }: Pool): string {
  return blockSizeBits === familyBits(demand.family) ? demand.seed : demand.owner.name;
}

/**
 * Blocks of other owners and without an owner that have available addresses. They keep their owners; each borrowed
 * address gets its own route. Blocks of a virtual owner serve load balancers only.
 */
function* borrowOffers(search: Search): Generator<Offer, void, void> {
  for (const pool of search.pools) {
    for (const stored of blocksWithRoom(search.view, { pool, seed: walkSeed(search, pool) })) {
      const block = collectBlock(search, stored);
      if (isBorrowable(search, block) && hasRoom(block, search.reserved))
        yield { block, pool, origin: 'borrowed', changes: expectRules(search, pool) };
    }
  }
}

/** The owner's own blocks were offered before, or exceed its block cap. */
function isBorrowable({ demand }: Search, { owner }: Block): boolean {
  return !sameOwner(owner, demand.owner) && (owner?.kind !== 'virtual' || demand.use === 'LoadBalancer');
}

/** Maximum number of changes for stale affinities per offer, two for each affinity. */
const STALE_PER_OFFER = 16;

/**
 * The blocks to allocate from, best first: the owner's own in address order, unclaimed ones, empty ones of other nodes,
 * and then, unless affinity is strict, any other block with room. Lazy and without duplicates: a caller that needs
 * several blocks takes further offers.
 *
 * Both phases of Calico's claim are one transaction here, so no crash leaves a pending affinity. Pending affinities of
 * other writers are completed when their block is available, and removed when another owner has the block.
 */
export function* blockOffers(search: Search): Generator<Offer, void, void> {
  const stale: Change[] = [];
  const used: Prefix[] = [];
  const affinities = ownAffinities(search);
  const withCleanup = (offer: Offer): Offer => {
    const released = used.length === 0 ? releaseDeselectedBlocks(search, affinities) : [];
    used.push(offer.block.prefix);
    if (stale.length === 0 && released.length === 0) return offer;
    return { ...offer, changes: [...stale.splice(0, STALE_PER_OFFER), ...released, ...offer.changes] };
  };
  let owned = 0;
  for (const affinity of affinities) {
    const found = ownBlock(search, affinity);
    if (!found) continue;
    if (found.kind === 'stale') {
      // The view may have the affinity of a new claim, but the block from before the claim.
      stale.push(
        { type: 'delete', record: { kind: 'affinity', value: affinity } },
        { type: 'expect', record: { kind: 'block', value: found.block } },
      );
      continue;
    }
    owned++;
    if (found.offer) yield withCleanup(found.offer);
  }
  for (const offer of newOffers(search, blockCap(search) - owned)) yield withCleanup(offer);
  if (search.config.strictAffinity) return;
  const offered = new Set(used.map(formatPrefix));
  for (const offer of borrowOffers(search))
    if (!offered.has(formatPrefix(offer.block.prefix))) yield withCleanup(offer);
}

type OwnBlock =
  | { readonly kind: 'stale'; readonly block: Block }
  /** Without an offer if the block has no available address. */
  | { readonly kind: 'own'; readonly offer: Offer | undefined };

/** The owner's affinities. Those of full blocks are included only if they count against a block cap. */
function ownAffinities(search: Search): readonly Affinity[] {
  const { view, demand } = search;
  return Number.isFinite(blockCap(search)) ? view.affinitiesOf(demand.owner) : view.usableAffinitiesOf(demand.owner);
}

/** The block of one of the owner's affinities; undefined if it is in no pool of the search, or cannot be created. */
function ownBlock(search: Search, affinity: Affinity): OwnBlock | undefined {
  const { view, demand, pools } = search;
  const pool = poolOf(pools, affinity.block);
  if (!pool) return undefined;
  const block = view.block(affinity.block);
  if (block && !sameOwner(block.owner, demand.owner)) return { kind: 'stale', block };
  if (block) return { kind: 'own', offer: ownOffer(search, { affinity, block, pool }) };
  if (!isCreatable(search, affinity.block, pool)) return undefined;
  return { kind: 'own', offer: claimOffer(search, { pool, prefix: affinity.block }) };
}

/**
 * Whether a block that an affinity names can be created: not if the pool's blocks have another size, or a block
 * overlaps it.
 */
function isCreatable({ view, reserved }: Search, prefix: Prefix, pool: Pool): boolean {
  return prefix.length === pool.blockSizeBits && !overlappingRange(view, prefix) && !reserved.coversAll(prefix);
}

interface OwnBlockInput {
  readonly affinity: Affinity;
  readonly block: Block;
  readonly pool: Pool;
}

/** A block of the owner. Its next use confirms an affinity that is pending or in pending deletion. */
function ownOffer(search: Search, { affinity, block, pool }: OwnBlockInput): Offer | undefined {
  const collected = collectBlock(search, block);
  if (!hasRoom(collected, search.reserved)) return undefined;
  // Whether a cool-down is over depends on the configuration.
  const changes = collected === block ? [expectPool(pool)] : expectRules(search, pool);
  if (affinity.state !== 'confirmed') changes.push(confirmAffinity(affinity.owner, affinity.block));
  return { block: collected, pool, origin: 'own', changes };
}

/** Blocks that the owner may claim, up to the limit. */
function* newOffers(search: Search, limit: number): Generator<Offer, void, void> {
  if (!search.config.autoAllocateBlocks || limit <= 0) return;
  let offeredCount = 0;
  for (const offer of claimOffers(search)) {
    yield offer;
    if (++offeredCount >= limit) return;
  }
}

/** Number of blocks that count against the owner's cap. */
export function ownedCount(search: Search): number {
  const { view, demand, pools } = search;
  return view.affinitiesOf(demand.owner).filter(({ block: prefix }) => {
    const pool = poolOf(pools, prefix);
    const block = pool && view.block(prefix);
    return block ? sameOwner(block.owner, demand.owner) : pool !== undefined && isCreatable(search, prefix, pool);
  }).length;
}

/**
 * Whether a pool has a block that the owner may claim under the pool's rules: an unclaimed one, or one from an
 * unfinished claim.
 */
export function isClaimable(search: Search, pool: Pool): boolean {
  return !claimsIn(search, pool).next().done;
}

/** Unclaimed blocks of all pools come before reclaimed ones; among those, blocks of deleted nodes come first. */
function* claimOffers(search: Search): Generator<Offer, void, void> {
  for (const pool of search.pools) yield* claimsIn(search, pool);
  for (const existing of reclaimOrder(search, reclaimable(search))) yield takeoverOffer(search, existing);
}

function* claimsIn(search: Search, pool: Pool): Generator<Offer, void, void> {
  const { view, reserved } = search;
  for (const result of walkBlocks(view, { pool, seed: walkSeed(search, pool), reserved })) {
    if (result.kind === 'unclaimed') {
      if (canConfirm(search, result.prefix)) yield claimOffer(search, { pool, prefix: result.prefix });
      continue;
    }
    const block = collectBlock(search, result.block);
    if (isOrphan(search, block)) yield adoptOffer(search, { block, pool });
  }
}

function* reclaimable(search: Search): Generator<ExistingBlock, void, void> {
  for (const pool of search.pools) {
    for (const stored of idleBlocks(search.view, { pool, seed: walkSeed(search, pool) })) {
      const block = collectBlock(search, stored);
      if (isReclaimable(search, block)) yield { block, pool };
    }
  }
}

/**
 * A block that names the owner without an affinity, as after an unfinished claim of another writer, or an empty block
 * without an owner.
 */
function isOrphan(search: Search, block: Block): boolean {
  const { view, demand, reserved } = search;
  if (!hasRoom(block, reserved)) return false;
  if (!canConfirm(search, block.prefix)) return false;
  if (!block.owner) return usedCount(block) === 0;
  return sameOwner(block.owner, demand.owner) && !view.affinity(demand.owner, block.prefix);
}

/** An offer of an orphan (see {@link isOrphan}), owned by the demand's owner. */
function adoptOffer(search: Search, { block, pool }: ExistingBlock): Offer {
  if (!block.owner) return takeoverOffer(search, { block, pool });
  return { block, pool, origin: 'claimed', changes: [confirmAffinity(block.owner, block.prefix)] };
}

/**
 * Empty blocks of other nodes, which are reclaimed if no pool has an unclaimed block left. One transaction names the
 * new owner, removes the old affinity and confirms the new one. A concurrent allocation from the block makes that
 * transaction lose its comparison and is not affected.
 */

/**
 * Grace period before an unused claimed block may be reclaimed, in milliseconds: its first address may be in flight.
 */
const CLAIM_GRACE_MS = 60_000;

/** @param block - with the cooled addresses freed; an address that still cools down keeps the block with its owner */
function isReclaimable(search: Search, block: Block): boolean {
  const { view, demand, reserved } = search;
  const { owner, claimTimeMs, prefix } = block;
  if (owner?.kind !== 'host' || sameOwner(owner, demand.owner)) return false;
  if (usedCount(block) > 0 || isInGracePeriod(claimTimeMs, demand.nowMs) || !hasRoom(block, reserved)) return false;
  return canConfirm(search, prefix) && !cannotRead(view, { kind: 'affinity', owner, block: prefix });
}

/** A claim time in the future comes from another replica's clock and is ignored. Old blocks have no claim time. */
export function isInGracePeriod(claimTimeMs: number | undefined, nowMs: number): boolean {
  return claimTimeMs !== undefined && Math.abs(nowMs - claimTimeMs) < CLAIM_GRACE_MS;
}

/** Number of blocks searched for one of a deleted node, to bound the cost. */
const MAX_COMPARED_BLOCKS = 64;

/** Blocks of deleted nodes first, among the first {@link MAX_COMPARED_BLOCKS}; then the rest. Lazy. */
function* reclaimOrder<Item extends { readonly block: Block }>(
  { view }: Search,
  items: Iterable<Item>,
): Generator<Item, void, void> {
  const first: Item[] = [];
  const all = items[Symbol.iterator]();
  for (let next = all.next(); !next.done; next = all.next()) {
    first.push(next.value);
    if (first.length === MAX_COMPARED_BLOCKS) break;
  }
  yield* first.filter(({ block }) => isGone(view, block));
  yield* first.filter(({ block }) => !isGone(view, block));
  for (let next = all.next(); !next.done; next = all.next()) yield next.value;
}

function isGone(view: View, { owner }: Block): boolean {
  const node = owner && view.node(owner.name);
  if (node) return node.deletionTimeMs !== undefined;
  return !owner || !cannotRead(view, { kind: 'node', name: owner.name });
}

/** Maximum number of blocks released with one allocation; the next allocation releases more. */
const DESELECTED_PER_ALLOCATION = 4;

/**
 * Releases empty blocks of the node in pools that no longer select it, with the node's next allocation, so that
 * selected nodes can claim them. Only the node's selection counts. A pool that is skipped for another reason may serve
 * the node's next request, and unavailable pools are left to the operator. The search of the other family handles its
 * own blocks, because it may allocate from them.
 * @param affinities - the node's; those of full blocks may be missing
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
  const { matches: selected, fault } = matches(pool.nodeSelector, demand.nodeLabels);
  return !selected && fault === undefined;
}

function releaseBlock(search: Search, affinity: Affinity): Change[] {
  const stored = search.view.block(affinity.block);
  const blockName = { kind: 'block', prefix: affinity.block } as const;
  const dropped: Change = { type: 'delete', record: { kind: 'affinity', value: affinity } };
  // A claim writes block and affinity; the view may have the new state of only one of them.
  if (!stored) return cannotRead(search.view, blockName) ? [] : [dropped, expectNoBlock(affinity.block)];
  if (!sameOwner(stored.owner, affinity.owner))
    return [dropped, { type: 'expect', record: { kind: 'block', value: stored } }];
  if (usedCount(collectBlock(search, stored)) > 0) return [];
  return [dropped, { type: 'delete', record: { kind: 'block', value: stored } }];
}

import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import { sameOwner } from '../blocks/demand.js';
import { idleBlocks, walkBlocks } from '../blocks/pool-walk.js';
import {
  blockCap,
  canConfirm,
  claimOffer,
  collect,
  confirm,
  expectPool,
  expectRules,
  seedOf,
  takeoverOffer,
  type Existing,
  type Offer,
  type Search,
} from '../blocks/search.js';
import { poolOf, takenAcross } from '../pools/pools.js';
import { usedCount } from '../records/block.js';
import type { Change } from '../records/view.js';
import { borrowOffers } from './borrow.js';
import { isReclaimable, reclaimOrder } from './reclaim.js';
import type { Affinity, Block, Pool } from './records.js';
import { hasRoom } from './reserved.js';
import { strayChanges } from './stray.js';

/** At most so many changes about affinities that turned out to be stale come along with one offer, two for each. */
const STALE_PER_OFFER = 16;

/**
 * The blocks to take addresses from, best first: the owner's own in the order of their addresses, then such as nobody has, then empty
 * ones of others, and then, unless affinity is strict, whatever others' blocks have left. Lazy, and no block twice, so that
 * whoever needs more than one block takes further offers.
 *
 * Both phases of Calico's claim are in one transaction here, so that no crash leaves a pending affinity behind. Those that
 * others left are completed when their block can be had, and removed when the block is another's.
 */
export function* offers(search: Search): Generator<Offer, void, void> {
  const stale: Change[] = [];
  const used: Prefix[] = [];
  const affinities = ownAffinities(search);
  const complete = (offer: Offer): Offer => {
    const strays = used.length === 0 ? strayChanges(search, affinities) : [];
    used.push(offer.block.prefix);
    if (stale.length === 0 && strays.length === 0) return offer;
    return { ...offer, changes: [...stale.splice(0, STALE_PER_OFFER), ...strays, ...offer.changes] };
  };
  let owned = 0;
  for (const affinity of affinities) {
    const found = ownBlock(search, affinity);
    if (!found) continue;
    if (found.kind === 'stale') {
      // The view may have the affinity of a new claim, and the block of before it.
      stale.push(
        { type: 'delete', record: { kind: 'affinity', value: affinity } },
        { type: 'expect', record: { kind: 'block', value: found.block } },
      );
      continue;
    }
    owned++;
    if (found.offer) yield complete(found.offer);
  }
  for (const offer of newOffers(search, blockCap(search) - owned)) yield complete(offer);
  if (search.config.strictAffinity) return;
  const offered = new Set(used.map(formatPrefix));
  for (const offer of borrowOffers(search)) if (!offered.has(formatPrefix(offer.block.prefix))) yield complete(offer);
}

type OwnBlock =
  | { readonly kind: 'stale'; readonly block: Block }
  /** Without an offer where the block has nothing to give. */
  | { readonly kind: 'own'; readonly offer: Offer | undefined };

/** The owner's affinities. Those of full blocks are met only where they count: against the number of blocks that it may have. */
function ownAffinities(search: Search): readonly Affinity[] {
  const { view, demand } = search;
  return Number.isFinite(blockCap(search)) ? view.affinitiesOf(demand.owner) : view.unspentAffinitiesOf(demand.owner);
}

/** The block of one of the owner's affinities; undefined where it is in no pool of the search, or cannot be. */
function ownBlock(search: Search, affinity: Affinity): OwnBlock | undefined {
  const { view, demand, pools } = search;
  const pool = poolOf(pools, affinity.block);
  if (!pool) return undefined;
  const block = view.block(affinity.block);
  if (block && !sameOwner(block.owner, demand.owner)) return { kind: 'stale', block };
  if (block) return { kind: 'own', offer: ownOffer(search, { affinity, block, pool }) };
  if (!fits(search, affinity.block, pool)) return undefined;
  return { kind: 'own', offer: claimOffer(search, { pool, prefix: affinity.block }) };
}

/** Whether a block that an affinity names may be made: not when the pool's blocks have another size, or another lies across it. */
function fits({ view, reserved }: Search, prefix: Prefix, pool: Pool): boolean {
  return prefix.length === pool.blockSizeBits && !takenAcross(view, prefix) && !reserved.coversAll(prefix);
}

interface Owned {
  readonly affinity: Affinity;
  readonly block: Block;
  readonly pool: Pool;
}

/** A block of the owner's own. An affinity that is pending, or was being given up, is confirmed by its next use. */
function ownOffer(search: Search, { affinity, block, pool }: Owned): Offer | undefined {
  const collected = collect(search, block);
  if (!hasRoom(collected, search.reserved)) return undefined;
  // That a cool-down is over rests on how long it is.
  const changes = collected === block ? [expectPool(pool)] : expectRules(search, pool);
  if (affinity.state !== 'confirmed') changes.push(confirm(affinity.owner, affinity.block));
  return { block: collected, pool, origin: 'own', changes };
}

/** Blocks that become the owner's, as many as it may have more of. */
function* newOffers(search: Search, limit: number): Generator<Offer, void, void> {
  if (!search.config.autoAllocateBlocks || limit <= 0) return;
  let given = 0;
  for (const offer of gains(search)) {
    yield offer;
    if (++given >= limit) return;
  }
}

/** How many blocks count against those that the owner may have. */
export function ownedCount(search: Search): number {
  const { view, demand, pools } = search;
  return view.affinitiesOf(demand.owner).filter(({ block: prefix }) => {
    const pool = poolOf(pools, prefix);
    const block = pool && view.block(prefix);
    return block ? sameOwner(block.owner, demand.owner) : pool !== undefined && fits(search, prefix, pool);
  }).length;
}

/** Whether a pool has a block that the owner can claim as far as the pool is concerned: one that nobody has, or that a claim left. */
export function isClaimable(search: Search, pool: Pool): boolean {
  return !claimsIn(search, pool).next().done;
}

/** What nobody has in any of the pools comes before what others have, and of that the blocks of nodes that are gone. */
function* gains(search: Search): Generator<Offer, void, void> {
  for (const pool of search.pools) yield* claimsIn(search, pool);
  for (const existing of reclaimOrder(search, reclaimable(search))) yield takeoverOffer(search, existing);
}

function* claimsIn(search: Search, pool: Pool): Generator<Offer, void, void> {
  const { view, reserved } = search;
  for (const met of walkBlocks(view, { pool, seed: seedOf(search, pool), reserved })) {
    if (met.kind === 'unclaimed') {
      if (canConfirm(search, met.prefix)) yield claimOffer(search, { pool, prefix: met.prefix });
      continue;
    }
    const block = collect(search, met.block);
    if (isOrphan(search, block)) yield adoptOffer(search, { block, pool });
  }
}

function* reclaimable(search: Search): Generator<Existing, void, void> {
  for (const pool of search.pools) {
    for (const stored of idleBlocks(search.view, { pool, seed: seedOf(search, pool) })) {
      const block = collect(search, stored);
      if (isReclaimable(search, block)) yield { block, pool };
    }
  }
}

/**
 * A block that names the owner without an affinity, as another writer's claim that did not end leaves it, or that names nobody and
 * is empty.
 */
function isOrphan(search: Search, block: Block): boolean {
  const { view, demand, reserved } = search;
  if (!hasRoom(block, reserved)) return false;
  if (!canConfirm(search, block.prefix)) return false;
  if (!block.owner) return usedCount(block) === 0;
  return sameOwner(block.owner, demand.owner) && !view.affinity(demand.owner, block.prefix);
}

/** What {@link isOrphan} found, in the owner's hands. */
function adoptOffer(search: Search, { block, pool }: Existing): Offer {
  if (!block.owner) return takeoverOffer(search, { block, pool });
  return { block, pool, origin: 'claimed', changes: [confirm(block.owner, block.prefix)] };
}

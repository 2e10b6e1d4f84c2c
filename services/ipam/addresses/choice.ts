import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix, ordinalOf, prefixContains, prefixOf } from '@podwire/shared/net/prefix';

import type { Demand } from '../blocks/demand.js';
import { overlappingBlock, takenAcross } from '../blocks/lookup.js';
import {
  beginSearch,
  claimOffer,
  collect,
  confirm,
  expectPool,
  expectRules,
  offers,
  takeoverOffer,
  type Offer,
  type Search,
} from '../blocks/search.js';
import { wrongUse } from '../pools/selection.js';
import { corruptFailure, requireReadable } from '../records/absence.js';
import type { AllocationAttributes } from '../records/attributes.js';
import {
  BLOCK_BYTES_PER_REQUEST,
  BLOCK_BYTES_PER_STEP,
  blockBytes,
  bytesOf,
  fitOneRequest,
} from '../records/block-stats.js';
import { attributesAt, sameOwner, usedCount, type Block, type Ordinal } from '../records/block.js';
import { outOfUse, type Pool } from '../records/pool.js';
import type { Change, View } from '../records/view.js';
import { firstGivable, givable } from '../reservations/reservations.js';

/**
 * Where the addresses of one transaction come from. Each address writes its whole block, and etcd takes 1.5 MiB in one request, so
 * blocks of thousands of addresses may be too large for each other.
 */

/** An address to take, and the block to take it from. */
export interface Place {
  readonly offer: Offer;
  readonly ordinal: Ordinal;
}

/** The places that may serve one demand, best first; lazy, and from the best again each time that it is iterated. */
export type Places = Iterable<Place>;

/** Of so many blocks one is chosen that fits; a pool may have 2^64 that are all as large. */
const MAX_WEIGHED_BLOCKS = 64;

/** Of each block that has something to give the address that has been free for longest, the best block first. */
export function placesOf(search: Search): Places {
  return {
    *[Symbol.iterator](): Generator<Place, void, void> {
      for (const offer of offers(search)) {
        const ordinal = firstGivable(offer.block, search.reserved);
        if (ordinal !== undefined) yield { offer, ordinal };
      }
    },
  };
}

/**
 * A place for each demand: the best ones, as long as one request can write all their blocks. Where it cannot, blocks are passed over for
 * such as fit, the later demands' before the first's. Where none fit, the best are tried: etcd may take more than is known here.
 * @param demands - the places of each, which lie in different blocks
 * @param written - the blocks that the transaction writes besides
 * @returns in the order of the demands, undefined for one that has no place
 */
export function choosePlaces(demands: readonly Places[], written: readonly Block[] = []): (Place | undefined)[] {
  const best = demands.map(bestOf);
  const blocks = best.flatMap((place) => (place ? [place.offer.block] : []));
  if (blocks.length < demands.length || fitOneRequest([...written, ...blocks])) return best;
  return fitting(demands, BLOCK_BYTES_PER_REQUEST - bytesOf(written)) ?? best;
}

/** Without asking for a second one, which may be a walk over a pool away. */
function bestOf(places: Places): Place | undefined {
  for (const place of places) return place;
  return undefined;
}

/** The first places that leave enough for the smallest of each later demand; undefined when none do. */
function fitting([places, ...later]: readonly Places[], bytesLeft: number): Place[] | undefined {
  if (!places) return [];
  const laterBytes = later.reduce((sum, others) => sum + leastBytes(others), 0);
  for (const place of first(places, MAX_WEIGHED_BLOCKS)) {
    const bytes = blockBytes(place.offer.block);
    if (bytes + laterBytes > bytesLeft) continue;
    const rest = fitting(later, bytesLeft - bytes);
    return rest && [place, ...rest];
  }
  return undefined;
}

function leastBytes(places: Places): number {
  return Math.min(...first(places, MAX_WEIGHED_BLOCKS).map(({ offer }) => blockBytes(offer.block)));
}

/** Addresses of one block. */
interface Grant {
  readonly offer: Offer;
  /** In the order of allocation, at least one. */
  readonly ordinals: readonly Ordinal[];
}

/** What one transaction can take for a demand. */
export interface Gathered {
  readonly grants: readonly Grant[];
  readonly count: number;
  /** Whether there is no more; otherwise it is the transaction that is full. */
  readonly isExhausted: boolean;
  /** What the blocks take in the transaction, about. */
  readonly bytes: number;
}

export interface Want {
  readonly count: number;
  /** What the blocks of another family take in the same transaction already; 0 where there is none. */
  readonly bytesTaken: number;
}

/** Records that one family's part of a transaction may name; etcd allows 128 operations for all of it, and the handle takes some. */
const MAX_RECORDS = 44;

/**
 * Takes addresses from the best blocks, each block's in the order in which they have been free, until there are enough. Blocks that are
 * too large for a request by themselves come last, and alone: etcd may take more than is known here.
 */
export function gather(search: Search, { count: wanted, bytesTaken }: Want): Gathered {
  const grants: Grant[] = [];
  let count = 0;
  let records = 0;
  const pools = new Set<string>();
  let bytes = 0;
  let isExhausted = true;
  let tooLarge: Offer | undefined;
  const take = (offer: Offer): void => {
    bytes += blockBytes(offer.block);
    const ordinals = first(givable(offer.block, search.reserved), wanted - count);
    grants.push({ offer, ordinals });
    count += ordinals.length;
  };
  for (const offer of offers(search)) {
    if (!fitOneRequest([offer.block])) {
      tooLarge ??= offer;
      continue;
    }
    pools.add(offer.pool.name);
    records += 1 + offer.changes.filter((change) => !isShared(change)).length;
    const isOver =
      records + pools.size > MAX_RECORDS || bytesTaken + bytes + blockBytes(offer.block) > BLOCK_BYTES_PER_STEP;
    if (isOver && (grants.length > 0 || bytesTaken > 0)) {
      isExhausted = false;
      break;
    }
    take(offer);
    if (count >= wanted) break;
  }
  if (tooLarge && count < wanted) {
    if (grants.length === 0 && bytesTaken === 0) take(tooLarge);
    else isExhausted = false;
  }
  return { grants, count, isExhausted, bytes };
}

/** What the offers of a pool have in common. */
function isShared(change: Change): boolean {
  return change.type === 'expect' && (change.record.kind === 'pool' || change.record.kind === 'config');
}

/** As many as there are, and no more than so many. */
export function first<Item>(items: Iterable<Item>, count: number): Item[] {
  const found: Item[] = [];
  if (count <= 0) return found;
  for (const item of items) {
    found.push(item);
    // Checked before the next offer is requested, which may walk a whole pool.
    if (found.length >= count) break;
  }
  return found;
}

/**
 * A requested address. The request overrides reservations, selectors, assignmentMode and the block cap. A disabled
 * pool, the pool's uses and strict affinity still refuse it.
 */

/**
 * @param demand - its pools are not looked at
 * @throws Failure ADDRESS_REFUSED, ADDRESS_IN_USE; STORE_CORRUPT when its block cannot be read, or the configuration, while it cools down
 */
export function offerOf(view: View, demand: Demand, address: Address): Place {
  const pool = requirePoolFor(view, demand, address);
  const search = beginSearch(view, demand, [pool]);
  const stored = overlappingBlock(view, hostPrefix(address));
  const unreadable = stored ? undefined : view.unreadableBlock(hostPrefix(address));
  if (unreadable) throw corruptFailure(unreadable);
  const offer = stored ? existingOffer(search, { stored, pool, address }) : newOffer(search, pool, address);
  return { offer, ordinal: ordinalOf(offer.block.prefix, address) };
}

function requirePoolFor(view: View, demand: Demand, address: Address): Pool {
  const text = formatAddress(address);
  const pool = view.pools().find(({ prefix }) => prefixContains(prefix, address));
  if (!pool) throw refused(address, `${text} is in no pool; ask for an address of a pool, or create one around it`);
  const reason = outOfUse(pool) ?? wrongUse(pool, demand.use);
  if (reason === undefined) return pool;
  const name = `${text} is in pool "${pool.name}" ${formatPrefix(pool.prefix)}`;
  throw refused(address, `${name}, which is ${reason}; ask for an address of another pool`);
}

interface Stored {
  readonly stored: Block;
  readonly pool: Pool;
  readonly address: Address;
}

function existingOffer(search: Search, { stored, pool, address }: Stored): Offer {
  const { view, demand, config } = search;
  const block = collect(search, stored);
  const attributes = attributesAt(block, ordinalOf(block.prefix, address));
  // The configuration defines the cool-down, so without it the end of the cool-down is unknown.
  if (attributes?.releasedAtMs !== undefined) requireReadable(view, { kind: 'config' });
  if (attributes) throw inUse(address, attributes, config.cooldownSeconds);
  if (sameOwner(block.owner, demand.owner)) {
    const isConfirmed = view.affinity(demand.owner, block.prefix)?.state === 'confirmed';
    const confirmation = isConfirmed ? [] : [confirm(demand.owner, block.prefix)];
    const rules = block === stored ? [expectPool(pool)] : expectRules(search, pool);
    return { block, pool, origin: 'own', changes: [...rules, ...confirmation] };
  }
  if (!block.owner && usedCount(block) === 0) return takeoverOffer(search, { block, pool });
  if (config.strictAffinity) throw strictRefusal(address, block, demand);
  return { block, pool, origin: 'borrowed', changes: expectRules(search, pool) };
}

function newOffer(search: Search, pool: Pool, address: Address): Offer {
  const prefix = prefixOf(address, pool.blockSizeBits);
  const across = takenAcross(search.view, prefix);
  if (!across) return claimOffer(search, { pool, prefix });
  const text = `${formatAddress(address)} would need block ${formatPrefix(prefix)}, and ${formatPrefix(across)}, which a former pool left, lies in it; release the addresses of that one`;
  throw refused(address, text);
}

function strictRefusal(address: Address, { prefix, owner }: Block, { owner: asking }: Demand): Failure {
  const whose = owner ? `belongs to ${owner.name}` : 'has no owner';
  const text = `${formatAddress(address)} is in block ${formatPrefix(prefix)}, which ${whose}, and affinity is strict: ${asking.name} takes addresses of its own blocks alone`;
  return refused(address, text);
}

function refused(address: Address, text: string): Failure {
  return new Failure('ADDRESS_REFUSED', text, { details: { address: formatAddress(address) } });
}

/** @param cooldownSeconds - that is in force */
function inUse(address: Address, attributes: AllocationAttributes, cooldownSeconds: number): Failure {
  const text = formatAddress(address);
  const { handleId, owner, releasedAtMs } = attributes;
  if (releasedAtMs !== undefined) {
    const freeAt = new Date(releasedAtMs + cooldownSeconds * 1000).toISOString();
    const message = `${text} cools down after its release, until ${freeAt}; ask again then, or for another address`;
    return new Failure('ADDRESS_IN_USE', message, { details: { address: text, freeAt } });
  }
  const pod = owner.pod === undefined ? '' : `, pod ${owner.namespace ?? ''}/${owner.pod}`;
  const node = owner.node === undefined ? '' : ` on node ${owner.node}`;
  const message = `${text} is held by handle ${handleId ?? 'unknown'}${pod}${node}; release it there, or ask for another address`;
  return new Failure('ADDRESS_IN_USE', message, { details: { address: text, handle: handleId ?? '' } });
}

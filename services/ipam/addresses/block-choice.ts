import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix, ordinalOf, prefixContains, prefixOf } from '@podwire/shared/net/prefix';

import type { Demand } from '../blocks/demand.js';
import { overlappingBlock, overlappingRange } from '../blocks/lookup.js';
import {
  beginSearch,
  claimOffer,
  collectBlock,
  confirmAffinity,
  expectPool,
  expectRules,
  blockOffers,
  takeoverOffer,
  type Offer,
  type Search,
} from '../blocks/search.js';
import { wrongUseReason } from '../pools/selection.js';
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
import { unavailableReason, type Pool } from '../records/pool.js';
import type { Change, View } from '../records/view.js';
import { firstFreeOrdinal, freeOrdinals } from '../reservations/reservations.js';

/**
 * Where the addresses of one transaction come from. Each address writes its whole block, and etcd takes 1.5 MiB in one request, so
 * blocks of thousands of addresses may be too large for each other.
 */

/** An address to take, and the block to take it from. */
export interface BlockChoice {
  readonly offer: Offer;
  readonly ordinal: Ordinal;
}

/** The choices that may serve one demand, best first; lazy, and from the best again each time that it is iterated. */
export type BlockChoices = Iterable<BlockChoice>;

/** Of so many blocks one is chosen that fits; a pool may have 2^64 that are all as large. */
const MAX_COMPARED_BLOCKS = 64;

/** Of each block that has something to give the address that has been free for longest, the best block first. */
export function blockChoices(search: Search): BlockChoices {
  return {
    *[Symbol.iterator](): Generator<BlockChoice, void, void> {
      for (const offer of blockOffers(search)) {
        const ordinal = firstFreeOrdinal(offer.block, search.reserved);
        if (ordinal !== undefined) yield { offer, ordinal };
      }
    },
  };
}

/**
 * A choice for each demand: the best ones, as long as one request can write all their blocks. Where it cannot, blocks are passed over for
 * such as fit, the later demands' before the first's. Where none fit, the best are tried: etcd may take more than is known here.
 * @param demands - the choices of each, which lie in different blocks
 * @param written - the blocks that the transaction writes besides
 * @returns in the order of the demands, undefined for one that has no choice
 */
export function chooseBlocks(
  demands: readonly BlockChoices[],
  written: readonly Block[] = [],
): (BlockChoice | undefined)[] {
  const best = demands.map(bestOf);
  const blocks = best.flatMap((choice) => (choice ? [choice.offer.block] : []));
  if (blocks.length < demands.length || fitOneRequest([...written, ...blocks])) return best;
  return fittingChoices(demands, BLOCK_BYTES_PER_REQUEST - bytesOf(written)) ?? best;
}

/** Without asking for a second one, which may be a walk over a pool away. */
function bestOf(choices: BlockChoices): BlockChoice | undefined {
  for (const choice of choices) return choice;
  return undefined;
}

/** The first choices that leave enough for the smallest of each later demand; undefined when none do. */
function fittingChoices([choices, ...later]: readonly BlockChoices[], bytesLeft: number): BlockChoice[] | undefined {
  if (!choices) return [];
  const laterBytes = later.reduce((sum, others) => sum + leastBytes(others), 0);
  for (const choice of takeFirst(choices, MAX_COMPARED_BLOCKS)) {
    const bytes = blockBytes(choice.offer.block);
    if (bytes + laterBytes > bytesLeft) continue;
    const rest = fittingChoices(later, bytesLeft - bytes);
    return rest && [choice, ...rest];
  }
  return undefined;
}

function leastBytes(choices: BlockChoices): number {
  return Math.min(...takeFirst(choices, MAX_COMPARED_BLOCKS).map(({ offer }) => blockBytes(offer.block)));
}

/** Addresses of one block. */
interface Grant {
  readonly offer: Offer;
  /** In the order of allocation, at least one. */
  readonly ordinals: readonly Ordinal[];
}

/** What one transaction can take for a demand. */
export interface CollectedAddresses {
  readonly grants: readonly Grant[];
  readonly count: number;
  /** Whether there is no more; otherwise it is the transaction that is full. */
  readonly isExhausted: boolean;
  /** What the blocks take in the transaction, about. */
  readonly bytes: number;
}

export interface CollectInput {
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
export function collectAddresses(search: Search, { count: wanted, bytesTaken }: CollectInput): CollectedAddresses {
  const grants: Grant[] = [];
  let count = 0;
  let records = 0;
  const pools = new Set<string>();
  let bytes = 0;
  let isExhausted = true;
  let tooLarge: Offer | undefined;
  const take = (offer: Offer): void => {
    bytes += blockBytes(offer.block);
    const ordinals = takeFirst(freeOrdinals(offer.block, search.reserved), wanted - count);
    grants.push({ offer, ordinals });
    count += ordinals.length;
  };
  for (const offer of blockOffers(search)) {
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
export function takeFirst<Item>(items: Iterable<Item>, count: number): Item[] {
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
export function chooseRequestedAddress(view: View, demand: Demand, address: Address): BlockChoice {
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
  if (!pool)
    throw refusedFailure(address, `${text} is in no pool; ask for an address of a pool, or create one around it`);
  const reason = unavailableReason(pool) ?? wrongUseReason(pool, demand.use);
  if (reason === undefined) return pool;
  const name = `${text} is in pool "${pool.name}" ${formatPrefix(pool.prefix)}`;
  throw refusedFailure(address, `${name}, which is ${reason}; ask for an address of another pool`);
}

interface RequestedAddressInput {
  readonly stored: Block;
  readonly pool: Pool;
  readonly address: Address;
}

function existingOffer(search: Search, { stored, pool, address }: RequestedAddressInput): Offer {
  const { view, demand, config } = search;
  const block = collectBlock(search, stored);
  const attributes = attributesAt(block, ordinalOf(block.prefix, address));
  // The configuration defines the cool-down, so without it the end of the cool-down is unknown.
  if (attributes?.releasedAtMs !== undefined) requireReadable(view, { kind: 'config' });
  if (attributes) throw inUseFailure(address, attributes, config.cooldownSeconds);
  if (sameOwner(block.owner, demand.owner)) {
    const isConfirmed = view.affinity(demand.owner, block.prefix)?.state === 'confirmed';
    const confirmation = isConfirmed ? [] : [confirmAffinity(demand.owner, block.prefix)];
    const rules = block === stored ? [expectPool(pool)] : expectRules(search, pool);
    return { block, pool, origin: 'own', changes: [...rules, ...confirmation] };
  }
  if (!block.owner && usedCount(block) === 0) return takeoverOffer(search, { block, pool });
  if (config.strictAffinity) throw strictAffinityFailure(address, block, demand);
  return { block, pool, origin: 'borrowed', changes: expectRules(search, pool) };
}

function newOffer(search: Search, pool: Pool, address: Address): Offer {
  const prefix = prefixOf(address, pool.blockSizeBits);
  const across = overlappingRange(search.view, prefix);
  if (!across) return claimOffer(search, { pool, prefix });
  const text = `${formatAddress(address)} would need block ${formatPrefix(prefix)}, and ${formatPrefix(across)}, which a former pool left, lies in it; release the addresses of that one`;
  throw refusedFailure(address, text);
}

function strictAffinityFailure(address: Address, { prefix, owner }: Block, { owner: asking }: Demand): Failure {
  const whose = owner ? `belongs to ${owner.name}` : 'has no owner';
  const text = `${formatAddress(address)} is in block ${formatPrefix(prefix)}, which ${whose}, and affinity is strict: ${asking.name} takes addresses of its own blocks alone`;
  return refusedFailure(address, text);
}

function refusedFailure(address: Address, text: string): Failure {
  return new Failure('ADDRESS_REFUSED', text, { details: { address: formatAddress(address) } });
}

/** @param cooldownSeconds - that is in force */
function inUseFailure(address: Address, attributes: AllocationAttributes, cooldownSeconds: number): Failure {
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

import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix, ordinalOf, prefixContains, prefixOf } from '@podwire/shared/net/prefix';

import type { Demand } from '../../blocks/demand.js';
import { isNodeAddress, overlappingBlock, overlappingRange } from '../../blocks/lookup.js';
import {
  beginSearch,
  blockOffers,
  borrowOffer,
  claimOffer,
  collectBlock,
  ownOffer,
  takeoverOffer,
  type Offer,
  type Search,
} from '../../blocks/search.js';
import { wrongUseReason } from '../../pools/selection.js';
import { corruptFailure, requireReadable } from '../../records/absence.js';
import type { AllocationAttributes } from '../../records/attributes.js';
import {
  BLOCK_BYTES_PER_REQUEST,
  BLOCK_BYTES_PER_STEP,
  blockBytes,
  bytesOf,
  fitOneRequest,
} from '../../records/block-stats.js';
import { attributesAt, isHeld, sameOwner, usedCount, type Block, type Ordinal } from '../../records/block.js';
import { isLease, leaseHandle } from '../../records/lease.js';
import { unavailableReason, type Pool } from '../../records/pool.js';
import type { Change, View } from '../../records/view.js';
import { firstFreeOrdinal, freeOrdinals } from '../../reservations/reservations.js';

/**
 * Chooses the blocks and addresses of one transaction. Each allocation writes its whole block, and etcd accepts 1.5 MiB
 * per request, so two blocks of thousands of addresses may be too large together.
 */

/** An address to allocate, and its block. */
export interface BlockChoice {
  readonly offer: Offer;
  readonly ordinal: Ordinal;
}

/** The choices for one demand, best first. Lazy; each iteration starts again with the best. */
export type BlockChoices = Iterable<BlockChoice>;

/** Maximum number of blocks compared for one that fits: a pool may have 2^64 equally large ones. */
const MAX_COMPARED_BLOCKS = 64;

/** The longest free address of each block with an available one; the best block first. */
export function blockChoices(search: Search): BlockChoices {
  return {
    *[Symbol.iterator](): Generator<BlockChoice, void, void> {
      for (const offer of blockOffers(search)) {
        const ordinal = firstFreeOrdinal(offer.block, search);
        if (ordinal !== undefined) yield { offer, ordinal };
      }
    },
  };
}

/**
 * A choice for each demand: the best ones if one request can write all their blocks. Otherwise prefers blocks that fit,
 * giving up the best block of later demands before the first demand's. If none fit, the best are tried, because sizes are
 * estimates.
 * @param demands - the choices of each, in different blocks
 * @param written - further blocks of the transaction
 * @returns in the order of the demands, undefined for a demand without a choice
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

/** Takes only the first: finding a second one may walk a whole pool. */
function bestOf(choices: BlockChoices): BlockChoice | undefined {
  for (const choice of choices) return choice;
  return undefined;
}

/**
 * The first choices that leave enough bytes for the smallest block of each later demand; undefined when there are none.
 */
function fittingChoices([choices, ...later]: readonly BlockChoices[], bytesLeft: number): BlockChoice[] | undefined {
  if (!choices) return [];
  const laterBytes = later.reduce((sum, demand) => sum + leastBytes(demand), 0);
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
  /** Ordinals in allocation order, at least one. */
  readonly ordinals: readonly Ordinal[];
}

/** The addresses that one transaction can allocate for a demand. */
export interface CollectedAddresses {
  readonly grants: readonly Grant[];
  readonly count: number;
  /** Whether no more are available; otherwise the transaction is full. */
  readonly isExhausted: boolean;
  /** Estimated size of the blocks in the transaction. */
  readonly bytes: number;
}

export interface CollectInput {
  readonly count: number;
  /** Size of the other family's blocks in the same transaction; 0 when there are none. */
  readonly bytesTaken: number;
}

/** Maximum number of records of one family in a transaction. etcd allows 128 operations, and the handle takes some. */
const MAX_RECORDS = 44;

/**
 * Collects addresses from the best blocks, in each block's allocation order, until there are enough. A block that alone
 * exceeds a request is tried last and alone, because sizes are estimates.
 */
export function collectAddresses(search: Search, { count: maxCount, bytesTaken }: CollectInput): CollectedAddresses {
  const grants: Grant[] = [];
  let count = 0;
  let records = 0;
  const pools = new Set<string>();
  let bytes = 0;
  let isExhausted = true;
  let tooLarge: Offer | undefined;
  const budget = search.shares.budget();
  const take = (offer: Offer): void => {
    bytes += blockBytes(offer.block);
    const most = Math.min(maxCount - count, budget.limitOf(offer));
    const ordinals = takeFirst(freeOrdinals(offer.block, search), most);
    budget.spend(offer, ordinals.length);
    grants.push({ offer, ordinals });
    count += ordinals.length;
  };
  for (const offer of blockOffers(search)) {
    // A node's list may name every address of a block that does not exist any more.
    if (firstFreeOrdinal(offer.block, search) === undefined || budget.limitOf(offer) === 0) continue;
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
    if (count >= maxCount) break;
  }
  if (tooLarge && count < maxCount && budget.limitOf(tooLarge) > 0) {
    if (grants.length === 0 && bytesTaken === 0) take(tooLarge);
    else isExhausted = false;
  }
  return { grants, count, isExhausted, bytes };
}

/** Whether all offers of a pool have this change. */
function isShared(change: Change): boolean {
  return change.type === 'expect' && (change.record.kind === 'pool' || change.record.kind === 'config');
}

/** The first `count` items, or fewer. */
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
 * A requested address overrides reservations, selectors, assignmentMode and the block cap. A disabled pool, the pool's
 * uses, strict affinity and the shares of other nodes still refuse it.
 */

/**
 * @param demand - its pools are ignored
 * @throws Failure ADDRESS_REFUSED, ADDRESS_IN_USE; STORE_CORRUPT when its block cannot be read, or when it cools down
 * and the configuration cannot be read
 */
export function chooseRequestedAddress(view: View, demand: Demand, address: Address): BlockChoice {
  const pool = requirePoolFor(view, demand, address);
  const search = beginSearch(view, demand, [pool]);
  const stored = overlappingBlock(view, hostPrefix(address));
  const unreadable = stored ? undefined : view.unreadableBlock(hostPrefix(address));
  if (unreadable) throw corruptFailure(unreadable);
  const lessee = view.lessee(address);
  if (lessee !== undefined && !isHeldAt(stored, address)) throw claimedFailure(view, address, lessee);
  const offer = stored ? existingOffer(search, pool, stored, address) : newOffer(search, pool, address);
  const kept = search.shares.refusal(offer, address);
  if (kept)
    throw refusedFailure(
      address,
      `${formatAddress(address)} is in pool "${pool.name}" ${formatPrefix(pool.prefix)}: ${kept.reason}; ${kept.remedy}`,
    );
  return { offer, ordinal: ordinalOf(offer.block.prefix, address) };
}

function requirePoolFor(view: View, demand: Demand, address: Address): Pool {
  const text = formatAddress(address);
  const pool = view.pools().find(({ prefix }) => prefixContains(prefix, address));
  if (!pool)
    throw refusedFailure(
      address,
      `${text} is in no pool; request an address of a pool, or create a pool that contains it`,
    );
  const reason = unavailableReason(pool) ?? wrongUseReason(pool, demand.use);
  if (reason === undefined) return pool;
  const name = `${text} is in pool "${pool.name}" ${formatPrefix(pool.prefix)}`;
  throw refusedFailure(address, `${name}, which is ${reason}; request an address of another pool`);
}

function existingOffer(search: Search, pool: Pool, stored: Block, address: Address): Offer {
  const { view, demand, config } = search;
  const block = collectBlock(search, stored);
  const attributes = attributesAt(block, ordinalOf(block.prefix, address));
  // The configuration defines the cool-down, so without it the end of the cool-down is unknown.
  if (attributes?.releasedAtMs !== undefined) requireReadable(view, { kind: 'config' });
  if (attributes) throw inUseFailure(address, attributes, config.cooldownSeconds);
  if (sameOwner(block.owner, demand.owner))
    return ownOffer(search, pool, stored, view.affinity(demand.owner, block.prefix));
  if (!block.owner && usedCount(block) === 0) return takeoverOffer(search, pool, block);
  if (config.strictAffinity) throw strictAffinityFailure(address, block, demand);
  return borrowOffer(search, pool, block);
}

function newOffer(search: Search, pool: Pool, address: Address): Offer {
  const prefix = prefixOf(address, pool.blockSizeBits);
  const across = overlappingRange(search.view, prefix);
  if (!across) return claimOffer(search, pool, prefix);
  const text = `${formatAddress(address)} needs block ${formatPrefix(prefix)}, which overlaps block ${formatPrefix(across)} of a former pool; release the addresses of that block`;
  throw refusedFailure(address, text);
}

function strictAffinityFailure(address: Address, { prefix, owner }: Block, { owner: asking }: Demand): Failure {
  const whose = owner ? `belongs to ${owner.name}` : 'has no owner';
  const text = `${formatAddress(address)} is in block ${formatPrefix(prefix)}, which ${whose}, and affinity is strict: ${asking.name} may only use its own blocks; request an address of one of them`;
  return refusedFailure(address, text);
}

function refusedFailure(address: Address, text: string): Failure {
  return new Failure('ADDRESS_REFUSED', text, { details: { address: formatAddress(address) } });
}

/** @param cooldownSeconds - the current setting */
function inUseFailure(address: Address, attributes: AllocationAttributes, cooldownSeconds: number): Failure {
  const text = formatAddress(address);
  const { handleId, owner, releasedAtMs } = attributes;
  if (releasedAtMs !== undefined) {
    const freeAt = new Date(releasedAtMs + cooldownSeconds * 1000).toISOString();
    const message = `${text} cools down after its release until ${freeAt}; retry then, or request another address`;
    return new Failure('ADDRESS_IN_USE', message, { details: { address: text, freeAt } });
  }
  if (isLease(attributes)) return leasedFailure(address, owner.node ?? 'unknown');
  const pod = owner.pod === undefined ? '' : `, pod ${owner.namespace ?? ''}/${owner.pod}`;
  const node = owner.node === undefined ? '' : ` on node ${owner.node}`;
  const message = `${text} is held by handle ${handleId ?? 'unknown'}${pod}${node}; release it there, or request another address`;
  return new Failure('ADDRESS_IN_USE', message, { details: { address: text, handle: handleId ?? '' } });
}

function isHeldAt(block: Block | undefined, address: Address): boolean {
  const attributes = block && attributesAt(block, ordinalOf(block.prefix, address));
  return attributes !== undefined && isHeld(attributes);
}

function claimedFailure(view: View, address: Address, nodeName: string): Failure {
  if (!isNodeAddress(view, nodeName, address)) return leasedFailure(address, nodeName);
  const text = formatAddress(address);
  const details = { address: text, node: nodeName };
  return new Failure('ADDRESS_IN_USE', `${text} is the address of node ${nodeName}; request another address`, {
    details,
  });
}

function leasedFailure(address: Address, nodeName: string): Failure {
  const text = formatAddress(address);
  const message = `${text} is leased to node ${nodeName}, and no pod has it yet; retry, or request another address`;
  return new Failure('ADDRESS_IN_USE', message, { details: { address: text, handle: leaseHandle(nodeName) } });
}

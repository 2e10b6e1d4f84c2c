import type { Offer, Search } from '../blocks/search.js';
import type { Change } from '../records/view.js';
import { BLOCK_BYTES_PER_STEP, blockBytes, fitOneRequest } from './block-bytes.js';
import { offers } from './choose-block.js';
import type { Ordinal } from './records.js';
import { givable } from './reserved.js';

/** Addresses of one block. */
export interface Grant {
  readonly offer: Offer;
  /** In the order in which they are given, at least one. */
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
    // Before the next is asked for: it may be a walk over a pool away.
    if (found.length >= count) break;
  }
  return found;
}

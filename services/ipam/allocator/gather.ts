import { offers } from './choose-block.js';
import type { Ordinal } from './records.js';
import { givable } from './reserved.js';
import type { Offer, Search } from './search.js';
import type { Change } from './view.js';

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
}

/** Records that one family's part of a transaction may name; etcd allows 128 operations for all of it, and the handle takes some. */
const MAX_RECORDS = 44;
/** Addresses in all blocks that are written: a block of 4096 may be 1.2 MB, and etcd takes 1.5. */
const MAX_BLOCK_ADDRESSES = 4096;

/** Takes addresses from the best blocks, each block's in the order in which they have been free, until there are enough. */
export function gather(search: Search, wanted: number): Gathered {
  const grants: Grant[] = [];
  let count = 0;
  let records = 0;
  const pools = new Set<string>();
  let size = 0;
  let isExhausted = true;
  for (const offer of offers(search)) {
    pools.add(offer.pool.name);
    records += 1 + offer.changes.filter((change) => !isShared(change)).length;
    size += offer.block.allocations.length;
    if (grants.length > 0 && (records + pools.size > MAX_RECORDS || size > MAX_BLOCK_ADDRESSES)) {
      isExhausted = false;
      break;
    }
    const ordinals = first(givable(offer.block, search.reserved), wanted - count);
    grants.push({ offer, ordinals });
    count += ordinals.length;
    if (count >= wanted) break;
  }
  return { grants, count, isExhausted };
}

/** What the offers of a pool have in common. */
function isShared(change: Change): boolean {
  return change.type === 'expect' && (change.record.kind === 'pool' || change.record.kind === 'config');
}

/** As many as there are, and no more than so many. */
export function first<Item>(items: Iterable<Item>, count: number): Item[] {
  const found: Item[] = [];
  for (const item of items) {
    if (found.length >= count) break;
    found.push(item);
  }
  return found;
}

import { FAMILIES } from '@podwire/shared/net/address';
import { comparePrefixes, defaultRoute, type Prefix } from '@podwire/shared/net/prefix';

import { usedCount, type AffinityState, type Block } from '../records/block.js';
import type { Page } from '../records/page.js';
import { poolOf } from '../records/pool.js';
import type { View } from '../records/view.js';
import { reservedIn } from '../reservations/reservations.js';
import { blockUtilization, type BlockUtilization } from './utilization.js';

/** A block with its pool and the state of its owner's claim. */
export interface BlockListing {
  readonly block: Block;
  /** Pool; undefined when the pool was deleted. */
  readonly poolName: string | undefined;
  /** State; undefined when the block has no owner, or the owner no affinity. */
  readonly affinityState: AffinityState | undefined;
}

/** A block as ListBlocks returns it. */
export interface ListedBlock extends BlockListing {
  readonly utilization: BlockUtilization;
}

export interface BlockQuery {
  /** The last block of the previous page; undefined for the first page. */
  readonly after: Prefix | undefined;
  readonly limit: number;
  /** Only blocks of this pool; empty for all. */
  readonly poolName: string;
  /** Only blocks of this node; empty for all. */
  readonly nodeName: string;
}

/** Clients accept messages of 4 MiB by default; an address with all its details takes up to 1 KiB. */
const MAX_PAGE_ADDRESSES = 4096;

/**
 * A page of the blocks, in the order of their addresses, IPv4 before IPv6. It ends before the limit if the next block
 * would exceed {@link MAX_PAGE_ADDRESSES} addresses in use.
 */
export function listBlocks(view: View, query: BlockQuery): Page<ListedBlock> {
  const items: ListedBlock[] = [];
  const pools = view.pools();
  const reserved = reservedIn(view);
  let addresses = 0;
  for (const range of rangesOf(view, query)) {
    for (const block of view.blocksIn(range)) {
      if (query.after && comparePrefixes(block.prefix, query.after) <= 0) continue;
      if (query.nodeName !== '' && (block.owner?.kind !== 'host' || block.owner.name !== query.nodeName)) continue;
      addresses += usedCount(block);
      const full = items.length === query.limit || (items.length > 0 && addresses > MAX_PAGE_ADDRESSES);
      if (full) return { items, more: true };
      items.push({
        block,
        poolName: poolOf(pools, block.prefix)?.name,
        affinityState: block.owner && view.affinity(block.owner, block.prefix)?.state,
        utilization: blockUtilization(block, reserved),
      });
    }
  }
  return { items, more: false };
}

function rangesOf(view: View, { poolName }: BlockQuery): Prefix[] {
  if (poolName === '') return FAMILIES.map(defaultRoute);
  const pool = view.pool(poolName);
  return pool ? [pool.prefix] : [];
}

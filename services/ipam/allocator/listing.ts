import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { comparePrefixes, defaultRoute, type Prefix } from '@podwire/shared/net/prefix';

import { heldBy, requireKnown } from '../blocks/holding.js';
import { blockUtilization, poolUtilization, type BlockUtilization } from '../blocks/utilization.js';
import { poolOf, requirePool, type PoolListing } from '../pools/pools.js';
import { usedCount } from '../records/block.js';
import { describeEndpoint } from '../records/endpoint.js';
import type { View } from '../records/view.js';
import type { AffinityState, Block, Endpoint } from './records.js';
import { reservedIn } from './reserved.js';

/** What is read without changing anything. */

/** One page of a list. */
export interface Page<Item> {
  readonly items: readonly Item[];
  /** Whether there is something behind the last item. */
  readonly more: boolean;
}

export interface PoolQuery {
  /** The name behind which the page begins; empty for the first page. */
  readonly after: string;
  readonly limit: number;
}

/** A block with where it lies and how sure its owner's claim is. */
export interface BlockListing {
  readonly block: Block;
  /** Undefined when the pool was deleted. */
  readonly poolName: string | undefined;
  /** Undefined when the block has no owner, or the owner no affinity. */
  readonly affinityState: AffinityState | undefined;
}

export interface ListedBlock extends BlockListing {
  readonly utilization: BlockUtilization;
}

export interface BlockQuery {
  /** The block behind which the page begins; undefined for the first page. */
  readonly after: Prefix | undefined;
  readonly limit: number;
  /** Only blocks of this pool; empty for all. */
  readonly poolName: string;
  /** Only blocks that belong to this node; empty for all. */
  readonly nodeName: string;
}

/**
 * The endpoint of an attachment.
 * @throws Failure ENDPOINT_NOT_FOUND when it holds no address; STORE_CORRUPT when its handle, or a block that this names, cannot be read
 */
export function getEndpoint(view: View, attachment: Attachment): Endpoint {
  requireKnown(view, handleId(attachment));
  const [first, ...rest] = heldBy(view, attachment);
  if (first) return describeEndpoint(view, attachment, [first, ...rest]);
  const name = formatAttachment(attachment);
  throw new Failure('ENDPOINT_NOT_FOUND', `attachment ${name} holds no address; it was released, or never allocated`, {
    details: { attachment: name },
  });
}

/** @throws Failure POOL_NOT_FOUND */
export function getPool(view: View, name: string): PoolListing {
  const pool = requirePool(view, name);
  return { pool, utilization: poolUtilization(view, pool) };
}

/** A page of the pools, in the order of their names. */
export function listPools(view: View, { after, limit }: PoolQuery): Page<PoolListing> {
  const pools = view.pools().filter(({ name }) => name > after);
  const items = pools.slice(0, limit).map((pool) => ({ pool, utilization: poolUtilization(view, pool) }));
  return { items, more: pools.length > limit };
}

/** Clients take messages of 4 MiB unless told otherwise; an address with all that is known of it takes up to 1 KiB. */
const MAX_PAGE_ADDRESSES = 4096;

/**
 * A page of the blocks, in the order of their addresses, IPv4 before IPv6. It ends before the limit where the next block would
 * bring it above {@link MAX_PAGE_ADDRESSES} addresses in use.
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

const FAMILIES: readonly Family[] = [4, 6];

function rangesOf(view: View, { poolName }: BlockQuery): Prefix[] {
  if (poolName === '') return FAMILIES.map(defaultRoute);
  const pool = view.pool(poolName);
  return pool ? [pool.prefix] : [];
}

import { prefixContains } from '@podwire/shared/net/prefix';

import { sameOwner } from '../blocks/demand.js';
import { poolOf } from '../pools/pools.js';
import { usedCount } from '../records/block.js';
import { smallest } from '../records/page.js';
import type { View } from '../records/view.js';
import type { Page } from './listing.js';
import type { Affinity } from './records.js';
import { compareClaims, type OwnedBlock } from './release-affinity.js';

export interface AffinityQuery {
  /** The affinity behind which the page begins; undefined for the first page. */
  readonly after: OwnedBlock | undefined;
  readonly limit: number;
  /** Only affinities of this node; empty for all, of virtual owners too. */
  readonly nodeName: string;
  /** Only affinities for blocks of this pool; empty for all. */
  readonly poolName: string;
}

/** An affinity, and what is behind it. */
export interface AffinityListing {
  readonly affinity: Affinity;
  /** Undefined when the pool was deleted. */
  readonly poolName: string | undefined;
  /** Whether the block exists and names the owner: without that it is no ownership. */
  readonly isBacked: boolean;
  /** Addresses of the block that are in use, or cool down. */
  readonly usedCount: number;
}

/** A page of the affinities, in the order of their blocks. A pool that is not there has none. */
export function listAffinities(view: View, query: AffinityQuery): Page<AffinityListing> {
  const found = smallest(matching(view, query), query.limit + 1, compareClaims);
  const items = found.slice(0, query.limit).map((affinity) => describe(view, affinity));
  return { items, more: found.length > query.limit };
}

function* matching(view: View, { after, nodeName, poolName }: AffinityQuery): Generator<Affinity, void, void> {
  const pool = poolName === '' ? undefined : view.pool(poolName);
  if (poolName !== '' && !pool) return;
  const all = nodeName === '' ? view.affinities() : view.affinitiesOf({ kind: 'host', name: nodeName });
  for (const affinity of all) {
    if (pool && !prefixContains(pool.prefix, affinity.block)) continue;
    if (after && compareClaims(affinity, after) <= 0) continue;
    yield affinity;
  }
}

function describe(view: View, affinity: Affinity): AffinityListing {
  const block = view.block(affinity.block);
  return {
    affinity,
    poolName: poolOf(view.pools(), affinity.block)?.name,
    isBacked: block !== undefined && sameOwner(block.owner, affinity.owner),
    usedCount: block ? usedCount(block) : 0,
  };
}

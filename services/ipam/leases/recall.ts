import type { FailureCode } from '@podwire/shared/failure/codes';
import { prefixContains } from '@podwire/shared/net/prefix';

import { allocationOf } from '../addresses/addresses.js';
import { takeFirst } from '../addresses/allocate/block-choice.js';
import type { Need } from '../blocks/demand.js';
import { blocksOf } from '../records/handle-counts.js';
import { sumLeases, type NodeLeases } from '../blocks/leased-addresses.js';
import { requestLeases } from '../blocks/node-requests.js';
import { beginSearch, blockOffers, type Search } from '../blocks/search.js';
import { servingPools } from '../pools/selection.js';
import { heldAddressesIn } from '../records/block.js';
import { isLease, isLeaseOf, leaseHandle } from '../records/lease.js';
import type { Pool } from '../records/pool.js';
import type { Decision, View } from '../records/view.js';

/** Recalls of unbound leases, when an operation finds no free address. */

/** An operation that was refused. */
export interface Refused {
  readonly need: Need;
  readonly code: FailureCode;
}

/** A node whose unbound leases a refused operation could use, and their number. */
export type LeaseHolder = NodeLeases;

/** Why a refused operation may succeed after all. */
export interface Prospects {
  /** Whether it finds free addresses by now. */
  readonly hasRoom: boolean;
  /** Nodes that could make room otherwise. */
  readonly holders: readonly LeaseHolder[];
  /** {@link usedInReach} */
  readonly usedCount: number;
}

const NO_PROSPECTS: Prospects = { hasRoom: false, holders: [], usedCount: 0 };

/**
 * Whether a refused operation may succeed: the nodes with unbound leases that stand in its way, in the pools that serve
 * it, if these have no free address, and under the addresses that it requests.
 */
export function prospectsOf(view: View, { need, code }: Refused): Prospects {
  if (code === 'ADDRESS_IN_USE') return { ...prospectsOfRequested(view, need), usedCount: usedInReach(view, need) };
  if (code !== 'POOLS_EXHAUSTED') return NO_PROSPECTS;
  const exhausted = exhaustedSearches(view, need);
  const holders = exhausted.flatMap(({ shares, pools }) =>
    pools.flatMap((pool) => shares.usableLeases(pool, leasesInPool(view, pool))),
  );
  return { hasRoom: exhausted.length === 0, holders: sumLeases([holders]), usedCount: usedInReach(view, need) };
}

/** The unbound leases in a pool of the nodes that return them. */
function leasesInPool(view: View, { prefix: range }: Pool): LeaseHolder[] {
  return view.nodes().flatMap(({ name: nodeName, deletionTimeMs }) => {
    if (deletionTimeMs !== undefined) return [];
    const blocks = blocksOf(view, view.handle(leaseHandle(nodeName)));
    const inReach = blocks.filter(({ prefix }) => prefixContains(range, prefix));
    const heldCount = inReach.reduce((sum, block) => sum + heldAddressesIn(block, isLeaseOf(nodeName)).length, 0);
    // More than those held if another tool released some.
    const listed = view.session(nodeName)?.leases ?? [];
    const listedCount = listed.filter((lease) => prefixContains(range, lease.address)).length;
    const count = Math.max(heldCount, listedCount);
    return count > 0 ? [{ nodeName, count }] : [];
  });
}

function prospectsOfRequested(view: View, { addresses }: Need): Omit<Prospects, 'usedCount'> {
  const allocated = addresses.flatMap((address) => allocationOf(view, address) ?? []);
  const holders = allocated.flatMap(({ attributes }) => {
    const { node: nodeName } = attributes.owner;
    return nodeName !== undefined && isLease(attributes) ? [{ nodeName, count: 1 }] : [];
  });
  const listing = addresses.flatMap((address) => {
    const nodeName = allocationOf(view, address) ? undefined : view.lessee(address);
    return nodeName === undefined ? [] : [{ nodeName, count: 1 }];
  });
  return { hasRoom: allocated.length + listing.length === 0, holders: [...holders, ...listing] };
}

/** The searches of the demands for which there is no free address, unless no pool serves them. */
function exhaustedSearches(view: View, { demands }: Need): Search[] {
  return demands(view)
    .map((demand) => beginSearch(view, demand, servingPools(view, demand)))
    .filter((search) => search.pools.length > 0 && takeFirst(blockOffers(search), 1).length === 0);
}

/** Number of addresses in use in the pools that an operation could use. It falls when one is freed. */
export function usedInReach(view: View, { demands, addresses }: Need): number {
  const requested = view.pools().filter(({ prefix }) => addresses.some((each) => prefixContains(prefix, each)));
  const serving = demands(view).flatMap((demand) => servingPools(view, demand));
  return [...new Set([...requested, ...serving])].reduce((sum, { prefix }) => sum + view.blockStatsIn(prefix).used, 0);
}

/**
 * Recalls the unbound leases of a node: raises a number in its record, which it watches. Without effect on a node
 * without leases.
 * @returns whether the node was asked
 */
export function recallLeases(view: View, nodeName: string): Decision<boolean> {
  const hasLeases = blocksOf(view, view.handle(leaseHandle(nodeName))).some(
    (block) => heldAddressesIn(block, isLeaseOf(nodeName)).length > 0,
  );
  const isListed = (view.session(nodeName)?.leases.length ?? 0) > 0;
  const changes = hasLeases || isListed ? requestLeases(view, nodeName) : [];
  return { changes, outcome: changes.length > 0 };
}

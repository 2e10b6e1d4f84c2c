import type { FailureCode } from '@podwire/shared/failure/codes';
import { prefixContains } from '@podwire/shared/net/prefix';

import { allocationOf } from '../addresses/addresses.js';
import { demandOf, type AllocationRequest } from '../addresses/allocate.js';
import { takeFirst } from '../addresses/block-choice.js';
import { blocksOf } from '../blocks/holding.js';
import { beginSearch, blockOffers } from '../blocks/search.js';
import { servingPools } from '../pools/selection.js';
import { heldAddressesIn } from '../records/block.js';
import { isLease, isLeaseOf, leaseHandle } from '../records/lease.js';
import { poolOf, type Pool } from '../records/pool.js';
import type { Decision, View } from '../records/view.js';

/** Recalls of unbound leases, when an allocation finds no free address. */

/** An allocation that was refused. */
export interface Refused {
  readonly request: AllocationRequest;
  readonly code: FailureCode;
  readonly nowMs: number;
}

/** A node whose unbound leases a refused allocation could use. */
export interface LeaseHolder {
  readonly nodeName: string;
  /** Number of these leases. */
  readonly count: number;
}

/**
 * The nodes with unbound leases that stand in the way of an allocation: in the pools that serve it, if these have no
 * free address, and under the addresses that it requests.
 */
export function leaseHolders(view: View, refused: Refused): LeaseHolder[] {
  if (refused.code === 'ADDRESS_IN_USE') return holdersOfRequested(view, refused.request);
  if (refused.code !== 'POOLS_EXHAUSTED') return [];
  const pools = exhaustedPools(view, refused);
  return view.nodes().flatMap(({ name: nodeName, deletionTimeMs }) => {
    const blocks = blocksOf(view, view.handle(leaseHandle(nodeName)));
    const inReach = blocks.filter(({ prefix }) => poolOf(pools, prefix));
    const count = inReach.reduce((sum, block) => sum + heldAddressesIn(block, isLeaseOf(nodeName)).length, 0);
    return count > 0 && deletionTimeMs === undefined ? [{ nodeName, count }] : [];
  });
}

function holdersOfRequested(view: View, { addresses }: AllocationRequest): LeaseHolder[] {
  return addresses.flatMap((address) => {
    const attributes = allocationOf(view, address)?.attributes;
    const { node: nodeName } = attributes?.owner ?? {};
    return attributes && nodeName !== undefined && isLease(attributes) ? [{ nodeName, count: 1 }] : [];
  });
}

/** The serving pools of the families for which there is no free address. */
function exhaustedPools(view: View, { request, nowMs }: Refused): Pool[] {
  const { labels = {} } = view.node(request.nodeName) ?? {};
  return request.families.flatMap((family) => {
    const demand = demandOf(family, { request, nowMs, node: { labels, changes: [] } });
    const pools = servingPools(view, demand);
    return takeFirst(blockOffers(beginSearch(view, demand, pools)), 1).length === 0 ? pools : [];
  });
}

/** Number of addresses in use in the pools that a refused allocation could use. It falls when one is freed. */
export function usedInReach(view: View, { request }: Refused): number {
  return view
    .pools()
    .filter(({ prefix }) => request.families.includes(prefix.family))
    .filter(
      ({ prefix }) => request.addresses.length === 0 || request.addresses.some((each) => prefixContains(prefix, each)),
    )
    .reduce((sum, { prefix }) => sum + view.blockStatsIn(prefix).used, 0);
}

/**
 * Recalls the unbound leases of a node: raises a number in its record, which it watches. Without effect on a node
 * without leases.
 * @returns whether the node was asked
 */
export function recallLeases(view: View, nodeName: string): Decision<boolean> {
  const node = view.node(nodeName);
  const hasLeases = blocksOf(view, view.handle(leaseHandle(nodeName))).some(
    (block) => heldAddressesIn(block, isLeaseOf(nodeName)).length > 0,
  );
  if (!node || node.deletionTimeMs !== undefined || !hasLeases) return { changes: [], outcome: false };
  const value = { ...node, leaseRecallCount: (node.leaseRecallCount ?? 0) + 1 };
  return { changes: [{ type: 'put', record: { kind: 'node', value } }], outcome: true };
}

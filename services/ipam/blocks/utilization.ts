import { prefixSize } from '@podwire/shared/net/prefix';

import { holderOf } from '../records/attributes.js';
import { countBlocks, countUnused } from '../records/block-stats.js';
import { isHeld, usedCount, type Block } from '../records/block.js';
import { isLease } from '../records/lease.js';
import type { Node } from '../records/node.js';
import type { Pool } from '../records/pool.js';
import type { View } from '../records/view.js';
import { reservedFreeCount, reservedIn, type ReservedAddresses } from '../reservations/reservations.js';

/**
 * Utilization of a block, a node's blocks or a pool. Every address counts once: capacity = allocated + reserved +
 * available. An address that is both reserved and allocated counts as allocated. An unbound lease is available, as it
 * is recalled for a pod of another node.
 */
export interface BlockUtilization {
  /** Addresses in use or cooling down. */
  readonly allocated: number;
  /** Allocated addresses that were released and are not free yet. */
  readonly cooling: number;
  /** Not allocated, and excluded from automatic allocation by a reservation. */
  readonly reserved: number;
  /** Neither allocated nor reserved, or leased. */
  readonly available: number;
  /** Available addresses that are leased to nodes. */
  readonly leased: number;
}

/** Utilization of a node's blocks, whichever node uses their addresses. */
export interface NodeUtilization extends BlockUtilization {
  readonly blocks: number;
  /** Addresses in these blocks. */
  readonly capacity: number;
}

/** Utilization of all addresses of a pool's range, in blocks or not. */
export interface PoolUtilization {
  readonly capacity: bigint;
  readonly allocated: bigint;
  readonly cooling: bigint;
  readonly reserved: bigint;
  readonly available: bigint;
  readonly leased: bigint;
  readonly blocks: bigint;
}

/** Placeholder of Calico's metrics for addresses that name no node. */
const UNKNOWN_NODE = 'unknown_node';

/** How many addresses of a block each node has, by the names of the nodes. */
export interface BlockUse {
  readonly inUse: ReadonlyMap<string, number>;
  readonly leased: ReadonlyMap<string, number>;
  readonly cooling: ReadonlyMap<string, number>;
}

/** Blocks are immutable, so their counts are cached. */
const blockUseCache = new WeakMap<Block, BlockUse>();

export function blockUse(block: Block): BlockUse {
  const known = blockUseCache.get(block);
  if (known) return known;
  const [inUse, leased, cooling] = [new Map<string, number>(), new Map<string, number>(), new Map<string, number>()];
  for (const index of block.allocations) {
    const attributes = index === null ? undefined : block.attributes[index];
    if (!attributes) continue;
    const nodeName = holderOf(attributes).nodeName || UNKNOWN_NODE;
    const counts = !isHeld(attributes) ? cooling : isLease(attributes) ? leased : inUse;
    counts.set(nodeName, (counts.get(nodeName) ?? 0) + 1);
  }
  const use = { inUse, leased, cooling };
  blockUseCache.set(block, use);
  return use;
}

export function blockUtilization(block: Block, reserved: ReservedAddresses): BlockUtilization {
  const { cooling, leased } = countUnused(block);
  const allocated = usedCount(block) - leased;
  const reservedCount = reservedFreeCount(block, reserved);
  const available = block.allocations.length - allocated - reservedCount;
  return { allocated, cooling, reserved: reservedCount, available, leased };
}

export function nodeUtilization(view: View, { name }: Node): NodeUtilization {
  const ofReserved = reservedIn(view);
  const sum = { blocks: 0, capacity: 0, allocated: 0, cooling: 0, reserved: 0, available: 0, leased: 0 };
  for (const { block: prefix } of view.affinitiesOf({ kind: 'host', name })) {
    const block = view.block(prefix);
    if (block?.owner?.kind !== 'host' || block.owner.name !== name) continue;
    const { allocated, cooling, reserved, available, leased } = blockUtilization(block, ofReserved);
    sum.blocks++;
    sum.capacity += block.allocations.length;
    sum.allocated += allocated;
    sum.cooling += cooling;
    sum.reserved += reserved;
    sum.available += available;
    sum.leased += leased;
  }
  return sum;
}

export function poolUtilization(view: View, { prefix }: Pool): PoolUtilization {
  const stats = view.blockStatsIn(prefix);
  const capacity = prefixSize(prefix);
  const allocated = BigInt(stats.used - stats.leased);
  const reserved = reservedInPool(view, prefix);
  return {
    capacity,
    allocated,
    cooling: BigInt(stats.cooling),
    reserved,
    available: capacity - allocated - reserved,
    leased: BigInt(stats.leased),
    blocks: BigInt(countBlocks(stats)),
  };
}

/**
 * Reserved addresses minus the allocated ones among them; blocks are examined only where a reservation overlaps the
 * pool.
 */
function reservedInPool(view: View, prefix: Pool['prefix']): bigint {
  const ofReserved = reservedIn(view);
  let reserved = ofReserved.countIn(prefix);
  if (reserved === 0n) return 0n;
  for (const block of view.blocksIn(prefix))
    if (ofReserved.overlaps(block.prefix))
      reserved -= ofReserved.countIn(block.prefix) - BigInt(reservedFreeCount(block, ofReserved));
  return reserved;
}

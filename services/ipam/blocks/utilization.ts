import { prefixSize } from '@podwire/shared/net/prefix';

import { coolingCount, countBlocks } from '../records/block-stats.js';
import { usedCount, type Block } from '../records/block.js';
import type { Node } from '../records/node.js';
import type { Pool } from '../records/pool.js';
import type { View } from '../records/view.js';
import { reservedFreeCount, reservedIn, type ReservedAddresses } from '../reservations/reservations.js';

/**
 * Utilization of a block, a node's blocks or a pool. Every address counts once: capacity = allocated + reserved +
 * available. An address that is both reserved and allocated counts as allocated.
 */
export interface BlockUtilization {
  /** In use or cooling down. */
  readonly allocated: number;
  /** Those of the allocated ones that were released and are not free yet. */
  readonly cooling: number;
  /** Not allocated, and excluded from automatic allocation by a reservation. */
  readonly reserved: number;
  /** Neither allocated nor reserved. */
  readonly available: number;
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
  readonly blocks: bigint;
}

export function blockUtilization(block: Block, reserved: ReservedAddresses): BlockUtilization {
  const reservedCount = reservedFreeCount(block, reserved);
  return {
    allocated: usedCount(block),
    cooling: coolingCount(block),
    reserved: reservedCount,
    available: block.unallocated.length - reservedCount,
  };
}

export function nodeUtilization(view: View, { name }: Node): NodeUtilization {
  const ofReserved = reservedIn(view);
  let [blocks, capacity, allocated, cooling, reserved] = [0, 0, 0, 0, 0];
  for (const { block: prefix } of view.affinitiesOf({ kind: 'host', name })) {
    const block = view.block(prefix);
    if (block?.owner?.kind !== 'host' || block.owner.name !== name) continue;
    blocks++;
    capacity += block.allocations.length;
    allocated += usedCount(block);
    cooling += coolingCount(block);
    reserved += reservedFreeCount(block, ofReserved);
  }
  return { blocks, capacity, allocated, cooling, reserved, available: capacity - allocated - reserved };
}

export function poolUtilization(view: View, { prefix }: Pool): PoolUtilization {
  const stats = view.blockStatsIn(prefix);
  const capacity = prefixSize(prefix);
  const allocated = BigInt(stats.used);
  const reserved = reservedInPool(view, prefix);
  return {
    capacity,
    allocated,
    cooling: BigInt(stats.cooling),
    reserved,
    available: capacity - allocated - reserved,
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

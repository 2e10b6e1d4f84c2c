import type { Affinity, Block } from './records.js';

/**
 * Whether an affinity leads to nothing that its owner could use or would have to change: it is confirmed, the block names the owner, and
 * each of its addresses is in use.
 */
export function isSpent({ owner, state }: Affinity, block: Block | undefined): boolean {
  return (
    state === 'confirmed' && block?.owner?.kind === owner.kind && block.owner.name === owner.name && !mayGive(block)
  );
}

/** Whether an address of the block is free, or cools down. */
export function mayGive({ unallocated, attributes }: Block): boolean {
  return unallocated.length > 0 || attributes.some(({ releasedAtMs }) => releasedAtMs !== undefined);
}

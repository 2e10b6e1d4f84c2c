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

/** Whether nobody holds an address of a host's block: all are free, or cool down. */
export function isIdle({ owner, allocations, attributes }: Block): boolean {
  const isHeld = (index: number | null): boolean => index !== null && attributes[index]?.releasedAtMs === undefined;
  return owner?.kind === 'host' && !allocations.some(isHeld);
}

/**
 * Whether a block that may give something lacks the affinity that would lead to it: its owner's, or it has no owner.
 * @param affinity - the owner's for the block
 */
export function isLoose(block: Block, affinity: Affinity | undefined): boolean {
  return affinity === undefined && mayGive(block);
}

import { takeOrdinals } from '../records/block.js';
import type { AllocationAttributes, Block, Ordinal } from './records.js';

/** An address just taken: its place in the block, and the sequence number that names this allocation and no later one. */
interface TakenAddress {
  readonly block: Block;
  readonly ordinal: Ordinal;
  readonly sequenceNumber: bigint;
}

/** Takes the address that has been free for longest. @returns undefined when none is free */
export function takeAddress(block: Block, attributes: AllocationAttributes): TakenAddress | undefined {
  const [ordinal] = block.unallocated;
  if (ordinal === undefined) return undefined;
  return { ordinal, sequenceNumber: block.sequenceNumber, block: takeOrdinals(block, [ordinal], attributes) };
}

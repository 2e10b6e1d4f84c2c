import { ordinalOf, type Prefix } from '@podwire/shared/net/prefix';

import { releaseAddresses } from '../../records/block.js';
import type { AllocationAttributes, Block } from '../records.js';

/** Allocates a given address that is free, or cools down, to who is known to use it. */
export function restoreAddress(block: Block, address: Prefix, attributes: AllocationAttributes): Block {
  const ordinal = ordinalOf(block.prefix, address);
  const index = block.attributes.length;
  const taken = {
    ...block,
    allocations: block.allocations.with(ordinal, index),
    unallocated: block.unallocated.filter((free) => free !== ordinal),
    attributes: [...block.attributes, attributes],
    sequenceNumbers: block.sequenceNumbers.with(ordinal, block.sequenceNumber),
  };
  // Attributes that no address has any more go with it, as when the address was cooling down.
  return releaseAddresses(taken, []);
}

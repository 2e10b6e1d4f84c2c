import { addressAt, hostPrefix } from '@podwire/shared/net/prefix';

import type { HistoryEntry } from '../allocator/records.js';
import type { HeldAddress } from '../blocks/holding.js';
import { allocatedAtMs } from './attributes.js';

/** What an allocation leaves behind when it ends. */
export function historyEntry({ block, ordinal, attributes }: HeldAddress, nowMs: number): HistoryEntry {
  return {
    address: hostPrefix(addressAt(block.prefix, ordinal)),
    block: block.prefix,
    handleId: attributes.handleId,
    owner: attributes.owner,
    allocatedAtMs: allocatedAtMs(attributes),
    releasedAtMs: nowMs,
    sequenceNumber: block.sequenceNumbers[ordinal] ?? 0n,
  };
}

import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';

import type { HistoryEntry } from '../../allocator/records.js';
import type { JsonObject } from './json.js';

/** Podwire's own form of a past allocation; Calico keeps none. 64-bit numbers and times are texts that people can read. */
export function encodeHistoryEntry(entry: HistoryEntry): JsonObject {
  const { address, block, handleId, owner, allocatedAtMs, releasedAtMs, sequenceNumber } = entry;
  return {
    address: formatAddress(address),
    block: formatPrefix(block),
    ...(handleId === undefined ? {} : { handleID: handleId }),
    attributes: owner,
    ...(allocatedAtMs === undefined ? {} : { allocatedAt: new Date(allocatedAtMs).toISOString() }),
    releasedAt: new Date(releasedAtMs).toISOString(),
    sequenceNumber: String(sequenceNumber),
  };
}

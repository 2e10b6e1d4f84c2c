import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { expect } from 'vitest';

import { addressOf } from '../records/block.js';
import { attributesAt, type Block } from '../records/block.js';
import type { Endpoint } from '../records/endpoint.js';
import type { HistoryEntry } from '../records/history.js';

/** An entry of the history as a text. */
export function pastOf({
  address: each,
  handleId,
  sequenceNumber,
  allocatedAtMs: sinceMs,
  releasedAtMs,
}: HistoryEntry): string {
  return `${formatPrefix(each).split('/')[0]} ${handleId} ${sequenceNumber} ${sinceMs} ${releasedAtMs}`;
}

/** Expects one holder of an address at any moment. */
export function expectDistinctTimes(history: readonly HistoryEntry[]): void {
  const latest = new Map<string, number>();
  for (const { address: each, allocatedAtMs = 0, releasedAtMs } of history) {
    expect(allocatedAtMs).toBeLessThanOrEqual(releasedAtMs);
    expect(allocatedAtMs).toBeGreaterThanOrEqual(latest.get(formatPrefix(each)) ?? 0);
    latest.set(formatPrefix(each), releasedAtMs);
  }
}

/** Holders of addresses that neither are free nor cool down, as texts. */
export function storedHolders(blocks: readonly Block[]): string[] {
  return blocks.flatMap((block) =>
    block.allocations.flatMap((_, ordinal) => {
      const attributes = attributesAt(block, ordinal);
      if (!attributes || attributes.releasedAtMs !== undefined) return [];
      const text = formatAddress(addressOf({ block, ordinal }));
      return [`${text} ${attributes.handleId} ${attributes.owner.node} ${block.sequenceNumbers[ordinal]}`];
    }),
  );
}

/** An endpoint's container with its addresses, as a text. */
export function namedIn({ attachment, addresses }: Endpoint): string {
  return `${attachment.containerId} ${addresses.map((each) => formatAddress(each.address)).join()}`;
}

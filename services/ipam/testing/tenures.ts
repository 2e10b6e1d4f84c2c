import { formatPrefix } from '@podwire/shared/net/prefix';
import { expect } from 'vitest';

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

/** At any moment an address had one holder. */
export function expectDistinctTimes(history: readonly HistoryEntry[]): void {
  const latest = new Map<string, number>();
  for (const { address: each, allocatedAtMs = 0, releasedAtMs } of history) {
    expect(allocatedAtMs).toBeLessThanOrEqual(releasedAtMs);
    expect(allocatedAtMs).toBeGreaterThanOrEqual(latest.get(formatPrefix(each)) ?? 0);
    latest.set(formatPrefix(each), releasedAtMs);
  }
}

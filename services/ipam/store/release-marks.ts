import type { Clock } from '@podwire/shared/runtime/clock';

import type { RecordKeys } from './record/keys.js';
import type { Store, StoredRecord } from './store.js';

/** By far longer than a transaction is on its way to the datastore. */
const KEPT_MS = 15 * 60 * 1000;

/** Every mark is looked at each time, so not too often. */
const INTERVAL_MS = 5 * 60 * 1000;

/** Marks that are looked at at once. */
const PAGE_COUNT = 1000;

/** Marks that are removed at once, within the limit of any datastore. */
const BATCH_COUNT = 100;

export interface MarkExpiry {
  readonly store: Store;
  readonly keys: RecordKeys;
  readonly nowMs: number;
}

/**
 * Removes the marks of releases that are too old to matter. Idempotent; several replicas may do it at once, and a mark that was
 * made anew meanwhile stays.
 * @returns how many were removed
 * @throws Failure of the store
 */
export async function expireReleaseMarks({ store, keys, nowMs }: MarkExpiry, signal: AbortSignal): Promise<number> {
  let removed = 0;
  let after: string | undefined;
  for (;;) {
    const { records, more } = await store.scan({ prefix: keys.releases, after, limit: PAGE_COUNT }, signal);
    const old = records.filter(({ value }) => !(nowMs - releaseTimeMs(value) < KEPT_MS));
    for (let start = 0; start < old.length; start += BATCH_COUNT)
      removed += await removeAll(store, old.slice(start, start + BATCH_COUNT), signal);
    after = records.at(-1)?.key;
    if (!more || after === undefined) return removed;
  }
}

/** @returns how many were removed: none when one was changed at the same moment, and all are looked at again next time */
async function removeAll(store: Store, marks: readonly StoredRecord[], signal: AbortSignal): Promise<number> {
  const comparisons = marks.map(({ key, modRevision }) => ({ type: 'record', key, modRevision }) as const);
  const { committed } = await store.commit({ comparisons, puts: [], deletes: marks.map(({ key }) => key) }, signal);
  return committed ? marks.length : 0;
}

/** {@link expireReleaseMarks} at its own pace, for whoever calls it again and again. */
export function markExpiry({ store, keys, clock }: Omit<MarkExpiry, 'nowMs'> & { readonly clock: Clock }) {
  let dueMs = Number.NEGATIVE_INFINITY;
  return async (signal: AbortSignal): Promise<void> => {
    const nowMs = clock.nowMs();
    if (nowMs < dueMs) return;
    await expireReleaseMarks({ store, keys, nowMs }, signal);
    dueMs = nowMs + INTERVAL_MS;
  };
}

/** @returns NaN for a mark that cannot be read, which goes */
function releaseTimeMs(value: Uint8Array): number {
  const match = /"releasedAt":"([^"]*)"/.exec(Buffer.from(value).toString('latin1'));
  return Date.parse(match?.[1] ?? '');
}

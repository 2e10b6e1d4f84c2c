import type { RecordKeys } from './record/keys.js';
import type { Store } from './store.js';

/** By far longer than a transaction can be on its way to the datastore, and than the clocks of two replicas are apart. */
const KEPT_MS = 60 * 60 * 1000;

/** Marks that are looked at, and removed, at once. */
const PAGE_COUNT = 100;

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
    if (old.length > 0) {
      const comparisons = old.map(({ key, modRevision }) => ({ type: 'record', key, modRevision }) as const);
      const { committed } = await store.commit({ comparisons, puts: [], deletes: old.map(({ key }) => key) }, signal);
      // What was changed at the same moment is looked at again next time.
      if (committed) removed += old.length;
    }
    after = records.at(-1)?.key;
    if (!more || after === undefined) return removed;
  }
}

/** @returns NaN for a mark that cannot be read, which goes */
function releaseTimeMs(value: Uint8Array): number {
  const match = /"releasedAt":"([^"]*)"/.exec(Buffer.from(value).toString('latin1'));
  return Date.parse(match?.[1] ?? '');
}

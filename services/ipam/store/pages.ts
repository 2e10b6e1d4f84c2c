import { RevisionCompacted, type Snapshot, type Store } from './store.js';

/** A part of a list. */
export interface ListPart extends Snapshot {
  /** Whether the list begins with this part: what came before it is of another moment, and counts no more. */
  readonly isFirst: boolean;
}

/** What a part is to have at most; records are from 40 bytes to 500 KB. */
const PART_BYTES = 2 ** 20;
const FIRST_PART_COUNT = 100;
const MAX_PART_COUNT = 2_000;

/**
 * All records whose key begins with the prefix, as `list` has them at one moment, in parts: a whole list of a large datastore takes
 * as much memory again as what is made of it. Other work goes on between two parts. A store that no longer has the moment, as one
 * that keeps a single moment has after each commit, is listed at once.
 * @throws Failure of the store
 */
export async function* listInParts(
  store: Store,
  prefix: string,
  signal: AbortSignal,
): AsyncGenerator<ListPart, void, void> {
  try {
    let page = await store.scan({ prefix, after: undefined, limit: FIRST_PART_COUNT }, signal);
    const { revision } = page;
    yield { records: page.records, revision, isFirst: true };
    for (;;) {
      const { records, more } = page;
      const last = records.at(-1);
      if (!more || !last) return;
      await new Promise((resolve) => setImmediate(resolve));
      page = await store.scan({ prefix, after: last.key, limit: nextCount(records), revision }, signal);
      yield { records: page.records, revision, isFirst: false };
    }
  } catch (error) {
    if (!(error instanceof RevisionCompacted)) throw error;
  }
  yield { ...(await store.list(prefix, signal)), isFirst: true };
}

/** Going by the size of the records before. */
function nextCount(records: Snapshot['records']): number {
  const bytes = records.reduce((sum, { value }) => sum + value.length, 1);
  return Math.min(MAX_PART_COUNT, Math.max(1, Math.floor((PART_BYTES * records.length) / bytes)));
}

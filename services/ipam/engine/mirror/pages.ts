import { RevisionCompacted, type Snapshot, type Store } from '../store.js';

/** A part of a list. */
interface ListPart extends Snapshot {
  /** Whether the list begins with this part; earlier parts are of another moment and must be discarded. */
  readonly isFirst: boolean;
}

/**
 * Upper bounds of a page; records have 40 bytes to 500 KB. For each page etcd scans everything behind it, so small
 * pages of a large datastore take etcd much longer.
 */
const PAGE: Bounds = { bytes: 8 * 2 ** 20, count: 20_000 };
const FIRST_PAGE_COUNT = 100;

/** Size of one part: other work waits while it is processed. */
const PART: Bounds = { bytes: 2 ** 20, count: 2_000 };

interface Bounds {
  readonly bytes: number;
  readonly count: number;
}

/**
 * All records whose key begins with the prefix, as `list` returns them at one moment, in parts: a whole list of a large
 * datastore doubles its memory. Other work runs between two parts while the store prepares the next page. If the store
 * no longer has that moment (an embedded store loses it with each commit), it is listed in one piece.
 * @throws Failure of the store
 */
export async function* listInParts(
  store: Store,
  prefix: string,
  signal: AbortSignal,
): AsyncGenerator<ListPart, void, void> {
  try {
    let page = await store.scan({ prefix, after: undefined, limit: FIRST_PAGE_COUNT }, signal);
    const { revision } = page;
    for (let isFirst = true; ; isFirst = false) {
      const { records, more } = page;
      const last = records.at(-1);
      const limit = countWithin(records, PAGE);
      const next = more && last && store.scan({ prefix, after: last.key, limit, revision }, signal);
      // The consumer may stop before it awaits this promise, which would leave the rejection unhandled.
      if (next) next.catch(() => undefined);
      const partCount = countWithin(records, PART);
      for (let at = 0; at === 0 || at < records.length; at += partCount) {
        yield { records: records.slice(at, at + partCount), revision, isFirst: isFirst && at === 0 };
        await new Promise((resolve) => setImmediate(resolve));
      }
      if (!next) return;
      page = await next;
    }
  } catch (error) {
    if (!(error instanceof RevisionCompacted)) throw error;
  }
  yield { isFirst: true, ...(await store.list(prefix, signal)) };
}

/** Number of records within the bounds, estimated from the size of known ones. */
function countWithin(records: Snapshot['records'], { bytes: bytesMax, count }: Bounds): number {
  const bytes = records.reduce((sum, { value }) => sum + value.length, 1);
  return Math.min(count, Math.max(1, Math.floor((bytesMax * records.length) / bytes)));
}

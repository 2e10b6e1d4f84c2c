import { Failure } from '@podwire/shared/failure/failure';

import { RevisionCompacted, type Page, type Store, type StoredRecord } from '../engine/store.js';
import { ArchiveEncoder, type ArchiveTrailer } from './archive.js';
import { buffered, type Sink } from './export-file.js';
import { requireWhole } from './marker.js';
import { isPassing, rootsOf } from './scope.js';

export interface ExportOptions {
  readonly store: Store;
  /** Kind of the datastore, for the header. */
  readonly kind: string;
  readonly prefix: string;
  readonly sink: Sink;
  readonly signal: AbortSignal;
}

export interface Exported extends ArchiveTrailer {
  readonly revision: number;
}

/** Records of a page. Of the largest blocks, 4096 addresses, they have together about 100 MiB at most. */
const PAGE_COUNT = 100;

/**
 * Writes all records of a datastore, those too that Podwire does not know, as they were at one moment. A page is all that is
 * held of them.
 * @throws Failure IMPORT_INCOMPLETE, EXPORT_IO, STORE_CORRUPT for a key that is no text, CONFLICT when the moment was compacted
 * away meanwhile, or the store's
 */
export async function exportDatastore({ store, kind, prefix, sink, signal }: ExportOptions): Promise<Exported> {
  await requireWhole(store, prefix, signal);
  const revision = await store.revision(signal);
  const encoder = new ArchiveEncoder();
  const out = buffered(sink);
  await out.write(encoder.header({ prefix, store: kind, revision }));
  for (const root of rootsOf(prefix))
    for await (const record of recordsUnder(store, { root, revision, signal }))
      if (!isPassing(prefix, record.key)) await out.write(encoder.record(record));
  const { line, trailer } = encoder.trailer();
  await out.write(line);
  await out.flush();
  return { ...trailer, revision };
}

export interface Range {
  readonly root: string;
  /** The moment; each page's own when it is left out. */
  readonly revision?: number;
  readonly signal: AbortSignal;
}

/** The records below a root, in key order, page by page. */
export async function* recordsUnder(
  store: Store,
  { root, revision, signal }: Range,
): AsyncGenerator<StoredRecord, void, void> {
  const moment = revision === undefined ? {} : { revision };
  for (let after: string | undefined; ;) {
    const page = await pageOf(store.scan({ prefix: root, after, limit: PAGE_COUNT, ...moment }, signal));
    for (const record of page.records) {
      checkText(record.key);
      yield record;
    }
    after = page.records.at(-1)?.key;
    if (!page.more || after === undefined) return;
  }
}

async function pageOf(page: Promise<Page>): Promise<Page> {
  try {
    return await page;
  } catch (error) {
    if (!(error instanceof RevisionCompacted)) throw error;
    throw new Failure(
      'CONFLICT',
      'the datastore was compacted past the moment that was being exported; repeat the export, or compact later',
      { cause: error },
    );
  }
}

/** Bytes that are no UTF-8 read as this character, and could not be written back. */
const REPLACEMENT = '\u{fffd}';

function checkText(key: string): void {
  if (!key.includes(REPLACEMENT)) return;
  throw new Failure(
    'STORE_CORRUPT',
    `key ${JSON.stringify(key)} is no UTF-8 text; rename or delete it in the datastore`,
    {
      details: { key },
    },
  );
}

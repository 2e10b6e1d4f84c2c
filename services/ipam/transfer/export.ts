import { createReadStream } from 'node:fs';
import { open, rename, rm, type FileHandle } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import type { Writable } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { syncDirectory } from '@podwire/shared/files/sync-directory';

import { RevisionCompacted, type Page, type Store, type StoredRecord } from '../engine/store.js';
import { ArchiveEncoder, invalidLine, MAX_LINE_BYTES, type ArchiveTrailer } from './archive.js';
import { isEphemeral, requireCompleteImport, rootsOf } from './scope.js';

export interface ExportOptions {
  readonly store: Store;
  /** Kind of the datastore, for the header. */
  readonly kind: string;
  readonly prefix: string;
  readonly sink: Sink;
  readonly signal: AbortSignal;
}

export interface ExportResult extends ArchiveTrailer {
  readonly revision: number;
}

/** Records per page. With the largest blocks (4096 addresses) a page has about 100 MiB. */
const PAGE_COUNT = 100;

/**
 * Writes all records of a datastore, including kinds unknown to Podwire, as of one moment. It holds one page in memory.
 * @throws Failure IMPORT_INCOMPLETE, EXPORT_IO, STORE_CORRUPT for a key that is not valid text, CONFLICT when the
 * moment was compacted meanwhile, or the store's
 */
export async function exportDatastore({ store, kind, prefix, sink, signal }: ExportOptions): Promise<ExportResult> {
  await requireCompleteImport(store, prefix, signal);
  const revision = await store.revision(signal);
  const encoder = new ArchiveEncoder();
  const out = bufferedSink(sink);
  await out.write(encoder.header({ prefix, store: kind, revision }));
  for (const root of rootsOf(prefix))
    for await (const record of recordsUnder(store, { root, revision, signal }))
      if (!isEphemeral(prefix, record.key)) await out.write(encoder.record(record));
  const { line, trailer } = encoder.trailer();
  await out.write(line);
  await out.flush();
  return { ...trailer, revision };
}

export interface RecordRange {
  readonly root: string;
  /** Revision to read; without it, pages are of different moments. */
  readonly revision?: number;
  readonly signal: AbortSignal;
}

/** The records below a root, in key order, page by page. */
export async function* recordsUnder(
  store: Store,
  { root, revision, signal }: RecordRange,
): AsyncGenerator<StoredRecord, void, void> {
  const moment = revision === undefined ? {} : { revision };
  for (let after: string | undefined; ;) {
    const page = await awaitPage(store.scan({ prefix: root, after, limit: PAGE_COUNT, ...moment }, signal));
    for (const record of page.records) {
      requireUtf8(record.key);
      yield record;
    }
    after = page.records.at(-1)?.key;
    if (!page.more || after === undefined) return;
  }
}

async function awaitPage(page: Promise<Page>): Promise<Page> {
  try {
    return await page;
  } catch (error) {
    if (!(error instanceof RevisionCompacted)) throw error;
    throw new Failure(
      'CONFLICT',
      'the datastore was compacted past the exported revision; repeat the export, or compact later',
      { cause: error },
    );
  }
}

/** Invalid UTF-8 decodes to this character and could not be written back. */
const REPLACEMENT = '\u{fffd}';

function requireUtf8(key: string): void {
  if (!key.includes(REPLACEMENT)) return;
  throw new Failure(
    'STORE_CORRUPT',
    `key ${JSON.stringify(key)} is not UTF-8 text; rename or delete it in the datastore`,
    {
      details: { key },
    },
  );
}

/** Writes bytes with back-pressure. */
interface Sink {
  write(bytes: Uint8Array): Promise<void>;
}

/**
 * Writes a file atomically: to a temporary name first, then synced, then renamed. Until then the old file
 * stays, and after a failure or a crash no partial file has the final name.
 * @param pid - part of the temporary name
 * @throws Failure EXPORT_IO, or what `work` throws
 */
export async function writeAtomically<Result>(
  path: string,
  pid: number,
  work: (sink: Sink) => Promise<Result>,
): Promise<Result> {
  const partial = join(dirname(path), `.${basename(path)}.${pid}.partial`);
  const onFailure = ioFailureHandler(`${path} cannot be written`);
  const file = await open(partial, 'wx', 0o600).catch(onFailure);
  try {
    const result = await work(sinkOf(file, onFailure));
    await file.sync().catch(onFailure);
    await file.close();
    await rename(partial, path).catch(onFailure);
    await syncDirectory(dirname(path)).catch(onFailure);
    return result;
  } catch (error) {
    await file.close().catch(() => undefined);
    await rm(partial, { force: true });
    throw error;
  }
}

/** Writes to a stream, such as the standard output. @throws Failure EXPORT_IO when the reader has closed the stream */
export function streamSink(stream: Writable): Sink {
  const onFailure = ioFailureHandler('the standard output cannot be written');
  return {
    write: (bytes) =>
      new Promise<void>((resolve, reject) => {
        const onError = (error: Error): void => reject(error);
        stream.once('error', onError);
        stream.write(bytes, (error) => {
          stream.off('error', onError);
          if (error) reject(error);
          else resolve();
        });
      }).catch(onFailure),
  };
}

const LINE_END = 0x0a;

/**
 * The lines of a file, without newlines. At most {@link MAX_LINE_BYTES} of a line are buffered.
 * @throws Failure EXPORT_IO when it cannot be read, EXPORT_INVALID when a line is too long or the last has no end
 */
export async function* readLines(path: string): AsyncGenerator<Buffer, void, void> {
  let rest: Buffer[] = [];
  let restBytes = 0;
  let number = 1;
  try {
    for await (const chunk of chunksOf(path)) {
      let start = 0;
      for (let end = chunk.indexOf(LINE_END); end >= 0; end = chunk.indexOf(LINE_END, start)) {
        yield Buffer.concat([...rest, chunk.subarray(start, end)]);
        number++;
        rest = [];
        restBytes = 0;
        start = end + 1;
      }
      rest.push(chunk.subarray(start));
      restBytes += chunk.length - start;
      if (restBytes > MAX_LINE_BYTES) throw invalidLine(number, `is longer than ${MAX_LINE_BYTES} bytes`);
    }
  } catch (error) {
    if (error instanceof Failure) throw error;
    ioFailureHandler(`${path} cannot be read`)(error);
  }
  if (restBytes > 0) throw invalidLine(number, 'has no newline: the file is truncated');
}

async function* chunksOf(path: string): AsyncGenerator<Buffer, void, void> {
  const stream: AsyncIterable<Buffer> = createReadStream(path, { highWaterMark: 256 * 1024 });
  yield* stream;
}

/** Size of one write of small lines. */
const CHUNK_BYTES = 256 * 1024;

function sinkOf(file: FileHandle, onFailure: (error: unknown) => never): Sink {
  return { write: (bytes) => file.writeFile(bytes).catch(onFailure) };
}

/** Buffers small writes. `flush` writes the rest. */
function bufferedSink(sink: Sink): Sink & { flush(): Promise<void> } {
  let pending: Uint8Array[] = [];
  let bytes = 0;
  const flush = async (): Promise<void> => {
    const chunk = Buffer.concat(pending);
    pending = [];
    bytes = 0;
    await sink.write(chunk);
  };
  const write = async (more: Uint8Array): Promise<void> => {
    pending.push(more);
    bytes += more.length;
    if (bytes >= CHUNK_BYTES) await flush();
  };
  return { write, flush };
}

function ioFailureHandler(what: string): (error: unknown) => never {
  return (error) => {
    if (error instanceof Failure) throw error;
    const reason = messageOf(error);
    throw new Failure('EXPORT_IO', `${what} (${reason}): check the path, its permissions and the disk's free space`, {
      cause: error,
    });
  };
}

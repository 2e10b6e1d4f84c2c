import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Comparison, Store, StoreTraits } from '../engine/store.js';
import { readArchive, type ArchivedRecord, type ArchiveHeader, type ArchiveTrailer } from './archive.js';
import { recordsUnder } from './export.js';
import {
  encodeMark,
  isEphemeral,
  importMarkKey,
  readMark,
  rewriteKey,
  rootsOf,
  type ImportMark,
  type StoredMark,
} from './scope.js';

export interface ImportOptions extends Pick<StoreTraits, 'maxOperationsCount' | 'isExclusiveWriter'> {
  readonly store: Store;
  /** Prefix of the keys in the datastore. */
  readonly prefix: string;
  /** Opens the file again; it is read three times and never held in memory completely. */
  readonly lines: () => AsyncIterable<Buffer>;
  /** Maximum size of a transaction, in bytes. */
  readonly maxTransactionBytes: number;
  /** Whether keys with another prefix are rewritten; otherwise they are refused. */
  readonly rewritePrefix: boolean;
  /** Whether the datastore may already have records. */
  readonly merge: boolean;
  /** Checks only, without writing. */
  readonly dryRun: boolean;
  /** Makes a UUID. */
  readonly newUid: () => string;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

export interface ImportResult {
  /** Records of the file to import. */
  readonly records: number;
  /** Records that were written; for a dry run, that would be written. */
  readonly written: number;
  /** Whether this import completed an interrupted one. */
  readonly resumed: boolean;
}

/** How long a mark must be unchanged before its import counts as interrupted; a transaction takes far less. */
const STALL_MS = 5_000;
/** Maximum conflicting keys in a message. */
const NAMED_COUNT = 10;

/**
 * Imports the records of an export into a datastore. Difficulties:
 *
 * - It takes many transactions. The first one makes a mark that says so, on the condition that the datastore is empty;
 *   every later one compares and renews the mark; the last one marks the import as complete. Until then no service
 *   starts.
 * - It may be interrupted at any point. A repeat with the same file continues: records that exist already, equal to the
 *   byte, stay as they are.
 * - Two may run concurrently. An import that finds a moving mark is refused. One whose mark stood still for long loses
 *   it to the next import, and with it the right to write.
 *
 * @throws Failure EXPORT_INVALID, IMPORT_REFUSED, IMPORT_INCOMPLETE, or the store's
 */
export async function importDatastore(options: ImportOptions): Promise<ImportResult> {
  const file = await verifyFile(options);
  return new Import(options, file).run();
}

interface VerifiedFile {
  readonly header: ArchiveHeader;
  readonly trailer: ArchiveTrailer;
}

async function verifyFile({ lines, prefix, rewritePrefix }: ImportOptions): Promise<VerifiedFile> {
  let header: ArchiveHeader | undefined;
  let trailer: ArchiveTrailer | undefined;
  for await (const part of readArchive(lines())) {
    if (part.type === 'header') header = part.header;
    else if (part.type === 'trailer') trailer = part.trailer;
    else if (header && rewriteKey(part.record.key, header.prefix, prefix) === undefined)
      throw refusal(`the file has the key ${part.record.key}, which does not begin with its prefix ${header.prefix}`);
  }
  if (!header || !trailer) throw refusal('the file has no header');
  if (header.prefix !== prefix && !rewritePrefix)
    throw refusal(
      `the file's keys begin with ${header.prefix}, but the datastore's with ${prefix}; set PODWIRE_IPAM_DATASTORE_PREFIX or use --rewrite-prefix`,
    );
  return { header, trailer };
}

class Import {
  readonly #options: ImportOptions;
  readonly #file: VerifiedFile;
  readonly #markerKey: string;
  #markRevision = 0;
  #uid = '';
  #processedCount = 0;
  #writtenCount = 0;

  constructor(options: ImportOptions, file: VerifiedFile) {
    this.#options = options;
    this.#file = file;
    this.#markerKey = importMarkKey(options.prefix);
  }

  async run(): Promise<ImportResult> {
    const { store, prefix, signal, dryRun } = this.#options;
    const found = await readMark(store, prefix, signal);
    const resumed = found?.mark.state === 'running';
    if (resumed) await this.#requireStalledImport(found);
    else await this.#requireEmpty();
    if (!dryRun) await this.#takeMark(found);
    for await (const batch of this.#batches()) await this.#writeBatch(batch);
    if (!dryRun) await this.#finish();
    return { records: this.#file.trailer.records, written: this.#writtenCount, resumed };
  }

  /** @throws Failure IMPORT_REFUSED when another file's import is incomplete, or another import runs */
  async #requireStalledImport({ mark, modRevision }: StoredMark): Promise<void> {
    const { store, prefix, clock, isExclusiveWriter, signal } = this.#options;
    if (mark.sha256 !== this.#file.trailer.sha256)
      throw refusal(
        `an import of another file (SHA-256 ${mark.sha256}) is incomplete: repeat it with that file, or remove the datastore's records and ${this.#markerKey}`,
      );
    if (isExclusiveWriter) return;
    await clock.sleep(STALL_MS, signal);
    const again = await readMark(store, prefix, signal);
    if (again?.modRevision !== modRevision) throw refusal('another import into the datastore is running');
  }

  /** @throws Failure IMPORT_REFUSED when the datastore has disallowed records */
  async #requireEmpty(): Promise<void> {
    const { prefix, merge } = this.#options;
    if (merge) {
      await this.#requireNoConflict();
      return;
    }
    for await (const key of this.#existingKeys()) {
      throw refusal(
        `the datastore is not empty: it has ${key} (prefix ${prefix}); use an empty datastore, or --merge if the records of both belong together`,
      );
    }
  }

  async #requireNoConflict(): Promise<void> {
    const named: string[] = [];
    let count = 0;
    for await (const batch of this.#batches()) {
      const there = await this.#storedValues(batch);
      for (const { key, value } of batch) {
        const stored = there.get(key);
        if (!stored || stored.equals(value)) continue;
        count++;
        if (named.length < NAMED_COUNT) named.push(key);
      }
    }
    if (count === 0) return;
    const more = count > named.length ? ` and ${count - named.length} more` : '';
    throw refusal(
      `${formatCount(count, 'record exists', 'records exist')} with another value: ${named.join(', ')}${more}; nothing was written`,
    );
  }

  /** Takes the mark, on the condition that no other import or service has begun. */
  async #takeMark(found: StoredMark | undefined): Promise<void> {
    const { store, prefix, merge, newUid, signal } = this.#options;
    this.#markRevision = found?.modRevision ?? 0;
    this.#uid = newUid();
    const comparisons: Comparison[] = [this.#markComparison()];
    if (found?.mark.state !== 'running' && !merge) {
      const revision = await store.revision(signal);
      for await (const key of this.#existingKeys()) throw refusal(`${key} was created during the import`);
      for (const root of rootsOf(prefix))
        comparisons.push({ type: 'prefix', prefix: root, notAfterRevision: revision });
    }
    await this.#commit(comparisons, [this.#markPut('running')]);
  }

  async #writeBatch(batch: readonly ArchivedRecord[]): Promise<void> {
    const there = await this.#storedValues(batch);
    const missing = batch.filter(({ key, value }) => {
      const stored = there.get(key);
      if (stored && !stored.equals(value))
        throw refusal(`${key} was changed during the import, which cannot be completed`);
      return !stored;
    });
    this.#processedCount += batch.length;
    this.#writtenCount += missing.length;
    if (this.#options.dryRun || missing.length === 0) return;
    const absent = missing.map(({ key }): Comparison => ({ type: 'record', key, modRevision: 0 }));
    await this.#commit([this.#markComparison(), ...absent], [this.#markPut('running'), ...missing]);
  }

  /** Verifies all records, and only then marks the import as complete. */
  async #finish(): Promise<void> {
    for await (const batch of this.#batches()) {
      const there = await this.#storedValues(batch);
      for (const { key, value } of batch)
        if (!there.get(key)?.equals(value)) throw refusal(`${key} differs from the written value`);
    }
    if (!this.#options.merge) {
      let count = 0;
      for await (const key of this.#existingKeys()) count += key === '' ? 0 : 1;
      const { records } = this.#file.trailer;
      if (count !== records)
        throw refusal(
          `the datastore has ${formatCount(count, 'record')}, but the file ${records}: another process writes to it`,
        );
    }
    await this.#commit([this.#markComparison()], [this.#markPut('complete')]);
  }

  /** @throws Failure IMPORT_REFUSED when the mark or a record has changed */
  async #commit(comparisons: readonly Comparison[], puts: readonly ArchivedRecord[]): Promise<void> {
    const result = await this.#options.store.commit({ comparisons, puts, deletes: [] }, this.#options.signal);
    if (!result.committed)
      throw refusal(
        'another process writes to the datastore: stop all replicas and other imports, and repeat the import',
      );
    this.#markRevision = result.revision;
  }

  #markComparison(): Comparison {
    return { type: 'record', key: this.#markerKey, modRevision: this.#markRevision };
  }

  #markPut(state: ImportMark['state']): ArchivedRecord {
    const mark = { state, uid: this.#uid, sha256: this.#file.trailer.sha256, records: this.#processedCount };
    return { key: this.#markerKey, value: encodeMark(mark) };
  }

  /** The file's records with rewritten keys, in batches of one transaction. */
  async *#batches(): AsyncGenerator<readonly ArchivedRecord[], void, void> {
    const { lines, prefix, maxOperationsCount, maxTransactionBytes } = this.#options;
    let batch: ArchivedRecord[] = [];
    let bytes = 0;
    const { header } = this.#file;
    for await (const part of readArchive(lines())) {
      if (part.type !== 'record') continue;
      const { value } = part.record;
      const key = rewriteKey(part.record.key, header.prefix, prefix) ?? part.record.key;
      const size = Buffer.byteLength(key) * 2 + value.length;
      // One operation is for the mark.
      if (batch.length > 0 && (batch.length + 1 >= maxOperationsCount || bytes + size > maxTransactionBytes)) {
        yield batch;
        batch = [];
        bytes = 0;
      }
      batch.push({ key, value });
      bytes += size;
    }
    if (batch.length > 0) yield batch;
  }

  async #storedValues(batch: readonly ArchivedRecord[]): Promise<Map<string, Buffer>> {
    const { records } = await this.#options.store.read(
      batch.map(({ key }) => key),
      this.#options.signal,
    );
    return new Map(records.map(({ key, value }) => [key, Buffer.from(value)]));
  }

  async *#existingKeys(): AsyncGenerator<string, void, void> {
    const { store, prefix, signal } = this.#options;
    for (const root of rootsOf(prefix))
      for await (const { key } of recordsUnder(store, { root, signal })) if (!isEphemeral(prefix, key)) yield key;
  }
}

function refusal(reason: string): Failure {
  return new Failure('IMPORT_REFUSED', `import refused: ${reason}`);
}

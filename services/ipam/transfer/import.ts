import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Comparison, Store, StoredRecord, StoreTraits } from '../engine/store.js';
import { readArchive, type ArchivedRecord, type ArchiveHeader, type ArchiveTrailer } from './archive.js';
import { recordsUnder } from './export.js';
import type { ImportTarget } from './import-target.js';
import {
  encodeMark,
  isEphemeral,
  importMarkKey,
  readMark,
  rewriteKey,
  type ImportMark,
  type StoredMark,
} from './scope.js';

export interface ImportOptions extends Pick<StoreTraits, 'maxOperationsCount' | 'isExclusiveWriter'> {
  readonly store: Store;
  readonly target: ImportTarget;
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
  /** Keys of the records that were left out, by the reason. */
  readonly leftOut: ReadonlyMap<string, readonly string[]>;
  /** Numbers of entries of the history that were left out, by the reason. */
  readonly leftOutEntries: ReadonlyMap<string, number>;
}

/** How long a mark must be unchanged before its import counts as interrupted; a transaction takes far less. */
const STALL_MS = 5_000;
/** Attempts to write records that other programs may change meanwhile, as the kubelet changes its Node. */
const MAX_ATTEMPTS = 5;
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

async function verifyFile({ lines, prefix, rewritePrefix, target }: ImportOptions): Promise<VerifiedFile> {
  let header: ArchiveHeader | undefined;
  let trailer: ArchiveTrailer | undefined;
  for await (const part of readArchive(lines())) {
    if (part.type === 'header') header = part.header;
    else if (part.type === 'trailer') trailer = part.trailer;
    else if (header) {
      const { key, value } = part.record;
      const rewritten = rewriteKey(key, header.prefix, prefix);
      if (rewritten === undefined)
        throw refusal(`the file has the key ${key}, which does not begin with its prefix ${header.prefix}`);
      target.prepare({ key: rewritten, value });
    }
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
  readonly #leftOut = new Map<string, string[]>();

  constructor(options: ImportOptions, file: VerifiedFile) {
    this.#options = options;
    this.#file = file;
    this.#markerKey = importMarkKey(options.prefix);
  }

  async run(): Promise<ImportResult> {
    const { store, target, prefix, signal, dryRun } = this.#options;
    const found = await readMark(store, prefix, signal);
    const resumed = found?.mark.state === 'running';
    if (resumed) await this.#requireStalledImport(found);
    else await this.#requireEmpty();
    if (!dryRun) await this.#takeMark(found);
    for await (const batch of this.#batches()) {
      for (let attempt = 1; !(await this.#writeBatch(batch)); attempt++)
        if (target.keepsAll || attempt === MAX_ATTEMPTS) throw interference();
      this.#processedCount += batch.length;
    }
    const { history } = target;
    this.#writtenCount += (await history?.write(dryRun, signal)) ?? 0;
    if (!dryRun) await this.#finish();
    const { records } = this.#file.trailer;
    const leftOutEntries = history?.leftOut ?? new Map<string, number>();
    return { records, written: this.#writtenCount, resumed, leftOut: this.#leftOut, leftOutEntries };
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
      for (const record of batch) {
        const stored = there.get(record.key)?.value;
        if (!stored || this.#isWritable(record, stored)) continue;
        count++;
        if (named.length < NAMED_COUNT) named.push(record.key);
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
    const { store, target, merge, newUid, signal } = this.#options;
    this.#markRevision = found?.modRevision ?? 0;
    this.#uid = newUid();
    const comparisons: Comparison[] = [this.#markComparison()];
    if (found?.mark.state !== 'running' && !merge) {
      const revision = await store.revision(signal);
      for await (const key of this.#existingKeys()) throw refusal(`${key} was created during the import`);
      for (const root of target.emptyRoots)
        comparisons.push({ type: 'prefix', prefix: root, notAfterRevision: revision });
    }
    if (!(await this.#commit(comparisons, [this.#markPut('running')]))) throw interference();
  }

  /** @returns whether the batch is written; another program may have changed a record meanwhile */
  async #writeBatch(batch: readonly ArchivedRecord[]): Promise<boolean> {
    const { target, dryRun } = this.#options;
    const there = await this.#storedValues(batch);
    const wanted = batch.filter((record) => {
      const { key } = record;
      const stored = there.get(key)?.value;
      if (target.isDerived(key)) return false;
      const obstacle = target.obstacle(key, stored !== undefined);
      if (obstacle !== undefined && dryRun) this.#leaveOut(key, obstacle);
      if (obstacle !== undefined || (stored && target.isSame(record, stored))) return false;
      if (stored && !target.replaces(record, stored))
        throw refusal(`${key} was changed during the import, which cannot be completed`);
      return true;
    });
    if (dryRun) this.#writtenCount += wanted.length;
    if (dryRun || wanted.length === 0) return true;
    const comparisons = wanted.map(({ key }): Comparison => {
      return { type: 'record', key, modRevision: there.get(key)?.modRevision ?? 0 };
    });
    const companions = new Set(wanted.flatMap((record) => target.companionsOf(record)));
    const puts = [this.#markPut('running', batch.length), ...wanted, ...companions];
    const isWritten = await this.#commit([this.#markComparison(), ...comparisons], puts);
    if (isWritten) this.#writtenCount += wanted.length;
    return isWritten;
  }

  #isWritable(record: ArchivedRecord, stored: Uint8Array): boolean {
    const { target } = this.#options;
    return target.isDerived(record.key) || target.isSame(record, stored) || target.replaces(record, stored);
  }

  #leaveOut(key: string, reason: string): void {
    const keys = this.#leftOut.get(reason) ?? [];
    this.#leftOut.set(reason, keys);
    keys.push(key);
  }

  /** Verifies all records, and only then marks the import as complete. */
  async #finish(): Promise<void> {
    const { target, merge } = this.#options;
    for await (const batch of this.#batches()) {
      const there = await this.#storedValues(batch);
      for (const record of batch) {
        const { key } = record;
        const stored = there.get(key)?.value;
        const obstacle = target.obstacle(key, stored !== undefined);
        if (obstacle !== undefined) this.#leaveOut(key, obstacle);
        else if (!stored || !target.isSame(record, stored)) {
          if (!target.isDerived(key)) throw refusal(`${key} differs from the written value`);
          this.#leaveOut(key, 'of handles and endpoints that differ from the addresses');
        }
      }
    }
    if (!merge && target.keepsAll) {
      let count = 0;
      for await (const key of this.#existingKeys()) count += key === '' ? 0 : 1;
      const { records } = this.#file.trailer;
      if (count !== records)
        throw refusal(
          `the datastore has ${formatCount(count, 'record')}, but the file ${records}: another process writes to it`,
        );
    }
    if (!(await this.#commit([this.#markComparison()], [this.#markPut('complete')]))) throw interference();
  }

  /** @returns whether neither the mark nor a record has changed */
  async #commit(comparisons: readonly Comparison[], puts: readonly ArchivedRecord[]): Promise<boolean> {
    const result = await this.#options.store.commit({ comparisons, puts, deletes: [] }, this.#options.signal);
    if (result.committed) this.#markRevision = result.revision;
    return result.committed;
  }

  #markComparison(): Comparison {
    return { type: 'record', key: this.#markerKey, modRevision: this.#markRevision };
  }

  #markPut(state: ImportMark['state'], batchCount = 0): ArchivedRecord {
    const records = this.#processedCount + batchCount;
    const mark = { state, uid: this.#uid, sha256: this.#file.trailer.sha256, records };
    return { key: this.#markerKey, value: encodeMark(mark) };
  }

  /** The file's records with rewritten keys, in batches of one transaction, without a history that is written apart. */
  async *#batches(): AsyncGenerator<readonly ArchivedRecord[], void, void> {
    const { lines, prefix, target, maxOperationsCount, maxTransactionBytes } = this.#options;
    let batch: ArchivedRecord[] = [];
    let bytes = 0;
    const { header } = this.#file;
    for await (const part of readArchive(lines())) {
      if (part.type !== 'record') continue;
      const { value } = part.record;
      const key = rewriteKey(part.record.key, header.prefix, prefix) ?? part.record.key;
      if (target.history?.covers(key)) continue;
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

  async #storedValues(batch: readonly ArchivedRecord[]): Promise<ReadonlyMap<string, StoredRecord>> {
    const { records } = await this.#options.store.read(
      batch.map(({ key }) => key),
      this.#options.signal,
    );
    return new Map(records.map((record) => [record.key, record]));
  }

  async *#existingKeys(): AsyncGenerator<string, void, void> {
    const { store, target, prefix, signal } = this.#options;
    for (const root of target.emptyRoots)
      for await (const { key } of recordsUnder(store, { root, signal })) if (!isEphemeral(prefix, key)) yield key;
  }
}

function interference(): Failure {
  return refusal('another process writes to the datastore: stop all replicas and other imports, and repeat the import');
}

function refusal(reason: string): Failure {
  return new Failure('IMPORT_REFUSED', `import refused: ${reason}`);
}

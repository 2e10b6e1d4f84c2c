import { chmodSync, mkdirSync } from 'node:fs';
import { setImmediate as setImmediatePromise } from 'node:timers/promises';

import { trace } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { messageOf } from '@podwire/shared/failure/thrown';
import { tryLockDirectory, type DirectoryLock } from '@podwire/shared/files/directory-lock';
import { open, type Database, type RootDatabase } from 'lmdb';

import { ChangeLog } from '../change-log.js';
import {
  RevisionCompacted,
  type CommitResult,
  type Page,
  type RevisionChanges,
  type ScanRequest,
  type Snapshot,
  type Store,
  type StoredRecord,
  type Transaction,
  type WatchRequest,
} from '../store.js';
import {
  closedFailure,
  effectiveChanges,
  evaluateComparisons,
  throwIfAborted,
  type ComparisonState,
} from '../transaction.js';

interface EmbeddedStoreOptions {
  /** Directory of the files; created if missing, accessible to its owner only. */
  readonly directory: string;
  /** PID of this process, for the message of a second process. */
  readonly pid: number;
  /** How many revisions a watch can go back at least, unless their values are larger than 8 MiB. Default: 10,000. */
  readonly watchHistoryCount?: number;
  /** Address space reserved for the file at the start, in bytes; the file grows automatically. Default: 64 MiB. */
  readonly initialMapBytes?: number;
}

const DEFAULT_WATCH_HISTORY_COUNT = 10_000;
const DEFAULT_INITIAL_MAP_BYTES = 64 * 2 ** 20;

/** Version of the layout below; another one is refused. */
const FORMAT = 1;
const FORMAT_KEY = 'format';
const REVISION_KEY = 'revision';

/** A stored value begins with its record's modRevision, a big-endian 64-bit integer. */
const REVISION_BYTES = 8;

/** Sorts after every key with the prefix. */
const LAST = '\u{10ffff}';

interface PendingCommit {
  readonly transaction: Transaction;
  readonly signal: AbortSignal;
  readonly resolve: (result: CommitResult) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * The store of one machine: an lmdb file that only this process has open.
 *
 * Transactions that arrive during a write are written together after it, in one lmdb transaction. Each has its own
 * comparisons, which are evaluated here, as this process is the only writer. lmdb writes its pages, calls fdatasync,
 * and writes the meta page with O_DSYNC before it answers. It uses its own thread, so that this one serves other
 * requests. A small single transaction is written on this thread, because the round trip takes longer than the work.
 * lmdb's asynchronous transactions with callbacks never returned on Node 20 (lmdb 3.5.6), and its conditional puts
 * cannot compare a prefix; plain puts in a `batch` are atomic.
 */
export class EmbeddedStore implements Store {
  readonly #root: RootDatabase<Buffer, string>;
  readonly #records: Database<Buffer, string>;
  readonly #meta: Database<number, string>;
  readonly #lock: DirectoryLock;
  readonly #log: ChangeLog;
  readonly #recent = new RecentRevisions();
  #pending: PendingCommit[] = [];
  /** The running write; one batch at a time, so that each is compared with the result of the previous ones. */
  #writing: Promise<void> | undefined;
  #closing: Promise<void> | undefined;

  private constructor(options: EmbeddedStoreOptions, lock: DirectoryLock) {
    this.#lock = lock;
    const settings = {
      path: options.directory,
      encoding: 'binary',
      mapSize: options.initialMapBytes ?? DEFAULT_INITIAL_MAP_BYTES,
      maxDbs: 4,
      // A commit is answered once it is on the disk.
      overlappingSync: false,
      // For an implicit batch lmdb keeps an internal promise; its rejection, for example on a full disk, would end the
      // process.
      eventTurnBatching: false,
      // A batch is written at once. lmdb's types do not know this one.
      txnStartThreshold: 0,
    } as const;
    this.#root = open<Buffer, string>(settings);
    this.#records = this.#root.openDB<Buffer, string>({ name: 'records', encoding: 'binary' });
    this.#meta = this.#root.openDB<number, string>({ name: 'meta', encoding: 'ordered-binary' });
    this.#checkFormat(options.directory);
    this.#log = new ChangeLog(this.#revision(), options.watchHistoryCount ?? DEFAULT_WATCH_HISTORY_COUNT);
  }

  /**
   * Opens the store and locks its directory.
   * @throws Failure STORE_IN_USE when another process has it open, STORE_CORRUPT when it is of another format,
   * STORE_UNAVAILABLE when the files cannot be opened
   */
  static open(options: EmbeddedStoreOptions): Promise<EmbeddedStore> {
    return new Promise((resolve) => resolve(EmbeddedStore.#open(options)));
  }

  static #open(options: EmbeddedStoreOptions): EmbeddedStore {
    const { directory } = options;
    let lock: DirectoryLock | undefined;
    try {
      mkdirSync(directory, { recursive: true, mode: 0o700 });
      chmodSync(directory, 0o700);
      lock = lockDirectory(directory, String(options.pid));
      return new EmbeddedStore(options, lock);
    } catch (error) {
      lock?.release();
      if (error instanceof Failure) throw error;
      throw ioFailure(`the datastore in ${directory} cannot be opened`, error);
    }
  }

  list(prefix: string, signal: AbortSignal): Promise<Snapshot> {
    return this.#readWith(signal, () => {
      const range = this.#records.getRange({ start: prefix, end: prefix + LAST });
      return Array.from(range, ({ key, value }) => decodeRecord(key, value));
    });
  }

  read(keys: readonly string[], signal: AbortSignal): Promise<Snapshot> {
    return this.#readWith(signal, () =>
      [...new Set(keys)].sort().flatMap((key) => {
        const value = this.#records.get(key);
        return value ? [decodeRecord(key, value)] : [];
      }),
    );
  }

  async scan({ prefix, after, limit, revision: wanted }: ScanRequest, signal: AbortSignal): Promise<Page> {
    const { records, revision } = await this.#readWith(signal, () => {
      const start = after ?? prefix;
      const exclusiveStart = after !== undefined;
      const range = this.#records.getRange({ start, exclusiveStart, end: prefix + LAST, limit: limit + 1 });
      return Array.from(range, ({ key, value }) => decodeRecord(key, value));
    });
    // Only the current revision is stored.
    if (wanted !== undefined && wanted !== revision) throw new RevisionCompacted(wanted);
    return { records: records.slice(0, limit), revision, more: records.length > limit };
  }

  revision(signal: AbortSignal): Promise<number> {
    return new Promise((resolve) => {
      this.#check(signal);
      this.#root.resetReadTxn();
      resolve(this.#revision());
    });
  }

  commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    trace.getActiveSpan()?.setAttribute('db.system.name', 'lmdb');
    return new Promise((resolve, reject) => {
      this.#check(signal);
      if (this.#pending.length === 0) setImmediate(() => this.#commitPending());
      this.#pending.push({ transaction, signal, resolve, reject });
    });
  }

  watch(watch: WatchRequest, signal: AbortSignal): AsyncGenerator<RevisionChanges, void, void> {
    return this.#log.watch(watch, signal);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#commitPending();
    while (this.#writing) await this.#writing;
    this.#log.close(closedFailure());
    await this.#root.close();
    this.#lock.release();
  }

  #check(signal: AbortSignal): void {
    throwIfAborted(signal);
    if (this.#closing) throw closedFailure();
  }

  /** All reads and the revision come from one lmdb snapshot: this process is the only writer, and this is one turn. */
  #readWith(signal: AbortSignal, read: () => StoredRecord[]): Promise<Snapshot> {
    return new Promise((resolve) => {
      this.#check(signal);
      this.#root.resetReadTxn();
      resolve({ records: read(), revision: this.#revision() });
    });
  }

  #revision(): number {
    return this.#meta.get(REVISION_KEY) ?? 1;
  }

  #checkFormat(directory: string): void {
    const format = this.#meta.get(FORMAT_KEY);
    if (format === undefined) this.#meta.putSync(FORMAT_KEY, FORMAT);
    else if (format !== FORMAT)
      throw new Failure(
        'STORE_CORRUPT',
        `the datastore in ${directory} has format ${format} and this release reads ${FORMAT}: use the release that wrote it, export, and import here`,
      );
  }

  #commitPending(): void {
    if (this.#writing) return;
    const batch = this.#pending.splice(0);
    // Closing has committed them already.
    if (batch.length === 0) return;
    this.#root.resetReadTxn();
    const writeBatch = new Batch(this.#records, this.#recent, this.#revision());
    const results = batch.map(({ transaction, signal }) => (signal.aborted ? undefined : writeBatch.add(transaction)));
    const answer = (): void => this.#resolveBatch(batch, results, writeBatch.publishedChanges);
    const isSmall = batch.length === 1 && writeBatch.writes.size <= SMALL_WRITES_COUNT;
    if (writeBatch.writes.size === 0) answer();
    else if (isSmall) this.#write(writeBatch, { batch, answer });
    else this.#writing = this.#writeOnThread(writeBatch, { batch, answer });
  }

  /** Answers the callers after the write. */
  #resolveBatch(
    batch: readonly PendingCommit[],
    results: readonly BatchResult[],
    publishedChanges: readonly RevisionChanges[],
  ): void {
    for (const { revision, changes } of publishedChanges) {
      for (const { key, type } of changes) this.#recent.set(key, type === 'put' ? revision : 0);
    }
    batch.forEach(({ resolve, reject, signal }, index) => {
      const result = results[index];
      if (result) resolve(result);
      else reject(failureOfSignal(signal));
    });
    // After the answers to committers: a mirror that has applied its own change need not decode it again.
    setImmediate(() => {
      for (const changes of publishedChanges) this.#log.append(changes);
    });
  }

  /** In this turn of the event loop. */
  #write({ writes, revision }: Batch, { batch, answer }: PendingBatch): void {
    try {
      this.#root.transactionSync(() => {
        for (const [key, value] of writes) {
          if (value) this.#records.putSync(key, value);
          else this.#records.removeSync(key);
        }
        this.#meta.putSync(REVISION_KEY, revision);
      });
    } catch (error) {
      rejectBatch(batch, error);
      return;
    }
    answer();
  }

  async #writeOnThread({ writes, revision }: Batch, { batch, answer }: PendingBatch): Promise<void> {
    try {
      await this.#root.batch(() => {
        for (const [key, value] of writes) {
          if (value) void this.#records.put(key, value);
          else void this.#records.remove(key);
        }
        void this.#meta.put(REVISION_KEY, revision);
      });
      answer();
    } catch (error) {
      rejectBatch(batch, await causeOf(error));
    }
    this.#writing = undefined;
    this.#commitPending();
  }
}

/** Writes of the allocation of one address in a block of its node. */
const SMALL_WRITES_COUNT = 4;

type BatchResult = CommitResult | undefined;

interface PendingBatch {
  readonly batch: readonly PendingCommit[];
  readonly answer: () => void;
}

/**
 * Why a commit on lmdb's thread failed. The error holds a promise that is rejected with the reason in the same turn of
 * the event loop, so a handler must be attached.
 */
async function causeOf(error: unknown): Promise<unknown> {
  if (!(error instanceof Error && 'commitError' in error && error.commitError instanceof Promise)) return error;
  const reason = error.commitError.then(
    () => error,
    (cause: unknown) => cause,
  );
  return await Promise.race([reason, setImmediatePromise(error)]);
}

/** lmdb has undone all of it. */
function rejectBatch(batch: readonly PendingCommit[], error: unknown): void {
  const failure = ioFailure('the datastore could not write a transaction', error);
  for (const { reject } of batch) reject(failure);
}

/** Transactions that are written together: evaluates their comparisons against the state after the preceding ones. */
class Batch implements ComparisonState {
  /** The values with their revisions; undefined for deleted records. */
  readonly writes = new Map<string, Buffer | undefined>();
  readonly publishedChanges: RevisionChanges[] = [];
  readonly #records: Database<Buffer, string>;
  readonly #recent: RecentRevisions;
  #revision: number;

  constructor(records: Database<Buffer, string>, recent: RecentRevisions, revision: number) {
    this.#records = records;
    this.#recent = recent;
    this.#revision = revision;
  }

  /** The store's revision once the batch is written. */
  get revision(): number {
    return this.#revision;
  }

  add(transaction: Transaction): CommitResult {
    const lost = evaluateComparisons(transaction.comparisons, this);
    if (lost) return lost;
    const changes = effectiveChanges(transaction, (key) => this.modRevision(key) !== 0);
    if (changes.length === 0) return { committed: true, revision: this.#revision };
    const revision = ++this.#revision;
    for (const change of changes) {
      this.writes.set(change.key, change.type === 'put' ? encodeValue(change.value, revision) : undefined);
    }
    this.publishedChanges.push({ revision, changes });
    return { committed: true, revision };
  }

  get(key: string): StoredRecord | undefined {
    const value = this.writes.has(key) ? this.writes.get(key) : this.#records.get(key);
    return value && decodeRecord(key, value);
  }

  modRevision(key: string): number {
    const written = this.writes.get(key);
    if (written) return revisionOf(written);
    if (this.writes.has(key)) return 0;
    const recent = this.#recent.get(key);
    if (recent !== undefined) return recent;
    // lmdb's own buffer, valid until the next read, avoids copying a block for its first bytes.
    const stored = this.#records.getBinaryFast(key);
    return stored ? revisionOf(stored) : 0;
  }

  *changedUnder(prefix: string, revision: number): Generator<StoredRecord, void, void> {
    const stored = this.#records.getRange({ start: prefix, end: prefix + LAST }).map(({ key }) => key);
    const written = [...this.writes.keys()].filter((key) => key.startsWith(prefix));
    for (const keys of [stored, written]) {
      for (const key of keys) {
        const record = this.get(key);
        if (record && record.modRevision > revision) yield record;
      }
    }
  }
}

function encodeValue(value: Uint8Array, revision: number): Buffer {
  const stored = Buffer.allocUnsafe(REVISION_BYTES + value.length);
  stored.writeBigUInt64BE(BigInt(revision));
  stored.set(value, REVISION_BYTES);
  return stored;
}

function revisionOf(value: Buffer): number {
  return value.readUInt32BE(0) * 2 ** 32 + value.readUInt32BE(4);
}

function decodeRecord(key: string, value: Buffer): StoredRecord {
  return { key, value: value.subarray(REVISION_BYTES), modRevision: revisionOf(value) };
}

function ioFailure(what: string, cause: unknown): Failure {
  const reason = messageOf(cause);
  return new Failure('STORE_UNAVAILABLE', `${what} (${reason}): check the disk's free space and permissions`, {
    cause,
  });
}

/**
 * Locks a datastore's directory until this process closes the datastore or ends.
 * @param owner - PID of this process, for the message of a second process
 * @throws Failure STORE_IN_USE naming the directory and the owner
 */
function lockDirectory(directory: string, owner: string): DirectoryLock {
  const outcome = tryLockDirectory({ directory, name: 'lock', owner });
  if ('lock' in outcome) return outcome.lock;
  const { holder } = outcome;
  throw new Failure(
    'STORE_IN_USE',
    `the datastore in ${directory} is open in the process with PID ${holder}: stop that one, or give this one another directory`,
    { details: { directory, pid: holder } },
  );
}

/** Minimum of remembered keys; at most twice as many. Enough for the recent writes of some hundred nodes. */
const MAX_NEWER_COUNT = 1024;

/**
 * The modRevisions of recent writes. Each allocation compares its block; reading all
 * of the block from lmdb for eight bytes takes 5 % of an allocation.
 */
export class RecentRevisions {
  /** Writes since {@link #older} was full. Older ones are dropped together, which is cheaper than finding the oldest. */
  #newer = new Map<string, number>();
  #older: ReadonlyMap<string, number> = new Map();

  /** @returns 0 for a deleted record; undefined for an unknown one */
  get(key: string): number | undefined {
    return this.#newer.get(key) ?? this.#older.get(key);
  }

  /** @param revision - 0 for a deleted record */
  set(key: string, revision: number): void {
    this.#newer.set(key, revision);
    if (this.#newer.size < MAX_NEWER_COUNT) return;
    this.#older = this.#newer;
    this.#newer = new Map();
  }
}

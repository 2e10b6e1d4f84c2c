import { isForbiddenByLock } from '../../records/datastore-lock.js';
import type { HistoryEntry, ObjectChange, ObjectDifference } from '../../records/history.js';
import { encodeChanges, objectDifferences } from '../../records/json/history.js';
import { encodeHistoryEntry } from '../../records/json/history.js';
import type { RecordKeys } from '../../records/json/keys.js';
import { serialize, writeRecord, type DecodedRecord } from '../../records/json/registry.js';
import type { Change, RecordChange, RecordValue, View } from '../../records/view.js';
import type { Mirror, DoubtfulRecords } from '../mirror/mirror.js';
import type { OwnWrite } from '../mirror/own-writes.js';
import type { Snapshot } from '../mirror/snapshot.js';
import type { Comparison, StoreTraits, Transaction } from '../store.js';

/** A change with the key of its record. */
interface KeyedChange {
  readonly change: RecordChange;
  readonly key: string;
}

/** Estimates of the bytes of what one decision adds: a new record's, and an allocation's in its block. */
const NEW_RECORD_BYTES = 1500;
const ALLOCATION_BYTES = 500;

/** A transaction with its effects on the mirror. */
export interface DraftedTransaction {
  readonly transaction: Transaction;
  readonly writes: readonly OwnWrite[];
  readonly doubtful: DoubtfulRecords;
}

/** Use of a record by the folded decisions. */
interface TouchedRecord {
  /** Whether it is put or deleted, not only compared. */
  readonly written: boolean;
  /** Key of the record whose stored form provides unknown fields of a new record. */
  readonly likeKey: string | undefined;
}

interface DraftOptions extends Pick<StoreTraits, 'marksReleases'> {
  /** Whether history entries of decisions are written. Default: true. */
  readonly keepsHistory?: boolean;
  /** Time and names of entries about changed objects. Default: none are written. */
  readonly changeLog?: ChangeLog | undefined;
  /** Whether it is never committed, on a mirror with all acknowledged changes. Default: false. */
  readonly isPreview?: boolean;
}

interface ChangeLog {
  /** Time of a transaction's changes, in epoch milliseconds: later than of every transaction of this process before it. */
  readonly nextMs: () => number;
  /** Makes a text that no other change of the millisecond has, on any replica. */
  readonly newId: () => string;
}

/** Author of changes that no caller requested, and of the end of a deletion that happens with the release of a node. */
const OWN_AUTHOR = 'podwire-ipam';

/**
 * The changes of the decisions folded so far into one transaction. Lives within one turn of the event loop, in which the
 * mirror stands still.
 */
export class Draft {
  readonly #mirror: Mirror;
  readonly #keys: RecordKeys;
  /** The mirror's until the first change, then a clone of it. */
  #view: Snapshot;
  /** Touched records by key. */
  readonly #touched = new Map<string, TouchedRecord>();
  readonly #history: HistoryEntry[] = [];
  /** Changes of objects by each request. */
  readonly #changes: (readonly ObjectChange[])[] = [];
  readonly #changeLog: ChangeLog | undefined;
  /** Times of the releases by the key of the mark, in epoch milliseconds. */
  readonly #released = new Map<string, number>();
  /** Keys of the marks. */
  readonly #unreleased = new Set<string>();
  readonly #marksReleases: boolean;
  readonly #keepsHistory: boolean;
  readonly #isPreview: boolean;
  #poolsCompared = false;
  /** Whether the commit requires that the datastore is not locked. */
  #lockCompared = false;
  #writtenCount = 0;
  /** Estimated. */
  #bytes = 0;
  #lastKeyed: { readonly changes: readonly Change[]; readonly keyed: readonly KeyedChange[] } = {
    changes: [],
    keyed: [],
  };
  /** Differences of objects by changes that have not been folded. */
  #lastObjects: { readonly changes: readonly Change[]; readonly objects: readonly ObjectDifference[] } | undefined;
  /** Size of changes that have not been folded. */
  #lastEstimate: { readonly changes: readonly Change[]; readonly bytes: number } | undefined;

  constructor(mirror: Mirror, keys: RecordKeys, options: DraftOptions) {
    const { marksReleases, keepsHistory = true, changeLog, isPreview = false } = options;
    this.#mirror = mirror;
    this.#keys = keys;
    this.#view = mirror.view;
    this.#marksReleases = marksReleases;
    this.#keepsHistory = keepsHistory;
    this.#isPreview = isPreview;
    this.#changeLog = keepsHistory ? changeLog : undefined;
  }

  /** The datastore with the folded changes: what the next decision of the same transaction sees. */
  get view(): View {
    return this.#view;
  }

  /** Whether there is something to commit. */
  get isEmpty(): boolean {
    return this.#touched.size === 0 && !this.#poolsCompared && this.#history.length === 0 && this.#released.size === 0;
  }

  /** Whether the transaction compares a record for the change. */
  isCompared(change: Change): boolean {
    return namesRecord(change) || (change.type === 'release' && this.#marksReleases);
  }

  /**
   * The revision that the watch has to reach before an allocation may use its blocks: the view may lack a lease that a session lists
   * in a block, and another tool has released. 0 for none.
   */
  awaitedRevision(changes: readonly Change[]): number {
    const [session] = this.#view.sessions();
    if (!session || !changes.some(({ type }) => type === 'expectUnreleased')) return 0;
    const blocks = this.#withKeys(changes).filter(({ change }) => change.record.kind === 'block');
    return Math.max(0, ...blocks.map(({ key }) => this.#mirror.metRevision(key)));
  }

  /**
   * How many operations the transaction has after these changes: comparisons or writes, whichever are more, as etcd counts
   * them against its limit.
   */
  operationsWith(changes: readonly Change[]): number {
    const fresh = new Set<string>();
    const written = new Set<string>();
    for (const { change, key } of this.#withKeys(changes)) {
      const before = this.#touched.get(key);
      if (!before) fresh.add(key);
      if (change.type !== 'expect' && !before?.written) written.add(key);
    }
    let comparisons = this.#touched.size + fresh.size + this.#unreleased.size;
    let writes = this.#writtenCount + written.size + this.#history.length + this.#released.size + this.#changes.length;
    if (this.#objectsOf(changes).length > 0) writes++;
    let poolsCompared = this.#poolsCompared;
    let lockCompared = this.#lockCompared;
    for (const change of changes) {
      const { type } = change;
      if (this.#needsNoLock(change)) lockCompared = true;
      if (type === 'expectPools') poolsCompared = true;
      else if (type === 'log' && this.#keepsHistory) writes++;
      else if (type === 'expectUnreleased' && this.#marksReleases) comparisons++;
      else if (type === 'release' && this.#marksReleases) {
        // A release also compares its handle.
        comparisons++;
        writes++;
      }
    }
    return Math.max(comparisons + (poolsCompared ? 1 : 0) + (lockCompared ? 1 : 0), writes);
  }

  /** About how many bytes the transaction has after these changes. */
  bytesWith(changes: readonly Change[]): number {
    return this.#bytes + this.#bytesOf(changes);
  }

  /** Cached until the changes are folded. */
  #bytesOf(changes: readonly Change[]): number {
    if (this.#lastEstimate?.changes !== changes) this.#lastEstimate = { changes, bytes: this.#estimateBytes(changes) };
    return this.#lastEstimate.bytes;
  }

  #estimateBytes(changes: readonly Change[]): number {
    let bytes = 0;
    for (const change of changes) if (!namesRecord(change)) bytes += NEW_RECORD_BYTES;
    if (this.#objectsOf(changes).length > 0) bytes += NEW_RECORD_BYTES;
    for (const { change, key } of this.#withKeys(changes)) {
      if (change.type !== 'put') continue;
      bytes += this.#touched.get(key)?.written
        ? ALLOCATION_BYTES
        : NEW_RECORD_BYTES + Math.max(this.#mirror.storedBytes(key), newRecordBytes(change.record));
    }
    return bytes;
  }

  /**
   * Adds a decision's changes, all or none.
   * @param author - caller that requested them, for the history
   * @returns the keys of the records they name
   * @throws Failure STORE_CORRUPT when one would replace a record that cannot be read
   */
  fold(changes: readonly Change[], author: string = OWN_AUTHOR): readonly string[] {
    const keyed = this.#withKeys(changes);
    const objects = this.#objectsOf(changes);
    for (const { key } of keyed) this.#mirror.stored(key);
    this.#bytes += this.#bytesOf(changes);
    this.#lastEstimate = undefined;
    this.#lastObjects = undefined;
    if (objects.length > 0) this.#addChanges(objects, author);
    for (const change of changes) {
      if (this.#needsNoLock(change)) this.#lockCompared = true;
      if (change.type === 'expectPools') this.#poolsCompared = true;
      else if (change.type === 'log') this.#log(change.entry);
      else if (!namesRecord(change)) this.#addReleaseMark(change);
    }
    return keyed.map((each) => {
      this.#applyChange(each);
      return each.key;
    });
  }

  /** Cached until the changes are folded. */
  #objectsOf(changes: readonly Change[]): readonly ObjectDifference[] {
    if (!this.#changeLog) return [];
    if (this.#lastObjects?.changes !== changes) this.#lastObjects = { changes, objects: this.#compareObjects(changes) };
    return this.#lastObjects.objects;
  }

  #compareObjects(changes: readonly Change[]): readonly ObjectDifference[] {
    const written = this.#withKeys(changes).filter(({ change }) => change.type !== 'expect');
    const after = new Map(written.map(({ key, change }) => [key, change.type === 'put' ? change.record : undefined]));
    return [...after].flatMap(([key, record]) => objectDifferences(this.#view.get(key), record));
  }

  #addChanges(objects: readonly ObjectDifference[], author: string): void {
    if (!this.#changeLog) return;
    const atMs = this.#changes[0]?.[0]?.atMs ?? this.#changeLog.nextMs();
    const isOfNode = author.startsWith('node ') && objects.every(({ action }) => action === 'deleted');
    this.#changes.push(objects.map((each) => ({ ...each, atMs, author: isOfNode ? OWN_AUTHOR : author })));
  }

  #needsNoLock(change: Change): boolean {
    return this.#keys.hasLock && isForbiddenByLock(change);
  }

  #log(entry: HistoryEntry): void {
    if (this.#keepsHistory) this.#history.push(entry);
  }

  /** The transaction to commit: every named record is compared with the revision the decisions saw. */
  build(): DraftedTransaction {
    const comparisons: Comparison[] = [];
    const puts: Transaction['puts'][number][] = [];
    const deletes: string[] = [];
    const writes: OwnWrite[] = [];
    for (const [key, { written, likeKey }] of this.#touched) {
      const modRevision = this.#mirror.modRevision(key);
      comparisons.push({ type: 'record', key, modRevision });
      if (!written) continue;
      const record = this.#view.get(key);
      const made = record && writeRecord(record, this.#mirror.stored(key) ?? this.#storedLike(likeKey));
      const value = made?.bytes;
      if (value) puts.push({ key, value });
      else if (modRevision !== 0) deletes.push(key);
      writes.push({ key, decoded: made?.decoded, value });
    }
    for (const entry of this.#history)
      puts.push({ key: this.#keys.historyEntry(entry), value: serialize(encodeHistoryEntry(entry)) });
    for (const [index, objects] of this.#changes.entries()) {
      const id = `${String(index).padStart(3, '0')}-${this.#changeLog?.newId() ?? ''}`;
      const key = this.#keys.changes(objects[0]?.atMs ?? 0, id);
      puts.push({ key, value: serialize(encodeChanges(objects)) });
    }
    for (const [key, atMs] of this.#released)
      puts.push({ key, value: serialize({ releasedAt: new Date(atMs).toISOString() }) });
    for (const key of this.#unreleased)
      comparisons.push({ type: 'record', key, modRevision: this.#mirror.modRevision(key) });
    if (this.#lockCompared) {
      const key = this.#keys.clusterInformation;
      comparisons.push({ type: 'record', key, modRevision: this.#mirror.modRevision(key) });
    }
    if (this.#poolsCompared) {
      const notAfterRevision = this.#mirror.poolsRevision;
      comparisons.push({ type: 'prefix', prefix: this.#keys.pools, notAfterRevision });
    }
    return {
      transaction: { comparisons, puts, deletes },
      writes,
      doubtful: { keys: [...this.#touched.keys(), ...this.#unreleased], pools: this.#poolsCompared },
    };
  }

  /** Cached for repeated calls with the same changes. */
  #withKeys(changes: readonly Change[]): readonly KeyedChange[] {
    if (this.#lastKeyed.changes !== changes) {
      const keyed: KeyedChange[] = [];
      for (const change of changes) if (namesRecord(change)) keyed.push({ change, key: this.#keys.of(change.record) });
      this.#lastKeyed = { changes, keyed };
    }
    return this.#lastKeyed.keyed;
  }

  #addReleaseMark(change: Extract<Change, { handleId: string }>): void {
    if (!this.#marksReleases) return;
    const mark = this.#keys.release(change.handleId);
    if (change.type === 'expectUnreleased') {
      this.#unreleased.add(mark);
      return;
    }
    this.#released.set(mark, change.nowMs);
    // A release with nothing to release has found no handle, which must still hold at the commit.
    const handle = this.#keys.handle(change.handleId);
    if (!this.#touched.has(handle)) this.#touched.set(handle, COMPARED);
  }

  #storedLike(key: string | undefined): DecodedRecord | undefined {
    return key === undefined ? undefined : this.#mirror.stored(key);
  }

  /** Key of the stored form of a record, which may itself be derived from another in this transaction. */
  #originOf(record: RecordValue): string {
    const key = this.#keys.of(record);
    return this.#touched.get(key)?.likeKey ?? key;
  }

  #applyChange({ change, key }: KeyedChange): void {
    const { type, record } = change;
    const before = this.#touched.get(key);
    if (type === 'expect') {
      if (!before) this.#touched.set(key, COMPARED);
      return;
    }
    if (!before?.written) this.#writtenCount++;
    const likeKey = type === 'put' && change.like ? this.#originOf(change.like) : before?.likeKey;
    this.#touched.set(key, { written: true, likeKey });
    if (this.#view === this.#mirror.view) this.#view = this.#mirror.view.clone((of) => this.#showsAllBefore(of));
    if (type === 'put') this.#view.set(key, record);
    else this.#view.delete(key);
  }

  /** Not before a record that is written here, unless no other replica will see the write. */
  #showsAllBefore(key: string): boolean {
    if (this.#isPreview) return true;
    return !this.#touched.get(key)?.written && this.#mirror.showsAllBefore(key);
  }
}

const COMPARED: TouchedRecord = { written: false, likeKey: undefined };

/** Bytes per free address in a block's text. */
const FREE_ADDRESS_BYTES = 16;

function newRecordBytes(record: RecordValue): number {
  return record.kind === 'block' ? record.value.allocations.length * FREE_ADDRESS_BYTES : 0;
}

function namesRecord(change: Change): change is RecordChange {
  return 'record' in change;
}

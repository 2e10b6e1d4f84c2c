/**
 * The datastore: ordered keys with revisions, as etcd has them. Two implementations (embedded, etcd) and a fake (memory) pass
 * one contract suite, `store.contract.ts`.
 *
 * Keys are absolute texts (`/calico/ipam/v2/…`), values bytes. Every commit that changes something makes the store's revision
 * one higher (or more); each record carries the revision of its last change. Every method fails with STORE_UNAVAILABLE when
 * the store cannot be reached or is closed, and with CANCELLED or DEADLINE_EXCEEDED when its signal fires first.
 */
export interface Store {
  /**
   * All records whose key begins with `prefix`, in key order, and the store's revision at that moment.
   * Result: whole, or a failure; never a part.
   */
  list(prefix: string, signal: AbortSignal): Promise<Snapshot>;

  /**
   * The records of exactly these keys at one moment, and the store's revision then. A key without a record is left out.
   * Result: whole, or a failure; never a part.
   */
  read(keys: readonly string[], signal: AbortSignal): Promise<Snapshot>;

  /**
   * A page of the records whose key begins with a prefix, in key order, for ranges that are too large to hold at once.
   * Result: at most `limit` records, each whole; pages are of different moments, so a record that is made or removed between
   * two of them may be missing from both or be seen. Pages of one given revision are of one moment; they fail with
   * {@link RevisionCompacted} once the store no longer has it.
   */
  scan(request: ScanRequest, signal: AbortSignal): Promise<Page>;

  /**
   * The store's revision now, linearizable: no transaction that was acknowledged before the call, by whichever process, has a
   * higher one. Costs a round trip, and no disk.
   */
  revision(signal: AbortSignal): Promise<number>;

  /**
   * Compares and changes records in one transaction: all of it or nothing.
   * Result: `committed` is answered only when the change is durable. A lost comparison is an answer, not a failure, changes nothing,
   * and says what the comparison has met, so that the loser need not read it. After a failure the outcome is unknown.
   * No key is both put and deleted, and none twice. The store may keep the values' bytes: they must not change afterwards. Deleting a record that is not there changes nothing.
   * Not idempotent: a repeat compares with revisions that its own first run may have changed.
   */
  commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult>;

  /**
   * Every change of the keys under `prefix` after `afterRevision`, in revision order, one item per revision; the
   * changes are durable. An item without changes says that everything up to its revision has been delivered. Only the
   * first call of the iterator's `next` registers the watch; nothing is lost by that. The iteration ends when the
   * signal fires, and fails with {@link RevisionCompacted} when changes since `afterRevision` are no longer kept: list
   * again and watch from there. The consumer closes it, by the signal or by leaving the loop.
   */
  watch(watch: WatchRequest, signal: AbortSignal): AsyncIterable<RevisionChanges>;

  /** Waits for what is being committed, then lets go of files and connections. Idempotent. */
  close(): Promise<void>;
}

export interface StoredRecord {
  readonly key: string;
  readonly value: Uint8Array;
  /** Revision of the record's last change. */
  readonly modRevision: number;
}

export interface Snapshot {
  readonly records: readonly StoredRecord[];
  readonly revision: number;
}

export interface ScanRequest {
  readonly prefix: string;
  /** The last key of the page before, which begins with the prefix; undefined for the first page. */
  readonly after: string | undefined;
  /** How many records a page has at most: 1 and more. */
  readonly limit: number;
  /** The moment the page is of; the present one when it is left out. */
  readonly revision?: number;
}

export interface Page extends Snapshot {
  /** Whether there are records after the page's last. */
  readonly more: boolean;
}

export interface Transaction {
  readonly comparisons: readonly Comparison[];
  readonly puts: readonly { readonly key: string; readonly value: Uint8Array }[];
  readonly deletes: readonly string[];
}

export type Comparison =
  /** The record's last change is this revision; 0 means that there is no such record. */
  | { readonly type: 'record'; readonly key: string; readonly modRevision: number }
  /** No record under the prefix was made or changed after this revision. Removals do not count. */
  | { readonly type: 'prefix'; readonly prefix: string; readonly notAfterRevision: number };

export type CommitResult = { readonly committed: true; readonly revision: number } | LostComparison;

/** What a transaction that lost has met, all of the moment at which it was judged. */
export interface LostComparison {
  readonly committed: false;
  /** The store's revision at that moment. */
  readonly revision: number;
  /**
   * The records that were compared, or lie under a compared prefix, and whose last change is later than the comparison says. None,
   * and none missing, where a condition of the store's own was lost.
   */
  readonly changed: readonly StoredRecord[];
  /** The keys whose records were to be there, and are not. */
  readonly missing: readonly string[];
}

export interface WatchRequest {
  readonly prefix: string;
  readonly afterRevision: number;
}

export interface RevisionChanges {
  readonly revision: number;
  /** Empty when the item only reports that there were no changes up to the revision. */
  readonly changes: readonly RecordChange[];
}

export type RecordChange =
  | { readonly type: 'put'; readonly key: string; readonly value: Uint8Array }
  | { readonly type: 'delete'; readonly key: string };

/** The changes that a watch asks for are no longer kept. */
export class RevisionCompacted extends Error {
  override readonly name = 'RevisionCompacted';

  /** @param oldestRevision - the oldest revision whose changes are kept, where it is known */
  constructor(afterRevision: number, oldestRevision?: number) {
    const oldest = oldestRevision === undefined ? '' : `, the oldest is ${oldestRevision}`;
    super(`changes after revision ${afterRevision} are no longer kept${oldest}: list, and watch from there`);
  }
}

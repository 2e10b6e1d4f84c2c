/**
 * The datastore: ordered keys with revisions, as in etcd. The embedded store, the etcd store and the memory store of tests pass
 * one contract suite, `testing/store-contract.ts`.
 *
 * Keys are absolute texts (`/calico/ipam/v2/…`), values are bytes. Every commit with a change raises the store's revision by one
 * or more. Each record carries the revision of its last change. Every method fails with STORE_UNAVAILABLE when the store is
 * closed or cannot be reached, and with CANCELLED or DEADLINE_EXCEEDED when its signal fires first.
 */
export interface Store {
  /** All records whose key begins with `prefix`, in key order, and the store's revision at that moment. */
  list(prefix: string, signal: AbortSignal): Promise<Snapshot>;

  /** The records of exactly these keys at one moment, and the store's revision then. Keys without a record are omitted. */
  read(keys: readonly string[], signal: AbortSignal): Promise<Snapshot>;

  /**
   * A page of the records whose key begins with a prefix, in key order. Pages without a revision are of different moments: a
   * record that is created or removed between two pages may be missing or present. Pages of one revision are of one moment,
   * and fail with {@link RevisionCompacted} once the store no longer has it.
   */
  scan(request: ScanRequest, signal: AbortSignal): Promise<Page>;

  /**
   * The store's revision, linearizable: no transaction of any process that was acknowledged before the call has a higher one.
   * Costs a round trip, and no disk write.
   */
  revision(signal: AbortSignal): Promise<number>;

  /**
   * Compares and changes records in one transaction: all changes or none. `committed` means durable. A lost comparison is a
   * result, changes nothing, and carries the records that it found. After a failure the outcome is unknown.
   * No key is both put and deleted, or named twice. The store may keep the bytes of values: they must not change afterwards.
   * Deleting a missing record changes nothing. Not idempotent: the first run may have changed a compared revision.
   */
  commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult>;

  /**
   * Every durable change of the keys under `prefix` after `afterRevision`, in revision order, one item per revision. An item
   * without changes reports that every change up to its revision was delivered. The first call of the iterator's `next`
   * registers the watch, and no change is lost before. The iteration ends when the signal fires. It fails with
   * {@link RevisionCompacted} when changes since `afterRevision` are no longer kept: list again, and watch from there. The
   * consumer ends it by the signal or by leaving the loop.
   */
  watch(watch: WatchRequest, signal: AbortSignal): AsyncIterable<RevisionChanges>;

  /** Waits for commits in flight, then closes files and connections. Idempotent. */
  close(): Promise<void>;
}

/** Limits of a kind of datastore, and the requirements on its users. */
export interface StoreTraits {
  /** Maximum number of operations of one transaction. */
  readonly maxOperationsCount: number;
  /**
   * Whether it may execute a transaction after the sender's timeout. Then a release leaves a mark that makes such an
   * allocation fail, for one put with each release and one comparison with each allocation.
   */
  readonly marksReleases: boolean;
  /** Whether no other process writes to it. Then the mirror is always complete, and no revision is read. */
  readonly isExclusiveWriter: boolean;
  /** Whether Calico's tools can write to it, and so lock and unlock it. */
  readonly hasLock: boolean;
  readonly settlement: SettlementInterval;
}

/** How long nodes collect bindings and returns, so that one write carries many. */
export interface SettlementInterval {
  /** Time without a further pod, in milliseconds. */
  readonly quietMs: number;
  /** The longest wait, in milliseconds. */
  readonly longestMs: number;
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
  /** Maximum number of records of a page, at least 1. */
  readonly limit: number;
  /** The moment of the page. Default: now. */
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
  /** No record under the prefix was created or changed after this revision. Removals do not count. */
  | { readonly type: 'prefix'; readonly prefix: string; readonly notAfterRevision: number };

export type CommitResult = { readonly committed: true; readonly revision: number } | LostComparison;

/** The records that a lost transaction has found, all at the moment of the comparison. */
export interface LostComparison {
  readonly committed: false;
  /** The store's revision at that moment. */
  readonly revision: number;
  /**
   * The compared records, and records under a compared prefix, whose last change is later than the comparison allows. Both
   * lists are empty if a condition of the store itself was lost.
   */
  readonly changed: readonly StoredRecord[];
  /** The keys of compared records that do not exist. */
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

/** The requested changes are no longer kept. */
export class RevisionCompacted extends Error {
  override readonly name = 'RevisionCompacted';

  /** @param oldestRevision - the oldest revision whose changes are kept, where it is known */
  constructor(afterRevision: number, oldestRevision?: number) {
    const oldest = oldestRevision === undefined ? '' : `, the oldest is ${oldestRevision}`;
    super(`changes after revision ${afterRevision} are no longer kept${oldest}: list, and watch from there`);
  }
}

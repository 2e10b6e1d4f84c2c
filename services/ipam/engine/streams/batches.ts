import type { Item } from './recent-changes.js';
import type { Stream, StreamedObjects, StreamQuery } from './stream.js';

/** The changes of one message. */
export interface Batch {
  readonly changes: readonly Uint8Array[];
  /** Whether the datastore's lock is among the changes examined. */
  readonly hasLockChange: boolean;
  /** Number of the first change after those examined. */
  readonly next: number;
  /** The batch contains every change up to this revision. */
  readonly revision: number;
}

export interface SharedBatch {
  readonly from: number;
  readonly next: number;
  /** Encoded changes; undefined when none matches the query. */
  readonly message: Uint8Array | undefined;
}

export interface BatchesOptions {
  readonly objects: StreamedObjects;
  /** Message size from which on no further change is added, in bytes. */
  readonly messageBytes: () => number;
  readonly cacheBytes: number;
}

/** The objects of a snapshot, in chunks for messages. Returned objects are not retained. */
export interface SnapshotChunks {
  /** The next changes; undefined at the end, and once the snapshot is outdated and must restart. */
  next(): readonly Uint8Array[] | undefined;
  /** Discards the remaining ones. Idempotent. */
  end(): void;
}

/** A message, with the number of streams that have not received it yet. */
interface SharedMessage {
  readonly batch: SharedBatch;
  /** The state of the lock in the message. */
  readonly isLocked: boolean;
  missingCount: number;
}

/** Encoded changes, in chunks for messages. Each object is encoded once, as long as the cache has room. */
export class Batches {
  readonly #options: BatchesOptions;
  /** The last message for each query, until all streams with the query have received it: they wake together. */
  readonly #shared = new Map<string, SharedMessage>();
  /** Number of streams for each query. */
  readonly #streams = new Map<string, number>();
  /** The snapshots in progress, with the number of the first change after their start, oldest first. */
  readonly #snapshots = new Map<SnapshotChunks, number>();

  constructor(options: BatchesOptions) {
    this.#options = options;
  }

  /** Number of messages kept for other streams. */
  get sharedCount(): number {
    return this.#shared.size;
  }

  /** Number of snapshots in progress. */
  get snapshotsCount(): number {
    return this.#snapshots.size;
  }

  /** Registers a stream; call {@link closed} when it ends. */
  opened({ key }: Stream): void {
    this.#streams.set(key, this.#streamsOf(key) + 1);
  }

  closed({ key }: Stream): void {
    const left = this.#streamsOf(key) - 1;
    if (left > 0) this.#streams.set(key, left);
    else this.#streams.delete(key);
    if (left <= 1) this.#shared.delete(key);
  }

  /**
   * Call it when objects have changed. Ends the snapshots that are older than all kept changes: their readers have to
   * start again anyway. The iterator of a stalled reader would retain a part of each object that came and went
   * meanwhile, as V8 keeps every table that a Map has outgrown for it.
   */
  changed(): void {
    const { firstNumber } = this.#options.objects.recent;
    for (const [chunks, begunAt] of this.#snapshots) {
      if (begunAt >= firstNumber) return;
      chunks.end();
    }
  }

  /**
   * The objects that existed at the revision and still exist, in their state when read. Later objects come with the
   * changes.
   */
  snapshot(query: StreamQuery, revision: number): SnapshotChunks {
    const { objects, messageBytes } = this.#options;
    let items: Iterator<Item, void> | undefined = objects.items(query);
    const chunks: SnapshotChunks = {
      next: () => {
        const changes: Uint8Array[] = [];
        const maxBytes = messageBytes();
        for (let bytes = 0; items && bytes < maxBytes;) {
          const item = items.next().value;
          if (!item) chunks.end();
          const encoded = item && item.createdRevision <= revision ? this.#encode(item.key, item) : undefined;
          if (!encoded) continue;
          changes.push(encoded);
          bytes += encoded.length;
        }
        return changes.length > 0 ? changes : undefined;
      },
      end: () => {
        items = undefined;
        this.#snapshots.delete(chunks);
      },
    };
    this.#snapshots.set(chunks, objects.recent.nextNumber);
    return chunks;
  }

  /** The kept changes from a number on. */
  changes(query: StreamQuery, from: number): Batch {
    const { objects, messageBytes } = this.#options;
    const { recent } = objects;
    const maxBytes = messageBytes();
    const changes: Uint8Array[] = [];
    let bytes = 0;
    let hasLockChange = false;
    let next = from;
    for (; next < recent.nextNumber && bytes < maxBytes; next++) {
      const entry = recent.at(next);
      if (!entry) continue;
      if (entry.kind === undefined) hasLockChange = true;
      const isWanted = entry.kind !== undefined && query.has(entry.kind);
      const encoded = isWanted ? this.#encode(entry.key, entry.item) : undefined;
      if (!encoded) continue;
      changes.push(encoded);
      bytes += encoded.length;
    }
    // A revision that is only partly in the batch does not count as received.
    const isLast = next === recent.nextNumber;
    const revision = isLast ? recent.revision : Math.max(0, recent.revisionAt(next) - 1);
    return { changes, hasLockChange, next, revision };
  }

  /** As {@link changes}, but encoded once for all streams with the same position and query. */
  shared(stream: Stream, from: number, make: (batch: Batch) => Uint8Array | undefined): SharedBatch {
    const { isLocked, nextNumber } = this.#options.objects.recent;
    const known = this.#shared.get(stream.key);
    const isCurrent = known?.batch.from === from && known.isLocked === isLocked;
    if (isCurrent && (known.batch.next === nextNumber || known.batch.message)) {
      if (--known.missingCount <= 0) this.#shared.delete(stream.key);
      return known.batch;
    }
    const made = this.changes(stream.query, from);
    const batch = { from, next: made.next, message: make(made) };
    const missingCount = this.#streamsOf(stream.key) - 1;
    if (missingCount > 0) this.#shared.set(stream.key, { batch, isLocked, missingCount });
    return batch;
  }

  #streamsOf(key: string): number {
    return this.#streams.get(key) ?? 0;
  }

  /** Drops all cached messages and encodings. */
  clear(): void {
    const { objects } = this.#options;
    this.#shared.clear();
    if (objects.recent.encodedBytes === 0) return;
    const items = objects.items();
    for (let item = items.next().value; item; item = items.next().value) item.encoded = undefined;
    objects.recent.encodedBytes = 0;
  }

  #encode(key: string, item: Item | undefined): Uint8Array | undefined {
    const { objects, cacheBytes } = this.#options;
    if (item?.encoded) return item.encoded;
    const encoded = objects.encode(key);
    if (!item || !encoded || objects.recent.encodedBytes + encoded.length > cacheBytes) return encoded;
    objects.recent.encodedBytes += encoded.length;
    item.encoded = encoded;
    return encoded;
  }
}

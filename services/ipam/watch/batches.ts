import type { Catalog } from './catalog.js';
import type { RecentChange } from './recent-changes.js';
import type { Item, Stream, WatchCodec, WatchQuery } from './watched-objects.js';

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
  /** Undefined when no change matches the query. */
  readonly message: Uint8Array | undefined;
}

export interface BatchesOptions {
  readonly catalog: Catalog;
  readonly codec: WatchCodec;
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
  #cachedBytes = 0;
  /** The last message for each query, until all streams with the query have received it: they wake together. */
  readonly #shared = new Map<string, SharedMessage>();
  /** Number of streams for each query. */
  readonly #streams = new Map<string, number>();
  readonly #walks: Walks;

  constructor(options: BatchesOptions) {
    this.#options = options;
    this.#walks = new Walks(options.catalog);
  }

  /** Number of messages kept for other streams. */
  get sharedCount(): number {
    return this.#shared.size;
  }

  /** Number of snapshots in progress. */
  get snapshotsCount(): number {
    return this.#walks.count;
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

  /** Call it when the catalog has changed. */
  changed(): void {
    this.#walks.endOutdated();
  }

  /**
   * The objects that existed at the revision and still exist, in their state when read. Later objects come with the
   * changes.
   */
  snapshot(query: WatchQuery, revision: number): SnapshotChunks {
    const walk = this.#walks.begin(query);
    const next = (): readonly Uint8Array[] | undefined => {
      const changes: Uint8Array[] = [];
      let bytes = 0;
      const maxBytes = this.#options.messageBytes();
      for (let item = walk.next(); item; item = walk.next()) {
        if (item.createdRevision > revision) continue;
        const encoded = this.#encode(item);
        changes.push(encoded);
        bytes += encoded.length;
        if (bytes >= maxBytes) break;
      }
      return changes.length > 0 ? changes : undefined;
    };
    return { next, end: () => walk.end() };
  }

  /** The kept changes from a number on. */
  changes(query: WatchQuery, from: number): Batch {
    const { catalog, messageBytes } = this.#options;
    const { recent } = catalog;
    const maxBytes = messageBytes();
    const changes: Uint8Array[] = [];
    let bytes = 0;
    let hasLockChange = false;
    let next = from;
    for (const end = recent?.nextNumber ?? from; next < end && bytes < maxBytes; next++) {
      const entry = recent?.at(next);
      if (entry?.kind === 'lock') hasLockChange = true;
      const encoded = entry && this.#changeFor(query, entry);
      if (!encoded) continue;
      changes.push(encoded);
      bytes += encoded.length;
    }
    // A revision that is only partly in the batch does not count as received.
    const isLast = next === (recent?.nextNumber ?? from);
    const revision = isLast ? catalog.revision : Math.max(0, (recent?.revisionAt(next) ?? 1) - 1);
    return { changes, hasLockChange, next, revision };
  }

  /** As {@link changes}, but encoded once for all streams with the same position and query. */
  shared(stream: Stream, from: number, make: (batch: Batch) => Uint8Array | undefined): SharedBatch {
    const { recent, isLocked } = this.#options.catalog;
    const known = this.#shared.get(stream.key);
    const end = recent?.nextNumber ?? from;
    const isCurrent = known?.batch.from === from && known.isLocked === isLocked;
    if (isCurrent && (known.batch.next === end || known.batch.message)) {
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

  forget({ encoded }: Item): void {
    this.#cachedBytes -= encoded?.length ?? 0;
  }

  /** Drops all cached messages and encodings. */
  clear(): void {
    this.#shared.clear();
    if (this.#cachedBytes === 0) return;
    for (const item of this.#options.catalog.all()) item.encoded = undefined;
    this.#cachedBytes = 0;
  }

  #changeFor(query: WatchQuery, change: RecentChange): Uint8Array | undefined {
    if (change.kind === 'lock' || !query.has(change.kind)) return undefined;
    const { key, kind, item } = change;
    if (item) return this.#encode(item);
    const { catalog, codec } = this.#options;
    const name = catalog.nameOfKey(key);
    return name === undefined ? undefined : codec.change({ type: 'delete', kind, name });
  }

  #encode(item: Item): Uint8Array {
    if (item.encoded) return item.encoded;
    const encoded = this.#options.codec.change({ type: 'put', object: item.object });
    if (this.#cachedBytes + encoded.length <= this.#options.cacheBytes) {
      item.encoded = encoded;
      this.#cachedBytes += encoded.length;
    }
    return encoded;
  }
}

/** A walk over the objects that a query wants. */
interface Walk {
  /** The next object; undefined at the end, and after {@link end}. */
  next(): Item | undefined;
  /** Releases the objects. Idempotent. */
  end(): void;
}

/**
 * The walks for snapshots. The iterator of a stalled reader retains a part of each object that came and went meanwhile,
 * as V8 keeps every table that a Map has outgrown for it. So walks that are older than all kept changes end: their
 * readers have to start again anyway.
 */
class Walks {
  readonly #catalog: Catalog;
  /** With the number of the first change after their start, oldest first. */
  readonly #open = new Map<Walk, number>();

  constructor(catalog: Catalog) {
    this.#catalog = catalog;
  }

  /** Number of walks in progress. */
  get count(): number {
    return this.#open.size;
  }

  begin(query: WatchQuery): Walk {
    let items: Iterator<Item, void> | undefined = this.#catalog.wanted(query);
    const walk: Walk = {
      next: () => {
        const item = items?.next().value ?? undefined;
        if (!item) walk.end();
        return item;
      },
      end: () => {
        items = undefined;
        this.#open.delete(walk);
      },
    };
    this.#open.set(walk, this.#catalog.recent?.nextNumber ?? 0);
    return walk;
  }

  /** Call it after changes. */
  endOutdated(): void {
    const firstKept = this.#catalog.recent?.firstNumber ?? 0;
    for (const [walk, begunAt] of this.#open) {
      if (begunAt >= firstKept) return;
      walk.end();
    }
  }
}

import type { Catalog, Item } from './catalog.js';
import type { WatchCodec } from './codec.js';
import type { Recent } from './recent.js';
import { isWanted, nameOf, scopeOf, type Stream, type WatchQuery } from './watched.js';

/** Changes for one message. */
export interface Batch {
  readonly changes: readonly Uint8Array[];
  /** Number of the change behind the last one that was looked at. */
  readonly next: number;
  /** Whoever has the batch has every change up to this revision. */
  readonly revision: number;
}

export interface SharedBatch {
  readonly from: number;
  readonly next: number;
  /** Undefined when nothing of it is wanted. */
  readonly message: Uint8Array | undefined;
}

export interface BatchesOptions {
  readonly catalog: Catalog;
  readonly codec: WatchCodec;
  /** Bytes of a message, from which on it is not made longer. */
  readonly messageBytes: () => number;
  readonly cacheBytes: number;
}

/** Encoded changes, in portions for messages. Each object is encoded once, as long as there is room to keep it. */
export class Batches {
  readonly #options: BatchesOptions;
  #cachedBytes = 0;
  /** The last message of each kind of stream: those that wait together are woken together. */
  readonly #shared = new Map<string, SharedBatch>();

  constructor(options: BatchesOptions) {
    this.#options = options;
  }

  /**
   * The objects that there were at the revision, and are there still, as they are when they are asked for.
   * Without those made later, which come with the changes.
   */
  *snapshot(query: WatchQuery, revision: number): Generator<readonly Uint8Array[], void, void> {
    let changes: Uint8Array[] = [];
    let bytes = 0;
    const enough = this.#options.messageBytes();
    for (const item of this.#options.catalog.wanted(query)) {
      if (item.madeAt > revision) continue;
      const encoded = this.#encode(item);
      changes.push(encoded);
      bytes += encoded.length;
      if (bytes < enough) continue;
      yield changes;
      changes = [];
      bytes = 0;
    }
    if (changes.length > 0) yield changes;
  }

  /** The changes from a number on, which are kept. */
  changes(query: WatchQuery, from: number): Batch {
    const { catalog, messageBytes } = this.#options;
    const { recent } = catalog;
    const enough = messageBytes();
    const changes: Uint8Array[] = [];
    let bytes = 0;
    let next = from;
    for (const end = recent?.nextNumber ?? from; next < end && bytes < enough; next++) {
      const entry = recent?.at(next);
      const encoded = entry && this.#changeFor(query, entry);
      if (!encoded) continue;
      changes.push(encoded);
      bytes += encoded.length;
    }
    // A revision that is only partly in the batch does not count as received.
    const isLast = next === (recent?.nextNumber ?? from);
    const revision = isLast ? catalog.revision : Math.max(0, (recent?.revisionAt(next) ?? 1) - 1);
    return { changes, next, revision };
  }

  /** As {@link changes}, as a message that is made once for all streams at the same place that ask for the same. */
  shared(stream: Stream, from: number, make: (batch: Batch) => Uint8Array | undefined): SharedBatch {
    const known = this.#shared.get(stream.key);
    const end = this.#options.catalog.recent?.nextNumber ?? from;
    if (known?.from === from && (known.next === end || known.message)) return known;
    const batch = this.changes(stream.query, from);
    const made = { from, next: batch.next, message: make(batch) };
    this.#shared.set(stream.key, made);
    return made;
  }

  forget({ encoded }: Item): void {
    this.#cachedBytes -= encoded?.length ?? 0;
  }

  /** Lets go of all that is kept for streams. */
  clear(): void {
    this.#shared.clear();
    if (this.#cachedBytes === 0) return;
    for (const item of this.#options.catalog.all()) item.encoded = undefined;
    this.#cachedBytes = 0;
  }

  #changeFor(query: WatchQuery, { key, kind, formerScopes }: Recent): Uint8Array | undefined {
    const { catalog, codec } = this.#options;
    const item = catalog.get(kind, key);
    if (item && isWanted(query, kind, scopeOf(item.object))) return this.#encode(item);
    if (!formerScopes.some((scope) => isWanted(query, kind, scope))) return undefined;
    const name = item ? nameOf(item.object) : catalog.removedName(kind, key);
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

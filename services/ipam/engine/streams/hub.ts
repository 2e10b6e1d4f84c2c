import type { Clock } from '@podwire/shared/runtime/clock';

import { Batches, type SnapshotChunks, type SharedBatch } from './batches.js';
import type { RecentChanges } from './recent-changes.js';
import { queryKey, type Stream, type StreamedObjects, type StreamMessage, type StreamQuery } from './stream.js';
import { WaitQueue } from './wait-queue.js';

export interface HubOptions {
  readonly objects: StreamedObjects;
  /** Encodes a whole message. The bytes are shared among streams and never changed. */
  readonly encode: (message: StreamMessage) => Uint8Array;
  readonly clock: Clock;
  /** ID of the datastore of the revisions; tokens of another one lead to a snapshot. */
  readonly datastore: string;
  /** The store's revision, not older than the call. */
  readonly currentRevision: (signal: AbortSignal) => Promise<number>;
  /** Message size from which on no further change is added, in bytes. Default: 131,072. */
  readonly messageBytes?: number;
  /**
   * Bytes that waiting messages and gRPC's copies of them may take for all streams together when no client reads: the
   * more wait, the shorter the next message. An object is never cut, and a message is never planned shorter than 4,096
   * bytes. Default: 64 MiB.
   */
  readonly waitingBytes?: number;
  /** Bytes of encoded objects that are kept for the next stream. Default: 96 MiB. */
  readonly cacheBytes?: number;
  /** How long encoded objects are kept when the last stream has ended, in milliseconds. Default: 60,000. */
  readonly cacheIdleMs?: number;
  /** How long a stream may be without a message before it gets a bookmark, in milliseconds. Default: 30,000. */
  readonly bookmarkAfterMs?: number;
}

/** Streams of encoded messages. */
export interface StreamSource {
  watch(subscription: Subscription, signal: AbortSignal): AsyncIterable<Uint8Array>;
}

export interface Subscription {
  readonly query: StreamQuery;
  /** Position to resume from; undefined for a snapshot. */
  readonly from: StreamPosition | undefined;
}

const DEFAULTS = {
  messageBytes: 128 * 1024,
  waitingBytes: 64 * 2 ** 20,
  cacheBytes: 96 * 2 ** 20,
  cacheIdleMs: 60_000,
  bookmarkAfterMs: 30_000,
} as const;

const MIN_MESSAGE_BYTES = 4096;
/** gRPC holds a copy of each waiting message. */
const COPIES_PER_MESSAGE = 2;
/** A message may take this fraction (1/16) of the remaining room. */
const MESSAGES_IN_ROOM = 16;

/**
 * All streams of this replica to watchers of the same objects. What makes it hard:
 *
 * - Thousands of watchers, some of which do not read. None has a queue: a stream is a position in the recent changes,
 *   and receives the current state of the objects after it. So a slow stream gets fewer, newer states; one that is
 *   behind all kept changes gets a snapshot. One message waits for each stream, shorter the more wait in total.
 * - A snapshot takes a while, and the objects change meanwhile. So it is read as of each moment, and followed by the
 *   objects that changed since it began; only then it is called complete.
 * - Every object is encoded once for all streams, every message once for all streams with the same position and query.
 * - The datastore's lock is part of every message, and a change of it concerns every stream. So it has a place in the
 *   recent changes.
 */
export class StreamHub implements StreamSource {
  readonly #options: Required<HubOptions>;
  readonly #recent: RecentChanges;
  readonly #batches: Batches;
  readonly #waiters: WaitQueue;
  /** Streams with a token of a replica that is ahead of this one. */
  readonly #revisionWaiters = new Set<RevisionWaiter>();
  readonly #stop = new AbortController();
  #streams = 0;
  /** Bytes of messages that streams have received but not finished sending, and of their copies. */
  #waitingBytes = 0;
  #clearIsDue = false;

  constructor(options: HubOptions) {
    this.#options = { ...DEFAULTS, ...options };
    const { objects, cacheBytes, clock, bookmarkAfterMs } = this.#options;
    this.#recent = objects.recent;
    const messageBytes = (): number => this.#messageBytes();
    this.#batches = new Batches({ objects, messageBytes, cacheBytes });
    this.#waiters = new WaitQueue({ clock, bookmarkAfterMs, recent: this.#recent });
    this.#recent.listen(() => this.#changed());
  }

  /** How many streams are open. */
  get streamsCount(): number {
    return this.#streams;
  }

  /** Number of streams that wait for a change. */
  get waitersCount(): number {
    return this.#waiters.count;
  }

  /** Number of snapshots in progress. */
  get snapshotsCount(): number {
    return this.#batches.snapshotsCount;
  }

  /** Number of messages kept for streams that have not received them yet. */
  get sharedCount(): number {
    return this.#batches.sharedCount;
  }

  /** The hub has received all changes up to this revision. */
  get revision(): number {
    return this.#recent.revision;
  }

  /** Stops the hub's own timers. The streams are ended by their signals. */
  close(): void {
    this.#stop.abort();
    this.#waiters.close();
  }

  /** Whole messages, until the signal fires. The objects must have been listed. */
  async *watch(request: Subscription, signal: AbortSignal): AsyncGenerator<Uint8Array, void, void> {
    for await (const message of this.#messages(request, signal)) {
      const waitingBytes = message.length * COPIES_PER_MESSAGE;
      this.#waitingBytes += waitingBytes;
      try {
        yield message;
      } finally {
        this.#waitingBytes -= waitingBytes;
      }
    }
  }

  async *#messages({ query, from }: Subscription, signal: AbortSignal): AsyncGenerator<Uint8Array, void, void> {
    const stream = { query, key: queryKey(query) };
    this.#streams++;
    this.#batches.opened(stream);
    try {
      const number = from && (await this.#resume(from, stream.key, signal));
      const cursor: Cursor = { number: number ?? -1 };
      // A resumed watch gets an early bookmark, which confirms that it receives changes again.
      for (let bookmarkIsDue = number !== undefined; !signal.aborted;) {
        if (cursor.number < this.#recent.firstNumber) {
          yield* this.#snapshot(stream, cursor);
          continue;
        }
        const batch = this.#changes(stream, cursor.number);
        cursor.number = batch.next;
        if (batch.message) {
          bookmarkIsDue = false;
          yield batch.message;
        }
        if (cursor.number < this.#recent.nextNumber) continue;
        if (bookmarkIsDue) yield this.#bookmark(stream);
        const result = await this.#waiters.wait({ number: cursor.number, ...stream }, signal);
        cursor.number = result.number;
        bookmarkIsDue = result.reason === 'bookmark';
      }
    } finally {
      this.#streams--;
      this.#batches.closed(stream);
      if (this.#streams === 0) this.#clearWhenIdle();
    }
  }

  /** After the changes of a revision. */
  #changed(): void {
    this.#batches.changed();
    this.#waiters.notify();
    for (const { revision, resolve } of this.#revisionWaiters) if (revision <= this.#recent.revision) resolve();
  }

  #messageBytes(): number {
    const { messageBytes, waitingBytes } = this.#options;
    const room = waitingBytes - this.#waitingBytes;
    return Math.min(messageBytes, Math.max(MIN_MESSAGE_BYTES, room / MESSAGES_IN_ROOM));
  }

  #clearWhenIdle(): void {
    if (this.#clearIsDue) return;
    this.#clearIsDue = true;
    const { clock, cacheIdleMs } = this.#options;
    void clock.sleep(cacheIdleMs, this.#stop.signal).then(() => {
      this.#clearIsDue = false;
      if (this.#streams === 0) this.#batches.clear();
    });
  }

  /** @returns the number of the first change that the client lacks; undefined when it needs a snapshot */
  async #resume(from: StreamPosition, key: string, signal: AbortSignal): Promise<number | undefined> {
    if (from.datastore !== this.#options.datastore || from.query !== key) return undefined;
    if (from.revision > this.#recent.revision) {
      // A revision that was never reached is of a datastore that was set back since.
      if (from.revision > (await this.#options.currentRevision(signal))) return undefined;
      await this.#waitForRevision(from.revision, signal);
    }
    return this.#recent.numberAfter(from.revision);
  }

  /**
   * Waits until this replica has the revision of the token; earlier states would be older than what the watcher has.
   */
  #waitForRevision(revision: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const waiter: RevisionWaiter = {
        revision,
        resolve: () => {
          signal.removeEventListener('abort', waiter.resolve);
          this.#revisionWaiters.delete(waiter);
          resolve();
        },
      };
      this.#revisionWaiters.add(waiter);
      signal.addEventListener('abort', waiter.resolve);
      if (signal.aborted || revision <= this.#recent.revision) waiter.resolve();
    });
  }

  *#snapshot(stream: Stream, cursor: Cursor): Generator<Uint8Array, void, void> {
    cursor.number = this.#recent.nextNumber;
    let reset = true;
    const chunks = this.#batches.snapshot(stream.query, this.#recent.revision);
    try {
      for (
        let message = this.#snapshotMessage(chunks, reset);
        message;
        message = this.#snapshotMessage(chunks, reset)
      ) {
        yield message;
        reset = false;
      }
    } finally {
      chunks.end();
    }
    for (;;) {
      // Too slow: the caller sees that the cursor is behind, and starts again.
      if (cursor.number < this.#recent.firstNumber) return;
      const { changes, next } = this.#batches.changes(stream.query, cursor.number);
      const isLast = next === this.#recent.nextNumber;
      cursor.number = next;
      const resumeToken = isLast ? this.#token(stream, this.#recent.revision) : '';
      yield this.#message({ phase: isLast ? 'snapshotComplete' : 'snapshot', reset, changes, resumeToken });
      if (isLast) return;
      reset = false;
    }
  }

  /** Separate function, so that a waiting stream retains no chunk. */
  #snapshotMessage(chunks: SnapshotChunks, reset: boolean): Uint8Array | undefined {
    const changes = chunks.next();
    return changes && this.#message({ phase: 'snapshot', reset, changes, resumeToken: '' });
  }

  #changes(stream: Stream, from: number): SharedBatch {
    return this.#batches.shared(stream, from, ({ changes, hasLockChange, revision }) => {
      if (changes.length === 0 && !hasLockChange) return undefined;
      const phase = changes.length > 0 ? 'changes' : 'bookmark';
      return this.#message({ phase, reset: false, changes, resumeToken: this.#token(stream, revision) });
    });
  }

  /** For a stream that has received all changes. */
  #bookmark(stream: Stream): Uint8Array {
    const resumeToken = this.#token(stream, this.#recent.revision);
    return this.#message({ phase: 'bookmark', reset: false, changes: [], resumeToken });
  }

  #message(message: Omit<StreamMessage, 'isLocked'>): Uint8Array {
    return this.#options.encode({ ...message, isLocked: this.#recent.isLocked });
  }

  #token({ key }: Stream, revision: number): string {
    return formatToken({ datastore: this.#options.datastore, query: key, revision });
  }
}

/** A stream's position: all changes before this number were sent. */
interface Cursor {
  number: number;
}

interface RevisionWaiter {
  readonly revision: number;
  readonly resolve: () => void;
}

/** The position from which a watcher resumes. */
export interface StreamPosition {
  /** Which datastore the revision is of; an import begins a new one. */
  readonly datastore: string;
  /** The key of the watcher's query: {@link queryKey}. */
  readonly query: string;
  /** Every change up to it was received. */
  readonly revision: number;
}

const VERSION = 'w1';

/** The opaque text that clients keep: `w1.<datastore>.<query>.<revision>`, in base64url. */
function formatToken({ datastore, query, revision }: StreamPosition): string {
  return Buffer.from([VERSION, datastore, query, revision].join('.')).toString('base64url');
}

/** @returns undefined when the text is not a token */
export function parseToken(token: string): StreamPosition | undefined {
  const text = Buffer.from(token, 'base64url').toString();
  const match = /^w1\.([^.]*)\.([^.]*)\.(\d{1,15})$/.exec(text);
  if (!match) return undefined;
  const [, datastore = '', query = '', revision] = match;
  const position = { datastore, query, revision: Number(revision) };
  return formatToken(position) === token ? position : undefined;
}

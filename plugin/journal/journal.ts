import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { formatCount } from '@podwire/shared/words/format-count';

import type { PendingRelease, JournalEntry, JournalStore, UnreadableEntry } from './entry.js';
import type { JournalEvents, JournalLevel } from './events.js';

export interface JournalOptions {
  readonly store: JournalStore;
  /** Most stored entries; further ones are only in memory. */
  readonly maxEntriesCount: number;
  readonly clock: Clock;
  readonly events: JournalEvents;
}

/**
 * Pending releases of this node, at most one per attachment, in the order in which they were written.
 *
 * More than a store: DEL succeeds even if the disk is full, missing or read-only. Entries are then in memory until the storage
 * works again, and {@link Journal.fault} reports it. Memory has no bound: one entry per pod that the node deletes meanwhile.
 * Only {@link Journal.discard} throws on a storage error.
 *
 * Callers change an attachment's entry only from its queue, so changes never run concurrently.
 */
export class Journal {
  readonly #options: JournalOptions;
  readonly #entries = new Map<string, JournalEntry>();
  /** Keys of the entries whose current state is stored. */
  readonly #stored = new Set<string>();
  /** Keys of the entries that could not be stored. */
  readonly #refused = new Set<string>();
  /** Keys that may have a file. */
  readonly #files = new Set<string>();
  /** Storage operations in flight, by key: one at a time for each. */
  readonly #inFlight = new Map<string, Promise<unknown>>();
  /** Attachments whose entry is closed but whose file could not be removed. */
  readonly #unremoved = new Map<string, Attachment>();
  /** Keys of attachments whose ADD succeeded before the store could be read. */
  readonly #addedBeforeLoad = new Set<string>();
  /** Why the store could not be read; undefined after a successful load. */
  #loadFault: string | undefined = 'it has not been read yet';
  #writeFault: string | undefined;
  #lastOrder = 0;
  #onAdd: (entry: JournalEntry) => void = () => undefined;

  constructor(options: JournalOptions) {
    this.#options = options;
    options.events.observe(() => this.level());
  }

  /** Sets the callback after each {@link Journal.add}. */
  onAdd(listener: (entry: JournalEntry) => void): void {
    this.#onAdd = listener;
  }

  /** Oldest first. */
  entries(): readonly JournalEntry[] {
    return [...this.#entries.values()].sort((a, b) => a.order - b.order);
  }

  get(attachment: Attachment): JournalEntry | undefined {
    return this.#entries.get(formatAttachment(attachment));
  }

  /** Whether nothing is pending: no entry, no file to remove, no load to retry. */
  get isIdle(): boolean {
    return this.#entries.size === 0 && this.#unremoved.size === 0 && this.#loadFault === undefined;
  }

  level(): JournalLevel {
    const since = [...this.#entries.values()].map(({ sinceMs }) => sinceMs);
    return {
      entries: this.#entries.size,
      volatileEntries: this.#refused.size,
      unreadableEntries: this.unreadable().length,
      oldestAgeMs: since.length === 0 ? 0 : Math.max(0, this.#options.clock.nowMs() - Math.min(...since)),
    };
  }

  /** Stored entries that this process cannot read and does not execute. */
  unreadable(): readonly UnreadableEntry[] {
    return this.#options.store.unreadable();
  }

  /** Why the attachment's entry is only in memory; undefined if it is stored or there is none. */
  volatileFault(attachment: Attachment): string | undefined {
    return this.#refused.has(formatAttachment(attachment)) ? (this.#writeFault ?? '') : undefined;
  }

  /** Why a restart of the process or the node could lose or restore an entry; undefined if it cannot. */
  get fault(): string | undefined {
    if (this.#loadFault !== undefined) return `the journal cannot be read: ${this.#loadFault}`;
    const { volatileEntries } = this.level();
    if (volatileEntries > 0)
      return `${formatCount(volatileEntries, 'entry of the journal is', 'entries of the journal are')} not stored: ${this.#writeFault ?? ''}`;
    if (this.#unremoved.size > 0) return `entries of the journal cannot be removed: ${this.#writeFault ?? ''}`;
    return undefined;
  }

  /** Reads the entries of earlier processes. Retried by {@link Journal.retryStorage} until it succeeds. */
  async load(): Promise<void> {
    const { store, events } = this.#options;
    try {
      const { entries, unreadable } = await store.load();
      this.#loadFault = undefined;
      const superseded = entries.filter((entry) => !this.#adopt(entry));
      this.#addedBeforeLoad.clear();
      events.loaded(entries.length);
      for (const entry of unreadable) events.unreadable(entry);
      for (const { attachment } of superseded) await this.#removeFile(formatAttachment(attachment), attachment);
    } catch (error) {
      const failure = storageFailure(error);
      if (this.#loadFault !== failure.message) events.notLoaded(failure);
      this.#loadFault = failure.message;
    }
  }

  /** Adds a pending release, or replaces the attachment's. Tries to store it before it returns. */
  async add(pending: PendingRelease): Promise<JournalEntry> {
    const { clock, events } = this.#options;
    const key = formatAttachment(pending.attachment);
    const before = this.#entries.get(key);
    const { attachment, action, held, delegate, refused, reason } = pending;
    // A repeated DEL may lack the namespace.
    const netns = action === 'detach-and-release' ? (pending.netns ?? before?.netns) : undefined;
    const order = before?.order ?? ++this.#lastOrder;
    const sinceMs = before?.sinceMs ?? clock.nowMs();
    const optional = {
      ...(netns !== undefined && { netns }),
      ...(delegate && { delegate }),
      ...(refused && { refused }),
    };
    const entry = { attachment, action, held, ...optional, reason, order, sinceMs };
    this.#entries.set(key, entry);
    this.#stored.delete(key);
    this.#unremoved.delete(key);
    events.written(entry);
    const fault = await this.#store(key, entry);
    if (fault !== undefined) events.notStored(entry, fault);
    this.#onAdd(entry);
    return entry;
  }

  /** Removes the attachment's entry, also an unreadable one: everything is released. Idempotent. */
  async done(attachment: Attachment): Promise<void> {
    const { events, clock } = this.#options;
    const entry = this.get(attachment);
    if (entry) events.done(entry, clock.nowMs());
    await this.#remove(attachment);
  }

  /**
   * An ADD has succeeded: removes the attachment's entry. If the store could not be read before, a stored entry is superseded:
   * executing it would remove the new pod's wire and addresses.
   */
  async added(attachment: Attachment): Promise<void> {
    if (this.#loadFault !== undefined) this.#addedBeforeLoad.add(formatAttachment(attachment));
    await this.done(attachment);
  }

  /**
   * Deletes a pending entry at an operator's request. No effect if the attachment has a newer one.
   * @param providers - names of the providers whose addresses may stay allocated
   * @throws Failure STATE_IO while the store cannot be read: the stored entry would reappear
   */
  async discard(entry: JournalEntry, providers: readonly string[]): Promise<void> {
    const { events, clock } = this.#options;
    if (this.get(entry.attachment) !== entry) return;
    if (this.#loadFault !== undefined)
      throw new Failure(
        'STATE_IO',
        `the entry of ${formatAttachment(entry.attachment)} cannot be discarded while the journal cannot be read: ${this.#loadFault}`,
      );
    events.discarded(entry, providers, clock.nowMs());
    await this.#remove(entry.attachment);
  }

  /** Retries failed storage operations. */
  async retryStorage(): Promise<void> {
    if (this.#loadFault !== undefined) await this.load();
    for (const [key, attachment] of [...this.#unremoved]) await this.#removeFile(key, attachment);
    for (const entry of this.entries()) {
      const key = formatAttachment(entry.attachment);
      // An entry without room costs no attempt and does not affect the rest.
      if (!this.#refused.has(key) || !this.#hasRoom(key)) continue;
      if ((await this.#store(key, entry)) !== undefined) return;
      this.#options.events.stored(entry);
    }
  }

  /** Final attempt to persist on shutdown. Entries that fail are lost and reported. */
  async close(): Promise<void> {
    await this.retryStorage();
    for (const entry of this.entries()) {
      const fault = this.volatileFault(entry.attachment);
      if (fault !== undefined) this.#options.events.lost(entry, fault);
    }
  }

  async #remove(attachment: Attachment): Promise<void> {
    const key = formatAttachment(attachment);
    this.#entries.delete(key);
    this.#stored.delete(key);
    this.#refused.delete(key);
    if (this.#files.has(key) || this.#options.store.isSetAside(attachment)) await this.#removeFile(key, attachment);
  }

  /** Takes over a stored entry unless memory has a later state. @returns whether the attachment still has an entry */
  #adopt(entry: JournalEntry): boolean {
    const key = formatAttachment(entry.attachment);
    this.#lastOrder = Math.max(this.#lastOrder, entry.order);
    this.#files.add(key);
    if (this.#entries.has(key)) return true;
    if (this.#addedBeforeLoad.has(key)) return false;
    this.#entries.set(key, entry);
    this.#stored.add(key);
    return true;
  }

  /** @returns why it is not stored, or undefined */
  #store(key: string, entry: JournalEntry): Promise<string | undefined> {
    return this.#serialize(key, async () => {
      const isCurrent = () => this.#entries.get(key) === entry;
      // It was replaced, completed or stored meanwhile.
      if (!isCurrent() || this.#stored.has(key)) return undefined;
      const fault = await this.#put(key, entry);
      if (!isCurrent()) return undefined;
      if (fault === undefined) {
        this.#stored.add(key);
        this.#refused.delete(key);
      } else {
        this.#refused.add(key);
        this.#writeFault = fault;
      }
      return fault;
    });
  }

  async #put(key: string, entry: JournalEntry): Promise<string | undefined> {
    const { store, maxEntriesCount } = this.#options;
    if (!this.#hasRoom(key)) {
      return `the journal has the maximum of ${maxEntriesCount} stored entries; raise PODWIRE_NODE_JOURNAL_MAX_ENTRIES_COUNT`;
    }
    this.#files.add(key);
    try {
      await store.put(entry);
      return undefined;
    } catch (error) {
      return storageFailure(error).message;
    }
  }

  #hasRoom(key: string): boolean {
    return this.#files.has(key) || this.#files.size < this.#options.maxEntriesCount;
  }

  #removeFile(key: string, attachment: Attachment): Promise<void> {
    return this.#serialize(key, async () => {
      if (this.#entries.has(key)) return;
      try {
        await this.#options.store.remove(attachment);
        this.#unremoved.delete(key);
        this.#files.delete(key);
      } catch (error) {
        const failure = storageFailure(error);
        if (!this.#unremoved.has(key)) this.#options.events.notRemoved(key, failure);
        this.#unremoved.set(key, attachment);
        this.#writeFault = failure.message;
      }
    });
  }

  async #serialize<Result>(key: string, work: () => Promise<Result>): Promise<Result> {
    const result = (this.#inFlight.get(key) ?? Promise.resolve()).then(work);
    const settled = result.catch(() => undefined);
    this.#inFlight.set(key, settled);
    try {
      return await result;
    } finally {
      if (this.#inFlight.get(key) === settled) this.#inFlight.delete(key);
    }
  }
}

function storageFailure(error: unknown): Failure {
  if (error instanceof Failure && error.code === 'STATE_IO') return error;
  throw error;
}

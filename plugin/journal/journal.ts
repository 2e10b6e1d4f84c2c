import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Debt, JournalEntry, JournalStore, UnreadableEntry } from './entry.js';
import type { JournalEvents, JournalLevel } from './events.js';

export interface JournalOptions {
  readonly store: JournalStore;
  /** Most entries that are stored; those beyond are in memory alone. */
  readonly maxEntriesCount: number;
  readonly clock: Clock;
  readonly events: JournalEvents;
}

/**
 * What is still to do on this node for attachments whose DEL has succeeded: at most one entry each, in the order of writing.
 *
 * What makes it more than a store: DEL succeeds also on a node whose disk is full, gone or read-only. Then entries are in memory
 * alone, are stored as soon as that works, and {@link Journal.fault} says so until then. In memory there is no bound: they are as
 * many as the node deletes pods in that time. None of the methods throws for the storage's sake.
 *
 * Who changes an attachment's entry has its turn, so that no two do.
 */
export class Journal {
  readonly #options: JournalOptions;
  readonly #entries = new Map<string, JournalEntry>();
  /** Keys of the entries that are stored as they are. */
  readonly #stored = new Set<string>();
  /** Keys of the entries that the storage refused. */
  readonly #refused = new Set<string>();
  /** Keys under which something may be stored. */
  readonly #files = new Set<string>();
  /** The storage's work under way, by key: one at a time for each. */
  readonly #underWay = new Map<string, Promise<unknown>>();
  /** Entries that are struck out, and still stored. */
  readonly #unremoved = new Map<string, Attachment>();
  /** Keys of attachments that were added since the journal began, while the store could not be read. */
  readonly #addedUnread = new Set<string>();
  /** Why the store could not be read; undefined once it was. */
  #loadFault: string | undefined = 'it has not been read yet';
  #writeFault: string | undefined;
  #lastOrder = 0;
  #added: () => void = () => undefined;

  constructor(options: JournalOptions) {
    this.#options = options;
    options.events.observe(() => this.level());
  }

  /** Calls back after every entry that is written. */
  onAdd(listener: () => void): void {
    this.#added = listener;
  }

  /** What waits, oldest first. */
  entries(): readonly JournalEntry[] {
    return [...this.#entries.values()].sort((a, b) => a.order - b.order);
  }

  get(attachment: Attachment): JournalEntry | undefined {
    return this.#entries.get(formatAttachment(attachment));
  }

  /** Whether nothing waits, to be done, stored or removed. */
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

  /** What earlier processes left and this one cannot read, and so does not do. */
  unreadable(): readonly UnreadableEntry[] {
    return this.#options.store.unreadable();
  }

  /** Why the attachment's entry is in memory alone; undefined where it is stored, or there is none. */
  volatileFault(attachment: Attachment): string | undefined {
    return this.#refused.has(formatAttachment(attachment)) ? (this.#writeFault ?? '') : undefined;
  }

  /** Why a restart of the process, or of the node, could lose something, or bring something back; undefined when it could not. */
  get fault(): string | undefined {
    if (this.#loadFault !== undefined) return `the journal cannot be read: ${this.#loadFault}`;
    const { volatileEntries } = this.level();
    if (volatileEntries > 0)
      return `${formatCount(volatileEntries, 'entry of the journal is', 'entries of the journal are')} not stored: ${this.#writeFault ?? ''}`;
    if (this.#unremoved.size > 0) return `entries of the journal cannot be removed: ${this.#writeFault ?? ''}`;
    return undefined;
  }

  /** Reads what earlier processes left. Repeated by {@link Journal.settleStore} until it works. */
  async load(): Promise<void> {
    const { store, events } = this.#options;
    try {
      const { entries, unreadable } = await store.load();
      this.#loadFault = undefined;
      const overtaken = entries.filter((entry) => !this.#adopt(entry));
      this.#addedUnread.clear();
      events.loaded(entries.length);
      for (const entry of unreadable) events.unreadable(entry);
      for (const { attachment } of overtaken) await this.#remove(formatAttachment(attachment), attachment);
    } catch (error) {
      const failure = storageFailure(error);
      if (this.#loadFault !== failure.message) events.notLoaded(failure);
      this.#loadFault = failure.message;
    }
  }

  /** Writes a debt down, in place of the attachment's earlier one. It is stored before the call is answered, where that works. */
  async add(debt: Debt): Promise<JournalEntry> {
    const { clock, events } = this.#options;
    const key = formatAttachment(debt.attachment);
    const before = this.#entries.get(key);
    const { attachment, todo, held, delegate, refused, reason } = debt;
    // A later DEL of the same pod need not name it.
    const netns = todo === 'detach-and-release' ? (debt.netns ?? before?.netns) : undefined;
    const order = before?.order ?? ++this.#lastOrder;
    const sinceMs = before?.sinceMs ?? clock.nowMs();
    const optional = {
      ...(netns !== undefined && { netns }),
      ...(delegate && { delegate }),
      ...(refused && { refused }),
    };
    const entry = { attachment, todo, held, ...optional, reason, order, sinceMs };
    this.#entries.set(key, entry);
    this.#stored.delete(key);
    this.#unremoved.delete(key);
    events.written(entry);
    const fault = await this.#store(key, entry);
    if (fault !== undefined) events.notStored(entry, fault);
    this.#added();
    return entry;
  }

  /** Strikes an entry out, also one that could not be read: all that the attachment had is given back. Idempotent. */
  async done(attachment: Attachment): Promise<void> {
    const { events, clock } = this.#options;
    const entry = this.get(attachment);
    if (entry) events.done(entry, clock.nowMs());
    await this.#strike(attachment);
  }

  /**
   * An ADD has succeeded: what earlier processes left of the attachment, and could not be read when it began, would take the pod's wire and
   * addresses away, which are those of the ADD by now.
   */
  async added(attachment: Attachment): Promise<void> {
    if (this.#loadFault !== undefined) this.#addedUnread.add(formatAttachment(attachment));
    await this.done(attachment);
  }

  /**
   * Deletes a pending entry at an operator's request. No effect if the attachment has a newer one.
   * @param givers - names of the IPAM plugins whose addresses may stay held
   * @throws Failure STATE_IO while the store cannot be read: the stored entry would reappear
   */
  async discard(entry: JournalEntry, givers: readonly string[]): Promise<void> {
    const { events, clock } = this.#options;
    if (this.get(entry.attachment) !== entry) return;
    if (this.#loadFault !== undefined)
      throw new Failure(
        'STATE_IO',
        `${formatAttachment(entry.attachment)} stays in the journal, as that cannot be read: ${this.#loadFault}`,
      );
    events.discarded(entry, givers, clock.nowMs());
    await this.#strike(entry.attachment);
  }

  /** Tries again what the storage refused. */
  async settleStore(): Promise<void> {
    if (this.#loadFault !== undefined) await this.load();
    for (const [key, attachment] of [...this.#unremoved]) await this.#remove(key, attachment);
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
    await this.settleStore();
    for (const entry of this.entries()) {
      const fault = this.volatileFault(entry.attachment);
      if (fault !== undefined) this.#options.events.lost(entry, fault);
    }
  }

  async #strike(attachment: Attachment): Promise<void> {
    const key = formatAttachment(attachment);
    this.#entries.delete(key);
    this.#stored.delete(key);
    this.#refused.delete(key);
    if (this.#files.has(key) || this.#options.store.isSetAside(attachment)) await this.#remove(key, attachment);
  }

  /** What is in memory is later than what is stored. @returns whether it is still to be done */
  #adopt(entry: JournalEntry): boolean {
    const key = formatAttachment(entry.attachment);
    this.#lastOrder = Math.max(this.#lastOrder, entry.order);
    this.#files.add(key);
    if (this.#entries.has(key)) return true;
    if (this.#addedUnread.has(key)) return false;
    this.#entries.set(key, entry);
    this.#stored.add(key);
    return true;
  }

  /** @returns why it is not stored, or undefined */
  #store(key: string, entry: JournalEntry): Promise<string | undefined> {
    return this.#inTurn(key, async () => {
      const isCurrent = () => this.#entries.get(key) === entry;
      // Another replaced it, or it is done.
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
      return `it holds as many as it may, ${maxEntriesCount} (PODWIRE_PLUGIN_JOURNAL_MAX_ENTRIES_COUNT)`;
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

  #remove(key: string, attachment: Attachment): Promise<void> {
    return this.#inTurn(key, async () => {
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

  async #inTurn<Result>(key: string, work: () => Promise<Result>): Promise<Result> {
    const mine = (this.#underWay.get(key) ?? Promise.resolve()).then(work);
    const settled = mine.catch(() => undefined);
    this.#underWay.set(key, settled);
    try {
      return await mine;
    } finally {
      if (this.#underWay.get(key) === settled) this.#underWay.delete(key);
    }
  }
}

function storageFailure(error: unknown): Failure {
  if (error instanceof Failure && error.code === 'STATE_IO') return error;
  throw error;
}

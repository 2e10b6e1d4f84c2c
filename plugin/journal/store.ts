import type { Attachment } from '@podwire/shared/attachment/attachment';

import type { JournalEntry } from './entry.js';

/** A stored entry that cannot be read. */
export interface UnreadableEntry {
  /** Where it was set aside, or still is. */
  readonly path: string;
  /** What is wrong with it, for people. */
  readonly fault: string;
}

export interface StoredEntries {
  readonly entries: readonly JournalEntry[];
  readonly unreadable: readonly UnreadableEntry[];
}

/**
 * Where the journal outlives the process. Implementations: a directory, and memory (the fake); both pass `store.contract.ts`.
 * Methods throw a Failure STATE_IO when the storage refuses. One process at a time uses a store.
 */
export interface JournalStore {
  /**
   * Result: all entries, in no order. What cannot be read is set aside, told, and read again by the next call: it may be a later
   * release's, which comes back. It never fails the call. Idempotent.
   */
  load(): Promise<StoredEntries>;

  /** Those of the last {@link JournalStore.load} that could not be read, and are still there. */
  unreadable(): readonly UnreadableEntry[];

  /** Whether one of them is the attachment's. */
  isSetAside(attachment: Attachment): boolean;

  /**
   * Stores an entry in place of the attachment's earlier one, durably: it outlives a power cut once the call is answered. Whoever
   * is killed in the middle leaves one of the two, whole. After a failure it is the earlier one. Idempotent.
   */
  put(entry: JournalEntry): Promise<void>;

  /**
   * Removes the attachment's entry, also one that was set aside. A power cut may bring it back: nothing that it could harm outlives one. Idempotent: where
   * there is none, that is success.
   */
  remove(attachment: Attachment): Promise<void>;
}

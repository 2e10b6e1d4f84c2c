import type { Attachment } from '@podwire/shared/attachment/attachment';

import type { AttachmentRecord } from './record.js';

/** A stored record that cannot be read. */
export interface UnreadableRecord {
  /** Where it has been put aside, or still is. */
  readonly path: string;
  /** What is wrong with it, for people. */
  readonly fault: string;
}

export interface StoredRecords {
  readonly records: readonly AttachmentRecord[];
  readonly unreadable: readonly UnreadableRecord[];
}

/**
 * Where the node's attachment records are kept. Implementations: a directory, and memory (the fake); both pass
 * `record-store.contract.ts`. Methods throw a Failure STATE_IO when the storage refuses. One process at a time uses a store.
 */
export interface RecordStore {
  /**
   * Result: everything that is stored, in no order. What cannot be read is put aside, so that it is told once, and never fails
   * the call. Idempotent.
   */
  load(): Promise<StoredRecords>;

  /**
   * Stores a record in place of the attachment's earlier one: whoever is killed in the middle leaves one of the two, whole. What
   * somebody removed of the store is made anew.
   * Lets other work of the caller begin first. Idempotent.
   */
  put(record: AttachmentRecord): Promise<void>;

  /** Result: whether the attachment has a record, readable or not. */
  has(attachment: Attachment): Promise<boolean>;

  /** Removes the attachment's record. Idempotent: where there is none, that is success. */
  remove(attachment: Attachment): Promise<void>;
}

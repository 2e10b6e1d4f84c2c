import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import type { RecordStore, StoredRecords, UnreadableRecord } from '../records/record-store.js';
import { decodeRecord, encodeRecord, type AttachmentRecord } from '../records/record.js';

/** The fake: texts in memory, as the directory would have them, which outlive the service that uses it. */
export class MemoryRecordStore implements RecordStore {
  readonly texts = new Map<string, string>();
  /** How often something was stored or removed. */
  writes = 0;
  /** Whether every write fails, as on a full file system. */
  isFull = false;

  load(): Promise<StoredRecords> {
    const records: AttachmentRecord[] = [];
    const unreadable: UnreadableRecord[] = [];
    for (const [path, text] of [...this.texts]) {
      const decoded = decodeRecord(text);
      if (decoded.ok) records.push(decoded.record);
      else {
        unreadable.push({ path, fault: decoded.fault });
        this.texts.delete(path);
      }
    }
    return Promise.resolve({ records, unreadable });
  }

  async put(record: AttachmentRecord): Promise<void> {
    await Promise.resolve();
    this.#write();
    this.texts.set(formatAttachment(record.network.attachment), encodeRecord(record));
  }

  has(attachment: Attachment): Promise<boolean> {
    return Promise.resolve(this.texts.has(formatAttachment(attachment)));
  }

  async remove(attachment: Attachment): Promise<void> {
    await Promise.resolve();
    this.#write();
    this.texts.delete(formatAttachment(attachment));
  }

  #write(): void {
    if (this.isFull) throw new Failure('STATE_IO', 'the store is full');
    this.writes++;
  }
}

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import {
  decodeEntry,
  encodeEntry,
  type JournalEntry,
  type JournalStore,
  type StoredEntries,
  type UnreadableEntry,
} from '../journal/entry.js';

/** The fake: texts in memory, as the directory would have them, which outlive the journal that uses it. */
export class MemoryJournalStore implements JournalStore {
  readonly texts = new Map<string, string>();
  /** Entries set aside, in the same form. */
  readonly aside = new Map<string, string>();
  /** The number of writes and removals. */
  writes = 0;
  /** Whether every call fails, as on a file system that is gone; or writing alone, as on one that is full. */
  broken: 'no' | 'full' | 'gone' = 'no';

  async load(): Promise<StoredEntries> {
    await Promise.resolve();
    if (this.broken === 'gone') throw new Failure('STATE_IO', 'the store is gone');
    const entries: JournalEntry[] = [];
    for (const [key, text] of [...this.aside, ...this.texts]) {
      const decoded = decodeEntry(text);
      if (decoded.ok) entries.push(decoded.entry);
      const [to, from] = decoded.ok ? [this.texts, this.aside] : [this.aside, this.texts];
      from.delete(key);
      to.set(key, text);
    }
    return { entries, unreadable: this.unreadable() };
  }

  unreadable(): readonly UnreadableEntry[] {
    return [...this.aside].map(([path, text]) => {
      const decoded = decodeEntry(text);
      return { path, fault: decoded.ok ? '' : decoded.fault };
    });
  }

  isSetAside(attachment: Attachment): boolean {
    return this.aside.has(formatAttachment(attachment));
  }

  async put(entry: JournalEntry): Promise<void> {
    await Promise.resolve();
    if (this.broken !== 'no') throw new Failure('STATE_IO', `the store is ${this.broken}`);
    this.writes++;
    this.texts.set(formatAttachment(entry.attachment), encodeEntry(entry));
  }

  async remove(attachment: Attachment): Promise<void> {
    await Promise.resolve();
    if (this.broken === 'gone') throw new Failure('STATE_IO', 'the store is gone');
    this.writes++;
    this.texts.delete(formatAttachment(attachment));
    this.aside.delete(formatAttachment(attachment));
  }
}

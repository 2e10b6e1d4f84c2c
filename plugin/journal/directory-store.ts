import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';

import { putDurably, WRITING } from './durable-file.js';
import { decodeEntry, encodeEntry, type DecodedEntry, type JournalEntry } from './entry.js';
import type { JournalStore, StoredEntries, UnreadableEntry } from './store.js';

/** `<hash of the attachment>.json` holds an entry; with one of these behind it, it is being written, or cannot be read. */
const ENTRY = '.json';
const UNREADABLE = '.unreadable';

/** Digits of the hash in a file's name: as many as make two attachments with one name a matter of theory. */
const NAME_DIGITS = 32;

/** The directory is root's alone. */
const DIRECTORY_MODE = 0o700;

/**
 * One small file per attachment: written beside, synced, renamed, and the directory synced. The directory is made anew where
 * somebody removed it.
 */
export class DirectoryJournalStore implements JournalStore {
  readonly #directory: string;

  constructor(directory: string) {
    this.#directory = directory;
  }

  async load(): Promise<StoredEntries> {
    const entries: JournalEntry[] = [];
    const unreadable: UnreadableEntry[] = [];
    const names = await this.#io('list', async () => {
      await mkdir(this.#directory, { recursive: true, mode: DIRECTORY_MODE });
      return readdir(this.#directory);
    });
    for (const name of names) {
      if (name.endsWith(WRITING)) await rm(join(this.#directory, name), { force: true }).catch(() => undefined);
      if (!name.endsWith(ENTRY)) continue;
      const decoded = await this.#read(name);
      if (decoded.ok) entries.push(decoded.entry);
      else unreadable.push({ path: await this.#setAside(name), fault: decoded.fault });
    }
    return { entries, unreadable };
  }

  async put(entry: JournalEntry): Promise<void> {
    const path = this.#path(entry.attachment);
    const text = encodeEntry(entry);
    await this.#io('write', async () => {
      await mkdir(this.#directory, { recursive: true, mode: DIRECTORY_MODE });
      await putDurably(path, text);
    });
  }

  async remove(attachment: Attachment): Promise<void> {
    await this.#io('remove', () => rm(this.#path(attachment), { force: true }));
  }

  #path(attachment: Attachment): string {
    return join(this.#directory, fileName(attachment));
  }

  async #read(name: string): Promise<DecodedEntry> {
    try {
      const decoded = decodeEntry(await readFile(join(this.#directory, name), 'utf8'));
      if (!decoded.ok || fileName(decoded.entry.attachment) === name) return decoded;
      return { ok: false, fault: `is the entry of ${formatAttachment(decoded.entry.attachment)}` };
    } catch (error) {
      return { ok: false, fault: messageOf(error) };
    }
  }

  /** @returns where it is then; where it was, when it cannot be moved */
  async #setAside(name: string): Promise<string> {
    const path = join(this.#directory, name);
    try {
      await rename(path, path + UNREADABLE);
      return path + UNREADABLE;
    } catch {
      return path;
    }
  }

  async #io<Result>(operation: string, work: () => Promise<Result>): Promise<Result> {
    try {
      return await work();
    } catch (cause) {
      const reason = messageOf(cause);
      throw new Failure(
        'STATE_IO',
        `cannot ${operation} in the journal's directory ${this.#directory}: ${reason}; make room or set PODWIRE_PLUGIN_STATE_DIRECTORY`,
        { details: { directory: this.#directory }, cause },
      );
    }
  }
}

function fileName(attachment: Attachment): string {
  const hash = createHash('sha256').update(formatAttachment(attachment)).digest('hex');
  return hash.slice(0, NAME_DIGITS) + ENTRY;
}

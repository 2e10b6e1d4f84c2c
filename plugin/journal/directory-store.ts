import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { putDurably, WRITING } from '@podwire/shared/runtime/durable-file';

import {
  decodeEntry,
  encodeEntry,
  type DecodedEntry,
  type JournalEntry,
  type JournalStore,
  type StoredEntries,
  type UnreadableEntry,
} from './entry.js';

/** `<hash of the attachment>.json` holds an entry; with one of these behind it, it is being written, or cannot be read. */
const ENTRY = '.json';
const UNREADABLE = '.unreadable';

/** Digits of the hash in a file's name: as many as make two attachments with one name a matter of theory. */
const NAME_DIGITS = 32;

/** The directory is root's alone. */
const DIRECTORY_MODE = 0o700;

/**
 * One small file per attachment: written to a temporary name, synced, renamed, and the directory synced. A removed
 * directory is created again.
 */
export class DirectoryJournalStore implements JournalStore {
  readonly #directory: string;
  /** What is set aside, by the name that it would have as an entry. */
  readonly #setAside = new Map<string, UnreadableEntry>();

  constructor(directory: string) {
    this.#directory = directory;
  }

  async load(): Promise<StoredEntries> {
    const entries: JournalEntry[] = [];
    this.#setAside.clear();
    const names = await this.#io('list', async () => {
      await mkdir(this.#directory, { recursive: true, mode: DIRECTORY_MODE });
      return readdir(this.#directory);
    });
    for (const name of names) {
      if (name.endsWith(WRITING)) await rm(join(this.#directory, name), { force: true }).catch(() => undefined);
    }
    const whole = names.filter((name) => name.endsWith(ENTRY));
    const aside = names.filter((name) => name.endsWith(ENTRY + UNREADABLE));
    // Of one attachment, what was set aside is the earlier.
    const overtaken = aside.filter((name) => whole.includes(entryName(name)));
    for (const name of overtaken) await rm(join(this.#directory, name), { force: true }).catch(() => undefined);
    for (const name of [...whole, ...aside.filter((each) => !overtaken.includes(each))]) {
      const decoded = await this.#read(name);
      const place = await this.#keepAs(name, decoded.ok ? entryName(name) : entryName(name) + UNREADABLE);
      if (decoded.ok) entries.push(decoded.entry);
      else this.#setAside.set(entryName(name), { path: join(this.#directory, place), fault: decoded.fault });
    }
    return { entries, unreadable: this.unreadable() };
  }

  unreadable(): readonly UnreadableEntry[] {
    return [...this.#setAside.values()].filter(({ path }) => existsSync(path));
  }

  isSetAside(attachment: Attachment): boolean {
    return this.#setAside.size > 0 && this.#setAside.has(fileName(attachment));
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
    const path = this.#path(attachment);
    await this.#io('remove', async () => {
      if (this.isSetAside(attachment)) await rm(path + UNREADABLE, { force: true });
      await rm(path, { force: true });
    });
    this.#setAside.delete(fileName(attachment));
  }

  #path(attachment: Attachment): string {
    return join(this.#directory, fileName(attachment));
  }

  async #read(name: string): Promise<DecodedEntry> {
    try {
      const decoded = decodeEntry(await readFile(join(this.#directory, name), 'utf8'));
      if (!decoded.ok || fileName(decoded.entry.attachment) === entryName(name)) return decoded;
      return { ok: false, fault: `is the entry of ${formatAttachment(decoded.entry.attachment)}` };
    } catch (error) {
      return { ok: false, fault: messageOf(error) };
    }
  }

  /** @returns the name that the file has then: the earlier one where it cannot be renamed */
  async #keepAs(name: string, wanted: string): Promise<string> {
    if (name === wanted) return name;
    try {
      await rename(join(this.#directory, name), join(this.#directory, wanted));
      return wanted;
    } catch {
      return name;
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

function entryName(name: string): string {
  return name.endsWith(UNREADABLE) ? name.slice(0, -UNREADABLE.length) : name;
}

import { hash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { putDurably, WRITING } from '@podwire/shared/files/durable-file';

import {
  decodeEntry,
  encodeEntry,
  type DecodedEntry,
  type JournalEntry,
  type JournalStore,
  type StoredEntries,
  type UnreadableEntry,
} from './entry.js';

/** `<hash of the attachment>.json` is an entry; `.json.unreadable` is an entry that cannot be read. */
const ENTRY = '.json';
const UNREADABLE = '.unreadable';

/** Digits of the hash in a file's name; enough to rule out collisions. */
const NAME_DIGITS = 32;

/** Only root may read the directory. */
const DIRECTORY_MODE = 0o700;

/**
 * One small file per attachment: written to a temporary name, synced, renamed, and the directory synced. A removed
 * directory is created again.
 */
export class DirectoryJournalStore implements JournalStore {
  readonly #directory: string;
  /** Unreadable entries, by file name without `.unreadable`. */
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
    const entryNames = names.filter((name) => name.endsWith(ENTRY));
    const unreadableNames = names.filter((name) => name.endsWith(ENTRY + UNREADABLE));
    // An entry replaces the unreadable file of the same attachment, which is older.
    const replaced = unreadableNames.filter((name) => entryNames.includes(entryName(name)));
    for (const name of replaced) await rm(join(this.#directory, name), { force: true }).catch(() => undefined);
    for (const name of [...entryNames, ...unreadableNames.filter((each) => !replaced.includes(each))]) {
      const decoded = await this.#read(name);
      const fileName = await this.#renameTo(name, decoded.ok ? entryName(name) : entryName(name) + UNREADABLE);
      if (decoded.ok) entries.push(decoded.entry);
      else this.#setAside.set(entryName(name), { path: join(this.#directory, fileName), fault: decoded.fault });
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
      return { ok: false, fault: `its content is the entry of ${formatAttachment(decoded.entry.attachment)}` };
    } catch (error) {
      return { ok: false, fault: messageOf(error) };
    }
  }

  /** @returns the new name, or the old one if the file cannot be renamed */
  async #renameTo(name: string, newName: string): Promise<string> {
    if (name === newName) return name;
    try {
      await rename(join(this.#directory, name), join(this.#directory, newName));
      return newName;
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
        `cannot ${operation} in the journal's directory ${this.#directory}: ${reason}; free disk space or set PODWIRE_NODE_STATE_DIRECTORY`,
        { details: { directory: this.#directory }, cause },
      );
    }
  }
}

function fileName(attachment: Attachment): string {
  return hash('sha256', formatAttachment(attachment)).slice(0, NAME_DIGITS) + ENTRY;
}

function entryName(name: string): string {
  return name.endsWith(UNREADABLE) ? name.slice(0, -UNREADABLE.length) : name;
}

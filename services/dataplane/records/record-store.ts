import { hash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, unlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { removeIfPossible } from '@podwire/shared/files/durable-file';

import { decodeRecord, encodeRecord, type AttachmentRecord, type DecodedRecord } from './record.js';

/** A stored record that cannot be read. */
export interface UnreadableRecord {
  /** Path to which it was moved, or its original path. */
  readonly path: string;
  /** The reason, as text for operators. */
  readonly fault: string;
}

export interface StoredRecords {
  readonly records: readonly AttachmentRecord[];
  readonly unreadable: readonly UnreadableRecord[];
}

/**
 * Storage of the node's attachment records. Implementations: a directory, and memory (the fake); both pass
 * `testing/record-store-contract.ts`. Methods throw a Failure STATE_IO when the storage refuses. One process at a time uses a store.
 */
export interface RecordStore {
  /**
   * Result: all stored records, unordered. Unreadable ones are moved aside, so that they are reported once, and never fail the
   * call. Idempotent.
   */
  load(): Promise<StoredRecords>;

  /**
   * Replaces the attachment's record atomically: a killed process leaves the old or the new one, whole. Recreates a store
   * directory that was deleted. Yields to the caller's other work first. Idempotent.
   */
  put(record: AttachmentRecord): Promise<void>;

  /** Result: whether the attachment has a record, readable or not. */
  has(attachment: Attachment): Promise<boolean>;

  /** Removes the attachment's record. Idempotent: succeeds when there is none. */
  remove(attachment: Attachment): Promise<void>;
}

/** `<hash of the attachment>.json` holds a record; a further suffix marks one that is being written, or cannot be read. */
const RECORD = '.json';
const WRITING = '.writing';
const UNREADABLE = '.unreadable';

/** Digits of the hash in a file's name: enough to make collisions negligible. */
const NAME_DIGITS = 32;

/** Directory and files are accessible to root only. */
const DIRECTORY_MODE = 0o700;
const FILE_MODE = 0o600;

/**
 * One small file per attachment, written to a temporary name and renamed.
 *
 * The calls are synchronous: the directory is on tmpfs, where a record takes 30 µs, a tenth of the way through Node's thread
 * pool. `put` waits for the event loop's next round before it writes, so that the kernel requests just sent by its caller run
 * meanwhile. Nothing is synced: a reboot clears files and namespaces together, and a killed process loses nothing that it wrote.
 */
export class DirectoryRecordStore implements RecordStore {
  readonly #directory: string;

  /** @throws Failure STATE_IO when the directory cannot be made */
  constructor(directory: string) {
    this.#directory = directory;
    this.#io('make the directory', () => this.#makeDirectory());
  }

  load(): Promise<StoredRecords> {
    const records: AttachmentRecord[] = [];
    const unreadable: UnreadableRecord[] = [];
    for (const name of this.#io('list the directory', () => readdirSync(this.#directory))) {
      if (name.endsWith(WRITING)) this.#unlink(name);
      if (!name.endsWith(RECORD)) continue;
      const decoded = this.#read(name);
      if (decoded.ok) records.push(decoded.record);
      else unreadable.push({ path: this.#setAside(name), fault: decoded.fault });
    }
    return Promise.resolve({ records, unreadable });
  }

  async put(record: AttachmentRecord): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve));
    const path = this.#path(record.network.attachment);
    const write = (): void => {
      try {
        writeFileSync(path + WRITING, encodeRecord(record), { mode: FILE_MODE });
        renameSync(path + WRITING, path);
      } catch (error) {
        // A partial file takes space that a later record may need.
        removeIfPossible(path + WRITING);
        throw error;
      }
    };
    this.#io('write', () => {
      try {
        write();
      } catch (error) {
        if (codeOf(error) !== 'ENOENT') throw error;
        this.#makeDirectory();
        write();
      }
    });
  }

  has(attachment: Attachment): Promise<boolean> {
    return Promise.resolve(existsSync(this.#path(attachment)));
  }

  remove(attachment: Attachment): Promise<void> {
    return Promise.resolve().then(() => this.#unlink(fileName(attachment)));
  }

  #makeDirectory(): void {
    mkdirSync(this.#directory, { recursive: true, mode: DIRECTORY_MODE });
  }

  #path(attachment: Attachment): string {
    return join(this.#directory, fileName(attachment));
  }

  #read(name: string): DecodedRecord {
    try {
      const decoded = decodeRecord(readFileSync(join(this.#directory, name), 'utf8'));
      if (!decoded.ok || fileName(decoded.record.network.attachment) === name) return decoded;
      return { ok: false, fault: `belongs to ${formatAttachment(decoded.record.network.attachment)}` };
    } catch (error) {
      return { ok: false, fault: messageOf(error) };
    }
  }

  /** @returns its new path; the old one when it cannot be moved */
  #setAside(name: string): string {
    const path = join(this.#directory, name);
    try {
      renameSync(path, path + UNREADABLE);
      return path + UNREADABLE;
    } catch {
      return path;
    }
  }

  #unlink(name: string): void {
    this.#io('remove', () => {
      try {
        unlinkSync(join(this.#directory, name));
      } catch (error) {
        if (codeOf(error) !== 'ENOENT') throw error;
      }
    });
  }

  #io<Result>(operation: string, work: () => Result): Result {
    try {
      return work();
    } catch (cause) {
      const reason = messageOf(cause);
      throw new Failure(
        'STATE_IO',
        `cannot ${operation} in the state directory ${this.#directory}: ${reason}; make room or set PODWIRE_NODE_RECORDS_DIRECTORY`,
        { details: { directory: this.#directory }, cause },
      );
    }
  }
}

function fileName(attachment: Attachment): string {
  return hash('sha256', formatAttachment(attachment)).slice(0, NAME_DIGITS) + RECORD;
}

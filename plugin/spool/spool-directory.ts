import { constants, lstatSync } from 'node:fs';
import { lstat, open, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';

import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { ignoreAbsent } from '@podwire/shared/failure/thrown';
import { isTrustedUser } from '@podwire/shared/sockets/peer-check';
import type { Clock } from '@podwire/shared/runtime/clock';
import { currentUserId } from '@podwire/shared/runtime/user';

import { MAX_BODY_BYTES } from '../requests/http-request.js';

/** The shim's names (kSpoolSuffix and kSpoolWriting, shim/src/protocol.h). */
const SUFFIX = '.del';
const WRITING = '.writing';

const UNREADABLE = '.unreadable';

/** A shim has ended by then (kOverallDeadlineMs, shim/src/protocol.h), so its temporary file is a killed one's. */
const STALE_MS = 120_000;

/** Most bytes of a request: the body and the head (kMaxRequestHeadBytes, shim/src/protocol.h). */
const MAX_BYTES = MAX_BODY_BYTES + 15 * 1024;

const WRITABLE_BY_OTHERS = 0o022;

/** A file of the spool as it was read. */
export interface SpooledFile {
  readonly name: string;
  readonly bytes: Buffer;
  /** When it was written, in epoch nanoseconds. */
  readonly writtenNs: bigint;
  /** Distinguishes it from a later file of the same name. */
  readonly identity: string;
}

/** Name of the file of an attachment's DEL. No part contains a comma, and the shim spools no part with one. */
export function spoolName({ network, containerId, interfaceName }: Attachment): string {
  return `${network},${containerId},${interfaceName}${SUFFIX}`;
}

/** The files of the spool. The shim creates the directory; only the shim writes files (shim/src/spool.cc). */
export class SpoolDirectory {
  readonly #path: string;
  readonly #clock: Pick<Clock, 'nowMs'>;

  constructor(path: string, clock: Pick<Clock, 'nowMs'>) {
    this.#path = path;
    this.#clock = clock;
  }

  /**
   * Names of the files, and removes temporary files of killed shims. Empty without a directory.
   * @throws Failure STATE_IO if other users can write to the directory; Error of the file system
   */
  async list(): Promise<readonly string[]> {
    const found = await lstat(this.#path).catch(ignoreAbsent);
    if (!found) return [];
    if (!found.isDirectory() || !isTrustedUser(found.uid, currentUserId()) || (found.mode & WRITABLE_BY_OTHERS) !== 0)
      throw new Failure(
        'STATE_IO',
        `the spool ${this.#path} is not a directory that only its owner root can write to; remove it`,
      );
    const names = await readdir(this.#path);
    for (const name of names) if (name.endsWith(WRITING)) await this.#removeIfStale(name);
    return names.filter((name) => name.endsWith(SUFFIX));
  }

  /** Whether there is anything of that name. */
  has(name: string): boolean {
    return lstatSync(join(this.#path, name), { throwIfNoEntry: false }) !== undefined;
  }

  /**
   * @returns undefined if there is no such file
   * @throws Failure INVALID_REQUEST if it is no file of the shim; Error of the file system
   */
  async read(name: string): Promise<SpooledFile | undefined> {
    const path = join(this.#path, name);
    const entry = await lstat(path).catch(ignoreAbsent);
    if (!entry) return undefined;
    if (!entry.isFile()) throw new Failure('INVALID_REQUEST', 'it is not a regular file');
    // Neither follows a link nor waits for the writer of a FIFO, which may have replaced the file by now.
    const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK).catch(ignoreAbsent);
    if (!file) return undefined;
    try {
      const found = await file.stat({ bigint: true });
      if (!found.isFile() || !isTrustedUser(Number(found.uid), currentUserId()))
        throw new Failure('INVALID_REQUEST', 'it is not a file of root');
      if (found.size > MAX_BYTES) throw new Failure('INVALID_REQUEST', `it has more than ${MAX_BYTES} bytes`);
      const identity = `${found.ino} ${found.mtimeNs}`;
      return { name, bytes: await file.readFile(), writtenNs: found.mtimeNs, identity };
    } finally {
      await file.close();
    }
  }

  /** Removes a file, unless a later DEL of the attachment has replaced it. @throws Error of the file system */
  async remove({ name, identity }: SpooledFile): Promise<void> {
    const path = join(this.#path, name);
    const found = await lstat(path, { bigint: true }).catch(ignoreAbsent);
    if (found && `${found.ino} ${found.mtimeNs}` === identity) await rm(path, { force: true });
  }

  /** Renames a file that cannot be replayed. @returns its new path. @throws Error of the file system */
  async setAside(name: string): Promise<string> {
    const path = join(this.#path, name);
    await rename(path, path + UNREADABLE);
    return path + UNREADABLE;
  }

  async #removeIfStale(name: string): Promise<void> {
    const path = join(this.#path, name);
    const found = await lstat(path).catch(ignoreAbsent);
    if (found?.isFile() && this.#clock.nowMs() - found.mtimeMs > STALE_MS) await rm(path, { force: true });
  }
}

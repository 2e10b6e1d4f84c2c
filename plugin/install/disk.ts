import { lstat, mkdir, open, readdir, readFile, readlink, rename, rm, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { syncDirectory } from '@podwire/shared/runtime/sync-directory';

/** What a file holds, and whose it is. */
export interface FileContent {
  readonly bytes: Buffer;
  /** Permission bits. */
  readonly mode: number;
  /** Owner and group; those of the process when undefined. */
  readonly owner?: { readonly uid: number; readonly gid: number };
}

/** What stands at a path: enough to put it back. */
export type Standing =
  | { readonly kind: 'absent' }
  | ({ readonly kind: 'file' } & FileContent)
  /** With what it leads to, where that is a file. */
  | { readonly kind: 'link'; readonly target: string; readonly bytes: Buffer | undefined }
  /** A directory, a device, or a file too large to be one of those that belong here. */
  | { readonly kind: 'other' };

/**
 * The steps that an installation is made of. Each is whole or not done at all, whenever the process or the machine dies: what
 * is written becomes visible by a rename within its directory, after it has reached the disk.
 * Every method fails with INSTALL_IO.
 */
export interface Disk {
  readonly look: (path: string) => Promise<Standing>;
  /** Names in a directory, in alphabetical order; none when it is missing. */
  readonly list: (directory: string) => Promise<readonly string[]>;
  /** Makes a directory and those above it, where they are missing. */
  readonly makeDirectory: (path: string) => Promise<void>;
  /** Writes a file beside `path`, under a name that no container runtime loads or runs. @returns its path */
  readonly stage: (path: string, content: FileContent) => Promise<string>;
  /** Atomically replaces `path` with the staged file. */
  readonly commit: (staged: string, path: string) => Promise<void>;
  /** The staged file goes; without one, nothing happens. */
  readonly discard: (staged: string) => Promise<void>;
  /** Atomically replaces `path` with a symbolic link. */
  readonly link: (path: string, target: string) => Promise<void>;
  /** Removes a file or a link; without one, nothing happens. */
  readonly remove: (path: string) => Promise<void>;
  /** Removes staged files that were left by installers that died before `beforeMs`, in milliseconds since the epoch. */
  readonly sweep: (directory: string, beforeMs: number) => Promise<void>;
}

/** No program of CNI and no network configuration is anywhere near. */
const MAX_FILE_BYTES = 64 * 1024 * 1024;

const STAGED = /^\.podwire-install\.[0-9a-f-]+$/;

/** @param newUid - makes a unique text of hexadecimal digits and hyphens */
export function systemDisk(newUid: () => string): Disk {
  const stagedPath = (path: string): string => join(dirname(path), `.podwire-install.${newUid()}`);
  const commit = async (staged: string, path: string): Promise<void> => {
    await explain(`cannot put ${path} in place`, async () => {
      await rename(staged, path);
      await syncDirectory(dirname(path));
    });
  };
  return {
    look: (path) => explain(`cannot read ${path}`, () => look(path)),
    list: (directory) => explain(`cannot read ${directory}`, () => list(directory)),
    makeDirectory: (path) => explain(`cannot make ${path}`, () => makeDirectory(path)),
    stage: async (path, content) => {
      const staged = stagedPath(path);
      await explain(`cannot write into ${dirname(path)}`, () => write(staged, content));
      return staged;
    },
    commit,
    discard: (staged) => explain(`cannot remove ${staged}`, () => rm(staged, { force: true })),
    link: async (path, target) => {
      const staged = stagedPath(path);
      await explain(`cannot write into ${dirname(path)}`, () => symlink(target, staged));
      await commit(staged, path);
    },
    remove: (path) =>
      explain(`cannot remove ${path}`, async () => {
        await rm(path, { force: true });
        await syncDirectory(dirname(path)).catch(absentOr);
      }),
    sweep: (directory, beforeMs) => explain(`cannot tidy ${directory}`, () => sweep(directory, beforeMs)),
  };
}

async function look(path: string): Promise<Standing> {
  const found = await lstat(path).catch(absentOr);
  if (found === undefined) return { kind: 'absent' };
  if (found.isSymbolicLink()) {
    const target = await readlink(path);
    return { kind: 'link', target, bytes: await readFile(path).catch(() => undefined) };
  }
  if (!found.isFile() || found.size > MAX_FILE_BYTES) return { kind: 'other' };
  const { mode, uid, gid } = found;
  return { kind: 'file', bytes: await readFile(path), mode: mode & 0o7777, owner: { uid, gid } };
}

async function makeDirectory(path: string): Promise<void> {
  await mkdir(path, { recursive: true });
}

async function list(directory: string): Promise<readonly string[]> {
  return ((await readdir(directory).catch(absentOr)) ?? []).sort();
}

async function write(path: string, { bytes, mode, owner }: FileContent): Promise<void> {
  const file = await open(path, 'wx', 0o600);
  try {
    await file.writeFile(bytes);
    if (owner !== undefined) await file.chown(owner.uid, owner.gid);
    // After the owner: changing that takes the set-user-ID bits away. And not by open: the umask is the caller's.
    await file.chmod(mode);
    await file.sync();
  } catch (error) {
    await rm(path, { force: true });
    throw error;
  } finally {
    await file.close();
  }
}

async function sweep(directory: string, beforeMs: number): Promise<void> {
  for (const name of await list(directory)) {
    if (!STAGED.test(name)) continue;
    const path = join(directory, name);
    const found = await lstat(path).catch(absentOr);
    if (found !== undefined && found.mtimeMs < beforeMs) await rm(path, { force: true });
  }
}

function absentOr(error: unknown): undefined {
  if (codeOf(error) !== 'ENOENT') throw error;
}

const NEXT_STEPS: Readonly<Record<string, string>> = {
  EACCES: 'run as root',
  EPERM: 'run as root, and look for immutable files (lsattr)',
  EROFS: 'mount the file system for writing, or set CNI_BIN_DIR and CNI_NET_DIR to directories that are',
  ENOSPC: 'free space on the file system',
  EDQUOT: 'free space on the file system',
  ENOTDIR: 'remove the file that is in a directory’s place',
};

/** Runs a step; its failure says what could not be done, why, and what to do. */
async function explain<Result>(what: string, step: () => Promise<Result>): Promise<Result> {
  try {
    return await step();
  } catch (error) {
    const reason = messageOf(error);
    const next = NEXT_STEPS[codeOf(error) ?? ''] ?? 'check the path, its permissions and the disk';
    throw new Failure('INSTALL_IO', `${what} (${reason}): ${next}`, { cause: error });
  }
}

interface Change {
  readonly path: string;
  readonly before: Standing;
  /** What was put there; undefined when it was removed. */
  readonly after: Buffer | undefined;
}

/** The changes that an installation made so far, each with what was there before. */
export class Changes {
  readonly #disk: Disk;
  readonly #made: Change[] = [];

  constructor(disk: Disk) {
    this.#disk = disk;
  }

  /** Paths that were changed, in that order. */
  get paths(): readonly string[] {
    return this.#made.map(({ path }) => path);
  }

  /**
   * Puts a file in place.
   * @param check - looks at the file before it is visible; when it throws, nothing has changed
   */
  async put(path: string, content: FileContent, check?: (staged: string) => Promise<void>): Promise<void> {
    const before = await this.#disk.look(path);
    const staged = await this.#disk.stage(path, content);
    try {
      await check?.(staged);
      // First: a rename that fails to reach the disk is there all the same.
      this.#made.push({ path, before, after: content.bytes });
      await this.#disk.commit(staged, path);
    } catch (error) {
      await this.#disk.discard(staged);
      throw error;
    }
  }

  async remove(path: string): Promise<void> {
    this.#made.push({ path, before: await this.#disk.look(path), after: undefined });
    await this.#disk.remove(path);
  }

  /**
   * Restores the previous state, last change first. Files modified by another process since are kept.
   * @returns the paths that could not be restored, with the reason
   */
  async undo(): Promise<readonly string[]> {
    const left: string[] = [];
    for (const change of this.#made.splice(0).reverse()) {
      try {
        const reason = await this.#undoOne(change);
        if (reason !== undefined) left.push(`${change.path} ${reason}`);
      } catch (error) {
        left.push(messageOf(error));
      }
    }
    return left;
  }

  async #undoOne({ path, before, after }: Change): Promise<string | undefined> {
    const standing = await this.#disk.look(path);
    if (isSame(standing, before)) return undefined;
    const isAsLeft = after === undefined ? standing.kind === 'absent' : holds(standing, after);
    if (!isAsLeft) return 'was changed by somebody else meanwhile, and stays as it is';
    switch (before.kind) {
      case 'absent':
        await this.#disk.remove(path);
        return undefined;
      case 'link':
        await this.#disk.link(path, before.target);
        return undefined;
      case 'file':
        await this.#disk.commit(await this.#disk.stage(path, before), path);
        return undefined;
      case 'other':
        return 'cannot be put back';
    }
  }
}

/** Whether a path is a file with these bytes. */
export function holds(standing: Standing, bytes: Buffer): boolean {
  return standing.kind === 'file' && standing.bytes.equals(bytes);
}

function isSame(one: Standing, other: Standing): boolean {
  switch (one.kind) {
    case 'file':
      return other.kind === 'file' && one.bytes.equals(other.bytes) && one.mode === other.mode;
    case 'link':
      return other.kind === 'link' && one.target === other.target;
    case 'absent':
    case 'other':
      return one.kind === other.kind;
  }
}

import { lstat, mkdir, open, readdir, readFile, readlink, rename, rm, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, ignoreAbsent, messageOf } from '@podwire/shared/failure/thrown';
import { syncDirectory } from '@podwire/shared/files/sync-directory';

/** Content, permissions and owner of a file. */
export interface FileContent {
  readonly bytes: Buffer;
  /** Permission bits. */
  readonly mode: number;
  /** Default: owner and group of the process. */
  readonly owner?: { readonly uid: number; readonly gid: number };
}

/** Content of a path, with everything needed to restore it. */
export type PathState =
  | { readonly kind: 'absent' }
  | ({ readonly kind: 'file' } & FileContent)
  /** A symbolic link; with the content of its target if that is a file. */
  | { readonly kind: 'link'; readonly target: string; readonly bytes: Buffer | undefined }
  /** A directory, a device, or a file larger than {@link MAX_FILE_BYTES}. */
  | { readonly kind: 'other' };

/**
 * The steps of an installation. Each is atomic, even if the process or the machine dies: a file is synced to disk, then renamed
 * within its directory. All methods throw Failure INSTALL_IO.
 */
export interface Disk {
  readonly inspect: (path: string) => Promise<PathState>;
  /** Names in a directory, in alphabetical order; none when it is missing. */
  readonly list: (directory: string) => Promise<readonly string[]>;
  /** Creates a directory and its missing parents. */
  readonly makeDirectory: (path: string) => Promise<void>;
  /** Writes a file beside `path`, under a name that no container runtime loads or runs. @returns its path */
  readonly stage: (path: string, content: FileContent) => Promise<string>;
  /** Atomically replaces `path` with the staged file. */
  readonly commit: (staged: string, path: string) => Promise<void>;
  /** Removes a staged file. Does nothing if it is missing. */
  readonly discard: (staged: string) => Promise<void>;
  /** Atomically replaces `path` with a symbolic link. */
  readonly link: (path: string, target: string) => Promise<void>;
  /** Removes a file or a link. Does nothing if it is missing. */
  readonly remove: (path: string) => Promise<void>;
  /** Removes staged files older than `beforeMs` (epoch milliseconds), which are leftovers of crashed installers. */
  readonly sweep: (directory: string, beforeMs: number) => Promise<void>;
}

/** Far more than any CNI program or network configuration has. */
const MAX_FILE_BYTES = 64 * 1024 * 1024;

const STAGED = /^\.podwire-install\.[0-9a-f-]+$/;

/** @param newUid - generates a unique string of hexadecimal digits and hyphens */
export function systemDisk(newUid: () => string): Disk {
  const stagedPath = (path: string): string => join(dirname(path), `.podwire-install.${newUid()}`);
  const commit = async (staged: string, path: string): Promise<void> => {
    await withNextStep(`cannot replace ${path}`, async () => {
      await rename(staged, path);
      await syncDirectory(dirname(path));
    });
  };
  return {
    inspect: (path) => withNextStep(`cannot read ${path}`, () => inspectPath(path)),
    list: (directory) => withNextStep(`cannot read ${directory}`, () => list(directory)),
    makeDirectory: (path) => withNextStep(`cannot create ${path}`, () => makeDirectory(path)),
    stage: async (path, content) => {
      const staged = stagedPath(path);
      await withNextStep(`cannot write into ${dirname(path)}`, () => write(staged, content));
      return staged;
    },
    commit,
    discard: (staged) => withNextStep(`cannot remove ${staged}`, () => rm(staged, { force: true })),
    link: async (path, target) => {
      const staged = stagedPath(path);
      await withNextStep(`cannot write into ${dirname(path)}`, () => symlink(target, staged));
      await commit(staged, path);
    },
    remove: (path) =>
      withNextStep(`cannot remove ${path}`, async () => {
        await rm(path, { force: true });
        await syncDirectory(dirname(path)).catch(ignoreAbsent);
      }),
    sweep: (directory, beforeMs) =>
      withNextStep(`cannot remove staged files of ${directory}`, () => sweep(directory, beforeMs)),
  };
}

async function inspectPath(path: string): Promise<PathState> {
  const stats = await lstat(path).catch(ignoreAbsent);
  if (stats === undefined) return { kind: 'absent' };
  if (stats.isSymbolicLink()) {
    const target = await readlink(path);
    return { kind: 'link', target, bytes: await readFile(path).catch(() => undefined) };
  }
  if (!stats.isFile() || stats.size > MAX_FILE_BYTES) return { kind: 'other' };
  const { mode, uid, gid } = stats;
  return { kind: 'file', bytes: await readFile(path), mode: mode & 0o7777, owner: { uid, gid } };
}

async function makeDirectory(path: string): Promise<void> {
  await mkdir(path, { recursive: true });
}

async function list(directory: string): Promise<readonly string[]> {
  return ((await readdir(directory).catch(ignoreAbsent)) ?? []).sort();
}

async function write(path: string, { bytes, mode, owner }: FileContent): Promise<void> {
  const file = await open(path, 'wx', 0o600);
  try {
    await file.writeFile(bytes);
    if (owner !== undefined) await file.chown(owner.uid, owner.gid);
    // The mode is set after chown, which clears the set-user-ID bit, and not in open, where the umask applies.
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
    const stats = await lstat(path).catch(ignoreAbsent);
    if (stats !== undefined && stats.mtimeMs < beforeMs) await rm(path, { force: true });
  }
}

const NEXT_STEPS: Readonly<Record<string, string>> = {
  EACCES: 'run as root',
  EPERM: 'run as root, and look for immutable files (lsattr)',
  EROFS: 'mount the file system for writing, or set CNI_BIN_DIR and CNI_NET_DIR to directories that are',
  ENOSPC: 'free space on the file system',
  EDQUOT: 'free space on the file system',
  ENOTDIR: 'remove the file that is where a directory is needed',
};

/** Runs a step. Its failure has the object, the reason and the next step. */
async function withNextStep<Result>(what: string, step: () => Promise<Result>): Promise<Result> {
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
  readonly before: PathState;
  /** The new content; undefined if the file was removed. */
  readonly after: Buffer | undefined;
}

/** The changes of an installation so far, with the state before each. */
export class Changes {
  readonly #disk: Disk;
  readonly #made: Change[] = [];

  constructor(disk: Disk) {
    this.#disk = disk;
  }

  /** Changed paths, in order. */
  get paths(): readonly string[] {
    return this.#made.map(({ path }) => path);
  }

  /**
   * Writes a file.
   * @param check - checks the staged file; if it throws, nothing is changed
   */
  async put(path: string, content: FileContent, check?: (staged: string) => Promise<void>): Promise<void> {
    const before = await this.#disk.inspect(path);
    const staged = await this.#disk.stage(path, content);
    try {
      await check?.(staged);
      // Before commit: a failed commit may have renamed the file, if only the sync of the directory failed.
      this.#made.push({ path, before, after: content.bytes });
      await this.#disk.commit(staged, path);
    } catch (error) {
      await this.#disk.discard(staged);
      throw error;
    }
  }

  async remove(path: string): Promise<void> {
    this.#made.push({ path, before: await this.#disk.inspect(path), after: undefined });
    await this.#disk.remove(path);
  }

  /**
   * Restores the previous state, last change first. Files modified by another process since are kept.
   * @returns the paths that could not be restored, with the reason
   */
  async undo(): Promise<readonly string[]> {
    const notRestored: string[] = [];
    for (const change of this.#made.splice(0).reverse()) {
      try {
        const reason = await this.#undoOne(change);
        if (reason !== undefined) notRestored.push(`${change.path} ${reason}`);
      } catch (error) {
        notRestored.push(messageOf(error));
      }
    }
    return notRestored;
  }

  async #undoOne({ path, before, after }: Change): Promise<string | undefined> {
    const state = await this.#disk.inspect(path);
    if (isSame(state, before)) return undefined;
    const isUnmodified = after === undefined ? state.kind === 'absent' : hasContent(state, after);
    if (!isUnmodified) return 'was changed by another process meanwhile and is kept';
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
        return 'cannot be restored';
    }
  }
}

/** Whether a path is a file with these bytes. */
export function hasContent(state: PathState, bytes: Buffer): boolean {
  return state.kind === 'file' && state.bytes.equals(bytes);
}

function isSame(one: PathState, other: PathState): boolean {
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

import { chmodSync, lstatSync, mkdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { connect, type Server } from 'node:net';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { Failure } from '../failure/failure.js';
import { tryLockDirectory, type DirectoryLock, type LockRequest } from '../files/directory-lock.js';
import { currentProcessId, currentUserId } from '../runtime/user.js';

/** Identity of a socket's file. A file with another identity at the same path belongs to another process. */
export interface SocketFile {
  readonly device: bigint;
  readonly inode: bigint;
}

const OWNER_ONLY_DIRECTORY = 0o700;
const OWNER_ONLY_SOCKET = 0o600;
const WRITABLE_BY_OTHERS = 0o022;
const ROOT = 0;

/**
 * Suffix of the path at which a socket is bound before it is renamed. Closing the server removes the bound path, and so never
 * the socket of another process at the final path. The suffix is short, because tools that list sockets show this path.
 */
const BOUND_SUFFIX = '~';

/** Longest path of a unix socket, in bytes (sun_path of linux/un.h, without its NUL). */
const MAX_PATH_BYTES = 107 - BOUND_SUFFIX.length;

/** Name of the lock for creating and removing sockets in a directory. */
const LOCK_NAME = '.socket-lock';

/** Timeout and poll interval for the lock that another process holds briefly while it starts to listen, in milliseconds. */
const LOCK_WAIT_MS = 5000;
const LOCK_PAUSE_MS = 50;

/**
 * Prepares the path of a unix socket that only its owner (root) can access. Creates a missing directory with mode 0700, and removes
 * the socket of a dead process.
 * @throws Failure INVALID_SETTINGS when the path is too long, its directory cannot be created, another user could replace the
 *   socket, a file other than a socket is at the path, or a process listens there
 */
export async function prepareSocket(path: string): Promise<void> {
  prepareDirectory(path);
  await withDirectoryLock(path, () => removeDeadSocket(path));
}

/**
 * Clears the path as {@link prepareSocket} does, and binds a server to it, accessible to its owner only. Of concurrent
 * processes one succeeds; the rest fail.
 * @returns the socket's file, which the caller has to remove
 * @throws Failure as {@link prepareSocket}, and when the socket cannot be created; then the server does not listen
 */
export async function bindSocket(server: Server, path: string): Promise<SocketFile | undefined> {
  prepareDirectory(path);
  const boundPath = `${path}${BOUND_SUFFIX}`;
  return withDirectoryLock(path, async () => {
    await removeDeadSocket(path);
    await removeDeadSocket(boundPath);
    try {
      await bind(server, boundPath);
      // Until now the umask set by `runProcess` restricts access.
      chmodSync(boundPath, OWNER_ONLY_SOCKET);
      renameSync(boundPath, path);
      return socketAt(path);
    } catch (error) {
      server.close();
      return failListen(path, String(error), error);
    }
  });
}

/** The identity of the file at a path; undefined where there is none. */
export function socketAt(path: string): SocketFile | undefined {
  const stats = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  return stats && { device: stats.dev, inode: stats.ino };
}

function failListen(path: string, reason: string, cause?: unknown): never {
  throw new Failure('INVALID_SETTINGS', `cannot listen at ${path}: ${reason}`, { cause });
}

function prepareDirectory(path: string): void {
  if (Buffer.byteLength(path) > MAX_PATH_BYTES) {
    failListen(path, `the path is longer than ${MAX_PATH_BYTES} bytes; shorten it`);
  }
  const directory = dirname(path);
  try {
    mkdirSync(directory, { recursive: true, mode: OWNER_ONLY_DIRECTORY });
  } catch (error) {
    failListen(path, `cannot create ${directory}: ${String(error)}`, error);
  }
  const fault = directoryFault(directory);
  if (fault !== undefined) failListen(path, fault);
}

/**
 * Runs work under the directory's lock. Without the lock, another process could create its socket between the check of a dead
 * socket and its removal.
 */
async function withDirectoryLock<T>(path: string, work: () => Promise<T>): Promise<T> {
  const lock = await lockDirectoryOf(path);
  try {
    return await work();
  } finally {
    lock.release();
  }
}

async function lockDirectoryOf(path: string): Promise<DirectoryLock> {
  const request = { directory: dirname(path), name: LOCK_NAME, owner: String(currentProcessId()) };
  for (let waitedMs = 0; ; waitedMs += LOCK_PAUSE_MS) {
    const outcome = lockNow(path, request);
    if ('lock' in outcome) return outcome.lock;
    if (waitedMs >= LOCK_WAIT_MS) {
      const other = `another process (${outcome.holder})`;
      failListen(path, `${other} has held the lock of ${request.directory} for too long; stop it first`);
    }
    await sleep(LOCK_PAUSE_MS);
  }
}

function lockNow(path: string, request: LockRequest) {
  try {
    return tryLockDirectory(request);
  } catch (error) {
    return failListen(path, `cannot lock ${request.directory}: ${String(error)}`, error);
  }
}

async function removeDeadSocket(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket()) failListen(path, 'the file there is not a socket; remove it');
  if (await isListening(path)) failListen(path, 'another process listens there; stop it first');
  rmSync(path, { force: true });
}

function bind(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject).listen(path, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

/** Prefix of the address of a unix socket. */
export const UNIX = 'unix:';

/**
 * Prepares the unix sockets among some addresses, see {@link prepareSocket}. A program that changes files or the kernel before it
 * listens calls this first, so that a second process started by mistake is refused before it changes anything.
 * @param addresses - `unix:/absolute/path` or `host:port`
 * @throws Failure as {@link prepareSocket}
 */
export async function prepareAddresses(addresses: readonly string[]): Promise<void> {
  for (const address of addresses) if (address.startsWith(UNIX)) await prepareSocket(address.slice(UNIX.length));
}

/**
 * Creates the directories of the unix sockets among some addresses, with mode 0700.
 * @throws Failure INVALID_SETTINGS when a path is too long, a directory cannot be created, or another user could replace a socket
 */
export function prepareDirectories(addresses: readonly string[]): void {
  for (const address of addresses) if (address.startsWith(UNIX)) prepareDirectory(address.slice(UNIX.length));
}

/** Why a directory is unsafe for a socket that clients trust: any user with write access there can replace it. */
function directoryFault(directory: string): string | undefined {
  const { uid, mode } = statSync(directory);
  if (uid !== ROOT && uid !== currentUserId()) {
    return `${directory} belongs to user ${uid}; change its owner to the service's user, or use another directory`;
  }
  return (mode & WRITABLE_BY_OTHERS) === 0
    ? undefined
    : `${directory} is writable by other users; run chmod go-w, or use another directory`;
}

/** Whether a process listens. A refused connection proves that none does; a busy one's full queue (EAGAIN) does not. */
function isListening(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    const done = (listening: boolean) => {
      socket.destroy();
      resolve(listening);
    };
    socket.once('connect', () => done(true));
    socket.once('error', (error: NodeJS.ErrnoException) =>
      done(error.code !== 'ECONNREFUSED' && error.code !== 'ENOENT'),
    );
  });
}

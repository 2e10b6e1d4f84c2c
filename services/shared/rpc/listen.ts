import { chmodSync, lstatSync, mkdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { connect, type Server } from 'node:net';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { Failure } from '../failure/failure.js';
import { OWNER_ANSWER_MS, tryLockDirectory, type DirectoryLock } from '../runtime/directory-lock.js';
import { currentProcessId, currentUserId } from '../runtime/user.js';
import { socketAt, type SocketFile } from './socket-owner.js';

const OWNER_ONLY_DIRECTORY = 0o700;
const OWNER_ONLY_SOCKET = 0o600;
const WRITABLE_BY_OTHERS = 0o022;
const ROOT = 0;

/**
 * What the path ends with under which a socket is bound, before it is put in place: closing removes what is at that path, and not what
 * is in place by then. Short, and beside the path itself, as tools that list sockets show this one.
 */
const BOUND_SUFFIX = '~';

/** Longest path of a unix socket, in bytes (sun_path of linux/un.h, without its NUL). */
const MAX_PATH_BYTES = 107 - BOUND_SUFFIX.length;

/** Name of the lock under which sockets are put into a directory and taken out of it. */
const LOCK_NAME = '.socket-lock';

/** Timeout and poll interval for the lock that another process holds briefly while it starts to listen, in milliseconds. */
const LOCK_WAIT_MS = 5000;
const LOCK_PAUSE_MS = 50;

/**
 * Makes way for a unix socket that only its owner (root) can reach: the directory is made with mode 0700 where it is missing, and
 * what a dead process left at the path is removed.
 * @throws Failure INVALID_SETTINGS when the path is too long, its directory cannot be made or another user could put a socket of
 *   his own there, something that is no socket is at the path, or a living process listens there
 */
export async function prepareSocket(path: string): Promise<void> {
  prepareDirectory(path);
  await alone(path, () => makeWay(path));
}

/**
 * Clears the path as {@link prepareSocket} does, and binds a server to it, accessible to its owner only. Of concurrent
 * processes one succeeds; the rest fail.
 * @returns the socket's file, which the server has to remove
 * @throws Failure as {@link prepareSocket}, and when the socket cannot be made; the server does not listen then
 */
export async function bindSocket(server: Server, path: string): Promise<SocketFile | undefined> {
  prepareDirectory(path);
  const boundPath = `${path}${BOUND_SUFFIX}`;
  return alone(path, async () => {
    await makeWay(path);
    await makeWay(boundPath);
    try {
      await bind(server, boundPath);
      // Until now the umask set by `runProcess` restricts access.
      chmodSync(boundPath, OWNER_ONLY_SOCKET);
      renameSync(boundPath, path);
      return socketAt(path);
    } catch (error) {
      server.close();
      return refuse(path, String(error), error);
    }
  });
}

function refuse(path: string, reason: string, cause?: unknown): never {
  throw new Failure('INVALID_SETTINGS', `cannot listen at ${path}: ${reason}`, { cause });
}

function prepareDirectory(path: string): void {
  if (Buffer.byteLength(path) > MAX_PATH_BYTES) {
    refuse(path, `the path is longer than ${MAX_PATH_BYTES} bytes; shorten it`);
  }
  const directory = dirname(path);
  try {
    mkdirSync(directory, { recursive: true, mode: OWNER_ONLY_DIRECTORY });
  } catch (error) {
    refuse(path, `cannot make ${directory}: ${String(error)}`, error);
  }
  const fault = directoryFault(directory);
  if (fault !== undefined) refuse(path, fault);
}

/**
 * Does something while no other process puts sockets into the directory: between the look at a dead socket and its removal, another
 * process could put its own there.
 */
async function alone<T>(path: string, work: () => Promise<T>): Promise<T> {
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
    const outcome = await tryLockDirectory(request).catch((error: unknown) =>
      refuse(path, `cannot lock ${request.directory}: ${String(error)}`, error),
    );
    if ('lock' in outcome) return outcome.lock;
    const { holder, isSilent } = outcome;
    if (isSilent) waitedMs += OWNER_ANSWER_MS;
    if (waitedMs >= LOCK_WAIT_MS) {
      const other = `another process (${holder}${isSilent ? ', which does not answer' : ''})`;
      refuse(path, `${other} begins to listen in ${request.directory} and does not come to an end; stop it first`);
    }
    await sleep(LOCK_PAUSE_MS);
  }
}

async function makeWay(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket()) refuse(path, 'a file that is no socket is there; remove it');
  if (await isListening(path)) refuse(path, 'another process listens there; stop it first');
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

/** What an address of a unix socket begins with. */
export const UNIX = 'unix:';

/**
 * Makes way for the unix sockets among some addresses, as {@link prepareSocket} does. Whoever works on files or the kernel before he
 * listens asks this first: a second process that is started by mistake is to be refused before it has changed anything.
 * @param addresses - `unix:/absolute/path` or `host:port`
 * @throws Failure as {@link prepareSocket}
 */
export async function prepareAddresses(addresses: readonly string[]): Promise<void> {
  for (const address of addresses) if (address.startsWith(UNIX)) await prepareSocket(address.slice(UNIX.length));
}

/** Why a directory is unsafe for a socket that clients trust: any user with write access there can replace it. */
function directoryFault(directory: string): string | undefined {
  const { uid, mode } = statSync(directory);
  if (uid !== ROOT && uid !== currentUserId()) {
    return `${directory} belongs to the user ${uid}; give it to the service's own user or name another directory`;
  }
  return (mode & WRITABLE_BY_OTHERS) === 0
    ? undefined
    : `others may write in ${directory}; take that away with chmod go-w or name another directory`;
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

import { chmodSync, lstatSync, mkdirSync, rmSync, statSync } from 'node:fs';
import { connect } from 'node:net';
import { dirname } from 'node:path';

import { Failure } from '../failure/failure.js';
import { currentUserId } from '../runtime/user.js';

const OWNER_ONLY_DIRECTORY = 0o700;
const OWNER_ONLY_SOCKET = 0o600;
const WRITABLE_BY_OTHERS = 0o022;
const ROOT = 0;

/** Longest path of a unix socket, in bytes (sun_path of linux/un.h, with its NUL). */
const MAX_PATH_BYTES = 107;

/**
 * Makes way for a unix socket that only its owner (root) can reach: the directory is made with mode 0700 where it is missing, and
 * what a dead process left at the path is removed.
 * @throws Failure INVALID_SETTINGS when the path is too long, its directory cannot be made or another user could put a socket of
 *   his own there, something that is no socket is at the path, or a living process listens there
 */
export async function prepareSocket(path: string): Promise<void> {
  const refuse = (reason: string, cause?: unknown): never => {
    throw new Failure('INVALID_SETTINGS', `cannot listen at ${path}: ${reason}`, { cause });
  };
  if (Buffer.byteLength(path) > MAX_PATH_BYTES) refuse(`the path is longer than ${MAX_PATH_BYTES} bytes; shorten it`);
  const directory = dirname(path);
  try {
    mkdirSync(directory, { recursive: true, mode: OWNER_ONLY_DIRECTORY });
  } catch (error) {
    refuse(`cannot make ${directory}: ${String(error)}`, error);
  }
  const fault = directoryFault(directory);
  if (fault !== undefined) refuse(fault);
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket()) refuse('a file that is no socket is there; remove it');
  if (await isListening(path)) refuse('another process listens there; stop it first');
  rmSync(path, { force: true });
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

/** Why a directory is no place for a socket that clients trust: whoever may write there can put another in its place. */
function directoryFault(directory: string): string | undefined {
  const { uid, mode } = statSync(directory);
  if (uid !== ROOT && uid !== currentUserId()) {
    return `${directory} belongs to the user ${uid}; give it to the service's own user or name another directory`;
  }
  return (mode & WRITABLE_BY_OTHERS) === 0
    ? undefined
    : `others may write in ${directory}; take that away with chmod go-w or name another directory`;
}

/** Leaves the socket to its owner alone. Until then the umask that `runProcess` sets keeps others out. */
export function restrictSocket(path: string): void {
  chmodSync(path, OWNER_ONLY_SOCKET);
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

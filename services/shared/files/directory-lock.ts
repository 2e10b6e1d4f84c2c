import { randomUUID } from 'node:crypto';
import { closeSync, linkSync, openSync, readdirSync, readlinkSync, rmSync, symlinkSync } from 'node:fs';
import { connect, createServer, type Server } from 'node:net';

import { codeOf } from '../failure/thrown.js';

/**
 * Locks a directory for one process, until it releases the lock or dies.
 *
 * Node has no flock. A PID file cannot distinguish a dead owner from one in another PID namespace, and an abstract
 * socket is invisible from another network namespace. A unix socket in the directory is visible to every process that
 * sees the directory, and the kernel refuses connections to it once its process has died, SIGKILL included.
 *
 * The remaining problem is to replace a dead owner's socket without a race. Sockets are numbered, `<name>.<n>`; the
 * owner of the highest number owns the directory. To take over from a dead `n`, a process links `n+1` (link(2)) to a socket
 * that already listens. Only one process can do so, and a socket that refuses connections under such a name is
 * permanently dead. Lower numbers are removed, so a slow process may link one of them again. The highest number is
 * never removed, not even on release. So that process finds a higher number, and starts over.
 */
export interface DirectoryLock {
  release(): void;
}

/** Timeout for the owner's answer, in milliseconds. The owner may be busy. */
export const OWNER_ANSWER_MS = 1000;

export interface LockRequest {
  readonly directory: string;
  /** Base name of the lock's files; locks with another name in the same directory are independent. */
  readonly name: string;
  /** Shown to a process that finds the lock held. */
  readonly owner: string;
}

/** The current owner of a lock. */
export interface Holder {
  /** Its {@link LockRequest.owner}: its answer, or the note beside its lock where it does not answer; else `unknown`. */
  readonly holder: string;
  /** Whether the owner is alive and does not answer. It may be frozen, or very busy. */
  readonly isSilent: boolean;
}

/** @returns the lock, or its current owner */
export async function tryLockDirectory(request: LockRequest): Promise<{ readonly lock: DirectoryLock } | Holder> {
  const { directory, name } = request;
  // Socket paths are limited to 107 bytes. Through the descriptor, the directory's path may have any length.
  const descriptor = openSync(directory, 'r');
  const path = (file: string): string => `/proc/self/fd/${descriptor}/${file}`;
  try {
    for (;;) {
      const highest = highestNumber(request);
      const answer = highest === 0 ? undefined : await probe(path(`${name}.${highest}`));
      if (answer !== undefined) {
        const left = answer === '' ? readNote(path(noteOf(`${name}.${highest}`))) : answer;
        return { holder: left || 'unknown', isSilent: answer === '' };
      }
      const server = await take(path, `${name}.${highest + 1}`, request.owner);
      if (!server) continue;
      if (highestNumber(request) === highest + 1) {
        clearBelow(request, highest + 1);
        leaveNote(path(noteOf(`${name}.${highest + 1}`)), request.owner);
        const release = (): void => {
          dropNote(noteOf(`${directory}/${name}.${highest + 1}`));
          server.close();
        };
        return { lock: { release } };
      }
      server.close();
      rmSync(path(`${name}.${highest + 1}`), { force: true });
    }
  } finally {
    closeSync(descriptor);
  }
}

/** Path of the note with the owner's name, for when the owner cannot answer: a dangling symlink whose target is the name. */
function noteOf(file: string): string {
  return `${file}.owner`;
}

function leaveNote(path: string, owner: string): void {
  dropNote(path);
  try {
    symlinkSync(owner, path);
  } catch {
    // The note only serves a message.
  }
}

function dropNote(path: string): void {
  try {
    rmSync(path, { force: true });
  } catch {
    // A stale note is only read while the lock's owner does not answer.
  }
}

function readNote(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}

function highestNumber(request: LockRequest): number {
  return Math.max(0, ...numbers(request));
}

function numbers({ directory, name }: LockRequest): number[] {
  return readdirSync(directory)
    .filter((file) => file.startsWith(`${name}.`))
    .map((file) => file.slice(name.length + 1))
    .filter((rest) => /^\d+$/.test(rest))
    .map(Number);
}

/** @returns the listening server; undefined when another process has linked the name first */
async function take(path: (file: string) => string, name: string, owner: string): Promise<Server | undefined> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.end(`${owner}\n`);
  });
  server.unref();
  // A random name: processes of two PID namespaces may have the same PID, and so the same owner name.
  const temporaryPath = path(`fresh.${randomUUID()}`);
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(temporaryPath, resolve);
  });
  try {
    linkSync(temporaryPath, path(name));
    return server;
  } catch (error) {
    server.close();
    if (codeOf(error) === 'EEXIST') return undefined;
    throw error;
  } finally {
    rmSync(temporaryPath, { force: true });
  }
}

function clearBelow(request: LockRequest, number: number): void {
  const { directory, name } = request;
  for (const lower of numbers(request)) {
    if (lower >= number) continue;
    rmSync(`${directory}/${name}.${lower}`, { force: true });
    dropNote(noteOf(`${directory}/${name}.${lower}`));
  }
}

/** @returns the owner's answer; empty where it does not answer; undefined when the socket is dead */
function probe(path: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    let answer = '';
    const socket = connect(path);
    socket.setTimeout(OWNER_ANSWER_MS, () => socket.destroy());
    socket.setEncoding('utf8').on('data', (text: string) => (answer += text));
    // Only these two errors mean that no process listens. A full backlog means that the owner is alive.
    socket.on('error', (error) => {
      if (codeOf(error) === 'ECONNREFUSED' || codeOf(error) === 'ENOENT') resolve(undefined);
    });
    socket.on('close', () => resolve(answer.trim()));
  });
}

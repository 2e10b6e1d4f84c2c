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
 * highest number owns the directory. To take over from a dead `n`, a process creates `n+1` by link(2), which only one
 * can do, from a socket that already listens: so a socket under such a name is alive, or dead for ever. The highest
 * number is never removed, not even on release, so a process that linked a lower number, because lower ones had been
 * cleared away, sees that and starts over.
 */
export interface DirectoryLock {
  release(): void;
}

/** How long the owner's own word on who it is is waited for, in milliseconds. It may be busy. */
export const OWNER_ANSWER_MS = 1000;

export interface LockRequest {
  readonly directory: string;
  /** Base name of the lock's files; locks with another name in the same directory are independent. */
  readonly name: string;
  /** Shown to a process that finds the lock held. */
  readonly owner: string;
}

/** Who has a directory. */
export interface Holder {
  /** What it calls itself, or had left beside its lock where it is silent; `unknown` where neither is known. */
  readonly holder: string;
  /** Whether it is alive and does not answer: it may be frozen, or very busy. */
  readonly isSilent: boolean;
}

/** @returns the lock, or its current owner */
export async function tryLockDirectory(request: LockRequest): Promise<{ readonly lock: DirectoryLock } | Holder> {
  const { directory, name } = request;
  // Socket paths end at 107 bytes; through the descriptor, the directory's own path may have any length.
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

/** Beside a lock's file, for when its owner cannot answer: a link that leads nowhere, to the owner's name. */
function noteOf(file: string): string {
  return `${file}.owner`;
}

function leaveNote(path: string, owner: string): void {
  dropNote(path);
  try {
    symlinkSync(owner, path);
  } catch {
    // Nobody needs it but for a message.
  }
}

function dropNote(path: string): void {
  try {
    rmSync(path, { force: true });
  } catch {
    // As above; who cannot remove it reads it only where the lock's owner is silent.
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

/** @returns undefined when another process was faster */
async function take(path: (file: string) => string, name: string, owner: string): Promise<Server | undefined> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.end(`${owner}\n`);
  });
  server.unref();
  // Not named by the owner: processes of two PID namespaces may have the same PID.
  const fresh = path(`fresh.${randomUUID()}`);
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(fresh, resolve);
  });
  try {
    linkSync(fresh, path(name));
    return server;
  } catch (error) {
    server.close();
    if (codeOf(error) === 'EEXIST') return undefined;
    throw error;
  } finally {
    rmSync(fresh, { force: true });
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

/** @returns who listens, by its own word; empty where it says nothing; undefined when the socket is dead */
function probe(path: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    let answer = '';
    const socket = connect(path);
    socket.setTimeout(OWNER_ANSWER_MS, () => socket.destroy());
    socket.setEncoding('utf8').on('data', (text: string) => (answer += text));
    // A full backlog means alive; only these two errors mean that no process listens.
    socket.on('error', (error) => {
      if (codeOf(error) === 'ECONNREFUSED' || codeOf(error) === 'ENOENT') resolve(undefined);
    });
    socket.on('close', () => resolve(answer.trim()));
  });
}

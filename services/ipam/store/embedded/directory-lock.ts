import { closeSync, linkSync, openSync, readdirSync, rmSync } from 'node:fs';
import { connect, createServer, type Server } from 'node:net';

import { Failure } from '@podwire/shared/failure/failure';

/**
 * Keeps a directory to one process, for as long as the process lives and not a moment longer.
 *
 * Node has no flock; a file with a process ID cannot tell a dead owner from one in another PID namespace, and an abstract
 * socket is not seen from another network namespace. A unix socket in the directory itself is seen by all who see the
 * directory, and the kernel refuses connections to it from the moment its process has died, SIGKILL included.
 *
 * What is left is to replace a dead owner's socket without a race. Sockets are numbered, `lock.<n>`, and the directory belongs to
 * the highest number. To take over from a dead `n` is to make `n+1`, by link(2), which only one can do, from a socket that
 * listens already: so a socket under such a name is alive, or dead for ever. The highest number is never removed, not
 * even when it is given up, so whoever linked a number below it, because lower ones had been cleared away, sees that and starts over.
 */
export interface DirectoryLock {
  release(): void;
}

const NAME = /^lock\.(\d+)$/;

/** How long to wait for the owner's own word on who it is, in milliseconds. It may be busy. */
const OWNER_ANSWER_MS = 1000;

/**
 * @param owner - this process, as the message of those it keeps out names it: its PID
 * @throws Failure STORE_IN_USE naming the directory and the owner
 */
export async function lockDirectory(directory: string, owner: string): Promise<DirectoryLock> {
  // Socket paths end at 107 bytes; through the descriptor, the directory's own path may have any length.
  const descriptor = openSync(directory, 'r');
  const path = (name: string): string => `/proc/self/fd/${descriptor}/${name}`;
  try {
    for (;;) {
      const highest = highestNumber(directory);
      const holder = highest === 0 ? undefined : await probe(path(`lock.${highest}`));
      if (holder !== undefined) throw inUse(directory, holder);
      const server = await take(path, highest + 1, owner);
      if (!server) continue;
      if (highestNumber(directory) === highest + 1) {
        clearBelow(directory, highest + 1);
        return { release: () => server.close() };
      }
      server.close();
      rmSync(path(`lock.${highest + 1}`), { force: true });
    }
  } finally {
    closeSync(descriptor);
  }
}

function highestNumber(directory: string): number {
  return Math.max(0, ...numbers(directory));
}

function numbers(directory: string): number[] {
  return readdirSync(directory)
    .flatMap((name) => NAME.exec(name)?.[1] ?? [])
    .map(Number);
}

/** @returns undefined when another process was faster */
async function take(path: (name: string) => string, number: number, owner: string): Promise<Server | undefined> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.end(`${owner}\n`);
  });
  server.unref();
  const fresh = path(`fresh.${owner}.${number}`);
  rmSync(fresh, { force: true });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(fresh, resolve);
  });
  try {
    linkSync(fresh, path(`lock.${number}`));
    return server;
  } catch (error) {
    server.close();
    if (isErrno(error, 'EEXIST')) return undefined;
    throw error;
  } finally {
    rmSync(fresh, { force: true });
  }
}

function clearBelow(directory: string, number: number): void {
  for (const lower of numbers(directory)) if (lower < number) rmSync(`${directory}/lock.${lower}`, { force: true });
}

/** @returns who listens, or undefined when the socket is dead */
function probe(path: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    let answer = '';
    const socket = connect(path);
    socket.setTimeout(OWNER_ANSWER_MS, () => socket.destroy());
    socket.setEncoding('utf8').on('data', (text: string) => (answer += text));
    // A full backlog is a sign of life; only these two say that nobody listens.
    socket.on('error', (error) => {
      if (isErrno(error, 'ECONNREFUSED') || isErrno(error, 'ENOENT')) resolve(undefined);
    });
    socket.on('close', () => resolve(answer.trim() || 'unknown'));
  });
}

function isErrno(error: unknown, code: string): boolean {
  return error instanceof Error && 'code' in error && error.code === code;
}

function inUse(directory: string, owner: string): Failure {
  return new Failure(
    'STORE_IN_USE',
    `the datastore in ${directory} is open in the process with PID ${owner}: stop that one, or give this one another directory`,
    { details: { directory, pid: owner } },
  );
}

import { lstatSync, rmSync } from 'node:fs';

import { messageOf } from '../failure/thrown.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';

/** Identity of a socket's file. A file with another identity at the same path belongs to another process. */
export interface SocketFile {
  readonly device: bigint;
  readonly inode: bigint;
}

/** The identity of the file at a path; undefined where there is none. */
export function socketAt(path: string): SocketFile | undefined {
  const stats = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  return stats && { device: stats.dev, inode: stats.ino };
}

function isSameFile(one: SocketFile | undefined, other: SocketFile | undefined): boolean {
  return one !== undefined && one.device === other?.device && one.inode === other.inode;
}

/** Removes the socket at a path, if it is still the own one. */
export function removeOwnSocket(path: string, own: SocketFile | undefined): void {
  if (isSameFile(own, socketAt(path))) rmSync(path, { force: true });
}

export interface WatchedSocket {
  readonly path: string;
  readonly log: Logger;
  readonly clock: Clock;
  /** The socket that this process opened last. */
  readonly own: () => SocketFile | undefined;
  /** Creates the socket again; rejects if another process has its own at the path. */
  readonly open: () => Promise<void>;
  /** Ends the watch. */
  readonly stopped: AbortSignal;
}

/** Interval of the check for a deleted socket, in milliseconds. It is well below the timeout of the shim. */
const SOCKET_CHECK_MS = 1000;

/** Watches the path of a socket, and creates a deleted socket again, because clients connect by path. */
export async function watchSocket({ path, log, clock, own, open, stopped }: WatchedSocket): Promise<void> {
  let reportedReason: string | undefined;
  while ((await clock.sleep(SOCKET_CHECK_MS, stopped)) === 'elapsed') {
    try {
      if (isSameFile(own(), socketAt(path))) continue;
      if (reportedReason === undefined) log.warn({ path }, `socket ${path} was deleted: creating it again`);
      await open();
      if (!stopped.aborted) log.info({ path }, `socket ${path} is created again`);
      reportedReason = undefined;
    } catch (error) {
      const reason = messageOf(error);
      if (reportedReason !== reason)
        log.error({ err: error, path }, `socket ${path} cannot be created, so no call reaches this process: ${reason}`);
      reportedReason = reason;
    }
  }
}

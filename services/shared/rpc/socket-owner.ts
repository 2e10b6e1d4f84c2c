import { lstatSync, rmSync } from 'node:fs';

import { messageOf } from '../failure/thrown.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';

/** Which file a socket is: another one at the same path is another's. */
export interface SocketFile {
  readonly device: bigint;
  readonly inode: bigint;
}

/** What is at a path now. */
export function socketAt(path: string): SocketFile | undefined {
  const stats = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  return stats && { device: stats.dev, inode: stats.ino };
}

function isSameFile(one: SocketFile | undefined, other: SocketFile | undefined): boolean {
  return one !== undefined && one.device === other?.device && one.inode === other.inode;
}

/** Takes the path away from callers, where the socket at it is still ours. */
export function removeOwnSocket(path: string, own: SocketFile | undefined): void {
  if (isSameFile(own, socketAt(path))) rmSync(path, { force: true });
}

export interface WatchedSocket {
  readonly path: string;
  readonly log: Logger;
  readonly clock: Clock;
  /** The socket that was opened last. */
  readonly own: () => SocketFile | undefined;
  /** Creates the socket again; rejects if another process has its own at the path. */
  readonly open: () => Promise<void>;
  /** Ends the looking after. */
  readonly stopped: AbortSignal;
}

/** Interval of the check for a deleted socket, in milliseconds: well below the time that the shim waits. */
const SOCKET_CHECK_MS = 1000;

/** Watches a socket's path, by which callers find it, and creates a deleted socket again. */
export async function watchSocket({ path, log, clock, own, open, stopped }: WatchedSocket): Promise<void> {
  let told: string | undefined;
  while ((await clock.sleep(SOCKET_CHECK_MS, stopped)) === 'elapsed') {
    try {
      if (isSameFile(own(), socketAt(path))) continue;
      if (told === undefined) log.warn({ path }, `the socket ${path} is gone: it is made anew`);
      await open();
      if (!stopped.aborted) log.info({ path }, `the socket ${path} is there again`);
      told = undefined;
    } catch (error) {
      const reason = messageOf(error);
      if (told !== reason) log.error({ err: error, path }, `no call reaches this process: ${reason}`);
      told = reason;
    }
  }
}

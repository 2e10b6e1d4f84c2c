import { closeSync, constants, ftruncateSync, openSync, readFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';

import { tryLockFile } from '@podwire/netlink/file-lock';

/**
 * A directory that belongs to one process until it releases the lock or dies: flock(2) of a file in the directory, which
 * every process sees that sees the directory, in whatever namespaces. The file names the process. It is never removed,
 * because a process that has opened it could lock the removed file.
 */
export interface DirectoryLock {
  release(): void;
}

export interface LockRequest {
  readonly directory: string;
  /** Name of the lock's file; locks with another name in the same directory are independent. */
  readonly name: string;
  /** Shown to a process that finds the lock held. */
  readonly owner: string;
}

/** The current owner of a lock. */
export interface Holder {
  /** Its {@link LockRequest.owner}; `unknown` if it could not write that. */
  readonly holder: string;
}

const OWNER_ONLY = 0o600;

/**
 * @returns the lock, or its current owner
 * @throws Error when the file cannot be created or locked
 */
export function tryLockDirectory({ directory, name, owner }: LockRequest): { readonly lock: DirectoryLock } | Holder {
  // Node.js opens with O_CLOEXEC, so that child processes do not keep the lock.
  const descriptor = openSync(join(directory, name), constants.O_RDWR | constants.O_CREAT, OWNER_ONLY);
  let isLocked = false;
  try {
    isLocked = tryLockFile(descriptor);
    if (!isLocked) return { holder: readFileSync(descriptor, 'utf8') || 'unknown' };
    noteOwner(descriptor, owner);
    return { lock: { release: () => closeSync(descriptor) } };
  } finally {
    if (!isLocked) closeSync(descriptor);
  }
}

function noteOwner(descriptor: number, owner: string): void {
  try {
    ftruncateSync(descriptor);
    writeSync(descriptor, owner, 0);
  } catch {
    // The name only serves a message; the disk may be full.
  }
}

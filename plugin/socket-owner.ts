import { lstatSync, renameSync, rmSync } from 'node:fs';

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

export function isSameFile(one: SocketFile | undefined, other: SocketFile | undefined): boolean {
  return one !== undefined && one.device === other?.device && one.inode === other.inode;
}

/** Puts a listening socket from the path that it was bound at to the one that callers know. */
export function putInPlace(boundPath: string, path: string): SocketFile | undefined {
  renameSync(boundPath, path);
  return socketAt(path);
}

/** Takes the path away from callers, where the socket at it is still ours. */
export function removeOwn(path: string, own: SocketFile | undefined): void {
  if (isSameFile(own, socketAt(path))) rmSync(path, { force: true });
}

import { NetlinkError } from './errors.js';
import { loadBinding } from './load.js';
import { checkInteger } from './scalars.js';

const DESCRIPTOR = { min: 0, max: 2 ** 31 - 1 };

/**
 * Takes the exclusive lock of an open file (flock(2)), and does not wait for it. The lock ends when the descriptor is
 * closed, also by the end of the process. It excludes other descriptors of this process, too.
 * @returns whether the lock was free
 * @throws NetlinkError (EBADF, ENOLCK) or ArgumentError
 */
export function tryLockFile(descriptor: number): boolean {
  const answer = loadBinding().lockFile(checkInteger('descriptor', descriptor, DESCRIPTOR));
  if (typeof answer === 'boolean') return answer;
  const object = `of file descriptor ${descriptor}`;
  throw new NetlinkError({
    operation: 'file.lock',
    object,
    errno: answer.errno,
    kernelMessage: answer.text ?? undefined,
  });
}

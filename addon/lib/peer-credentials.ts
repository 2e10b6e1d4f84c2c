import { NetlinkError } from './errors.js';
import { loadBinding } from './load.js';
import { checkInteger } from './scalars.js';

/** The process at the other end of a unix socket. */
export interface PeerCredentials {
  /** Process ID in this process's PID namespace; 0 for a process outside of it. */
  readonly pid: number;
  /**
   * Effective user ID in this process's user namespace. 65534 also stands for every user that the namespace does not map
   * (user_namespaces(7), overflow IDs).
   */
  readonly uid: number;
  /** Effective group ID, with the same exception. */
  readonly gid: number;
}

const DESCRIPTOR = { min: 0, max: 2 ** 31 - 1 };

/**
 * Loads the addon, and returns a function that reads the peer of a connected unix socket, given its file descriptor:
 * SO_PEERCRED of unix(7). For the accepting side the kernel notes it at connect(2), for the connecting side at
 * listen(2); a process that changes its user or hands its descriptor over later does not change it.
 *
 * The function does not block. It throws a `NetlinkError` (EBADF, ENOTSOCK; ENOTCONN for another kind of socket) or an
 * `ArgumentError`.
 */
export function peerCredentialsReader(): (descriptor: number) => PeerCredentials {
  const binding = loadBinding();
  return (descriptor) => {
    const answer = binding.peerCredentials(checkInteger('descriptor', descriptor, DESCRIPTOR));
    if (!('errno' in answer)) return answer;
    throw new NetlinkError({
      operation: 'peer.credentials',
      object: `of file descriptor ${descriptor}`,
      errno: answer.errno,
      kernelMessage: answer.text ?? undefined,
    });
  };
}

import type { Socket } from 'node:net';

import { peerCredentialsReader, type PeerCredentials } from '@podwire/netlink/peer-credentials';

import { messageOf } from '../failure/thrown.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { currentUserId } from '../runtime/user.js';

const ROOT = 0;

/**
 * The user ID that stands for every user that this process's user namespace does not map (user_namespaces(7),
 * /proc/sys/kernel/overflowuid). It proves nothing, also to a process that runs as this user.
 */
const UNMAPPED = 65_534;

/** Interval between two log lines about the same user, in milliseconds. */
const LOG_INTERVAL_MS = 60_000;

/** Whether a user may call a service that runs as the user `own`: root and the service's own user. */
export function isTrustedUser(uid: number, own: number): boolean {
  return uid === ROOT || (uid === own && uid !== UNMAPPED);
}

export interface PeerCheckOptions {
  /** Path of the unix socket, for log lines. */
  readonly path: string;
  readonly log: Logger;
  readonly clock: Clock;
}

/**
 * Refuses connections of other users at a unix socket. The permissions of socket and directory keep them away; this check holds
 * where those were widened, and for a process that has CAP_DAC_OVERRIDE without being root.
 */
export class PeerCheck {
  readonly #options: PeerCheckOptions;
  readonly #read: (descriptor: number) => PeerCredentials;
  /** When a refusal of each user was logged last, in milliseconds; undefined for unreadable credentials. */
  readonly #loggedMs = new Map<number | undefined, number>();

  /** @throws Error when the addon that reads the credentials cannot be loaded */
  constructor(options: PeerCheckOptions) {
    this.#options = options;
    this.#read = peerCredentialsReader();
  }

  /** Whether an accepted connection may be served. Otherwise it is closed, and logged once per user and minute. */
  admits(connection: Socket): boolean {
    const own = currentUserId();
    try {
      const peer = this.#read(descriptorOf(connection));
      if (isTrustedUser(peer.uid, own)) return true;
      if (this.#isLogDue(peer.uid)) this.#logRefusal(peer, own);
    } catch (error) {
      const { path, log } = this.#options;
      if (this.#isLogDue(undefined))
        log.error({ err: error, path }, `socket ${path}: refused a connection: ${messageOf(error)}`);
    }
    connection.destroy();
    return false;
  }

  #logRefusal({ uid, gid, pid }: PeerCredentials, own: number): void {
    const { path, log } = this.#options;
    const user = uid === UNMAPPED ? `${uid} (which stands for users that this user namespace does not map)` : uid;
    const process = pid === 0 ? 'a process outside of this PID namespace' : `process ${pid}`;
    const users = own === ROOT ? 'root' : `root or user ${own}`;
    log.warn(
      { path, uid, gid, pid },
      `socket ${path}: refused a connection of user ${user}, ${process}; run it as ${users}, or find out why the permissions of the socket let it connect`,
    );
  }

  #isLogDue(uid: number | undefined): boolean {
    const nowMs = this.#options.clock.monotonicMs();
    for (const [logged, atMs] of this.#loggedMs) if (nowMs - atMs >= LOG_INTERVAL_MS) this.#loggedMs.delete(logged);
    if (this.#loggedMs.has(uid)) return false;
    this.#loggedMs.set(uid, nowMs);
    return true;
  }
}

/** The file descriptor of an open connection. Node.js has no public name for it; without it no connection is served. */
function descriptorOf(connection: Socket): number {
  const handle: unknown = Reflect.get(connection, '_handle');
  const descriptor: unknown = typeof handle === 'object' && handle !== null ? Reflect.get(handle, 'fd') : undefined;
  if (typeof descriptor === 'number') return descriptor;
  throw new Error(
    'this release of Node.js does not show the file descriptor of a connection; use one that Podwire supports',
  );
}

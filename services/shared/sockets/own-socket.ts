import { rmSync } from 'node:fs';
import type { Server } from 'node:net';

import { messageOf } from '../failure/thrown.js';
import { bindSocket, socketAt, type SocketFile } from './listen.js';
import type { PeerCheckOptions } from './peer-check.js';

export interface OwnSocketOptions<Bound extends Server> extends PeerCheckOptions {
  readonly createServer: () => Bound;
  /** Called when a server listens. Earlier servers get no further connections. */
  readonly onListening: (server: Bound) => void;
  /** Removes the socket. Servers still accept connections that wait. */
  readonly stopped: AbortSignal;
}

/** Interval of the check for a deleted socket, in milliseconds. It is well below the timeout of the shim. */
const SOCKET_CHECK_MS = 1000;

/**
 * Listens at a unix socket. A deleted socket is created again with a further server, because clients connect by path; a socket of
 * another process at the same path is left alone.
 * @throws Failure INVALID_SETTINGS when the socket is in use or cannot be created
 */
export async function listenAtOwnSocket<Bound extends Server>(options: OwnSocketOptions<Bound>): Promise<void> {
  const { path, log, clock, createServer, onListening, stopped } = options;
  let own: SocketFile | undefined;
  const isOwn = (): boolean => {
    const found = socketAt(path);
    return found !== undefined && found.device === own?.device && found.inode === own.inode;
  };
  const remove = (): void => {
    if (isOwn()) rmSync(path, { force: true });
    // Once it is removed, the socket of another process may get the same inode.
    own = undefined;
  };
  const open = async (): Promise<void> => {
    const server = createServer();
    own = await bindSocket(server, path);
    server.on('error', (error) => log.error({ err: error, path }, `socket ${path} failed`));
    if (stopped.aborted) {
      remove();
      server.close();
    } else onListening(server);
  };
  const watch = async (): Promise<void> => {
    let reportedReason: string | undefined;
    while ((await clock.sleep(SOCKET_CHECK_MS, stopped)) === 'elapsed') {
      try {
        if (isOwn()) continue;
        if (reportedReason === undefined) log.warn({ path }, `socket ${path} was deleted: creating it again`);
        await open();
        if (!stopped.aborted) log.info({ path }, `socket ${path} is created again`);
        reportedReason = undefined;
      } catch (err) {
        const reason = messageOf(err);
        if (reportedReason !== reason)
          log.error({ err, path }, `socket ${path} cannot be created, so no call reaches this process: ${reason}`);
        reportedReason = reason;
      }
    }
  };
  stopped.addEventListener('abort', remove);
  await open();
  void watch();
}

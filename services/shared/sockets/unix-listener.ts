import { createServer, type Server, type Socket } from 'node:net';

import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { bindSocket } from './listen.js';
import { PeerCheck } from './peer-check.js';
import { watchSocket, removeOwnSocket, type SocketFile } from './socket-owner.js';

export interface UnixListenerOptions {
  /** Absolute path of the unix socket. */
  readonly path: string;
  readonly log: Logger;
  readonly clock: Clock;
  readonly take: (connection: Socket) => void;
}

/**
 * Accepts connections of root and of the own user at a unix socket, and creates a deleted socket again. gRPC's own
 * rebind closes the connections of the address; connections accepted here are unaffected.
 */
export class UnixListener {
  readonly #options: UnixListenerOptions;
  readonly #peers: PeerCheck;
  readonly #stopped = new AbortController();
  /** The open connections, each with a promise that resolves at its end. */
  readonly #connections = new Map<Socket, Promise<void>>();
  #server: Server | undefined;
  #own: SocketFile | undefined;

  /** @throws Error as {@link PeerCheck} */
  constructor(options: UnixListenerOptions) {
    this.#options = options;
    this.#peers = new PeerCheck(options);
  }

  /** @throws Failure INVALID_SETTINGS when the socket is in use or cannot be created */
  async listen(): Promise<void> {
    await this.#open();
    const { path, log, clock } = this.#options;
    const open = () => this.#open();
    void watchSocket({ path, log, clock, own: () => this.#own, open, stopped: this.#stopped.signal });
  }

  /** Accepts no more connections, ends unused ones, and removes the socket if it is still the own one. */
  close(): void {
    this.#stopped.abort();
    removeOwnSocket(this.#options.path, this.#own);
    // Once it is closed, the socket of another process may get the same inode.
    this.#own = undefined;
    this.#server?.close();
    for (const connection of this.#connections.keys()) if (connection.bytesRead === 0) connection.destroy();
  }

  /** Resolves when every accepted connection has ended. To be called after {@link close}. */
  async ended(): Promise<void> {
    await Promise.all(this.#connections.values());
  }

  #take(connection: Socket): void {
    if (this.#stopped.signal.aborted) {
      connection.destroy();
      return;
    }
    if (!this.#peers.admits(connection)) return;
    const ended = new Promise<void>((resolve) => connection.once('close', () => resolve()));
    this.#connections.set(connection, ended);
    void ended.then(() => this.#connections.delete(connection));
    this.#options.take(connection);
  }

  async #open(): Promise<void> {
    const { path, log } = this.#options;
    const server = createServer((connection) => this.#take(connection));
    const own = await bindSocket(server, path);
    server.on('error', (error) => log.error({ err: error, path }, `socket ${path} failed`));
    this.#server?.close();
    this.#server = server;
    this.#own = own;
    if (this.#stopped.signal.aborted) this.close();
  }
}

import { createServer, type Server, type Socket } from 'node:net';

import { listenAtOwnSocket } from './own-socket.js';
import { PeerCheck, type PeerCheckOptions } from './peer-check.js';

export interface UnixListenerOptions extends PeerCheckOptions {
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

  /** @throws Error as {@link PeerCheck} */
  constructor(options: UnixListenerOptions) {
    this.#options = options;
    this.#peers = new PeerCheck(options);
  }

  /** @throws Failure INVALID_SETTINGS when the socket is in use or cannot be created */
  listen(): Promise<void> {
    return listenAtOwnSocket({
      ...this.#options,
      stopped: this.#stopped.signal,
      createServer: () => createServer((connection) => this.#take(connection)),
      onListening: (server) => {
        this.#server?.close();
        this.#server = server;
      },
    });
  }

  /** Accepts no more connections, ends unused ones, and removes the socket if it is still the own one. */
  close(): void {
    this.#stopped.abort();
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
}

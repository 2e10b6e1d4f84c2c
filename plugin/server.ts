import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { setImmediate } from 'node:timers/promises';

import { Failure } from '@podwire/shared/failure/failure';
import { listenAtOwnSocket } from '@podwire/shared/sockets/own-socket';
import { PeerCheck } from '@podwire/shared/sockets/peer-check';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import { ProcessStopping } from './requests/attachment-queue.js';
import { answer, answerAtOnce, answerInvalidHttp, sendError, type RouteOptions } from './http-routes.js';

export interface CniServerOptions extends RouteOptions {
  /** Absolute path of the unix socket. */
  readonly path: string;
  readonly log: Logger;
  readonly clock: Clock;
  /** Timeout for receiving a request, in milliseconds. */
  readonly requestTimeoutMs: number;
  /** Grace period for commands in flight when the server stops, in milliseconds; then they are cancelled. */
  readonly drainTimeoutMs: number;
  /** Why no call can be served now; undefined if it can. */
  readonly shortage: () => Failure | undefined;
  /** Told whether a request is in flight. */
  readonly activity?: Activity | undefined;
  /** Called when the grace period is over, to cancel work that has no caller. */
  readonly onDrained: () => void;
}

/** A listener for work that waits until no request is in flight. */
export interface Activity {
  busy(): void;
  idle(): void;
}

/**
 * Rounds of the event loop without a new connection, after which the accept queue counts as empty. Each round accepts one
 * connection.
 */
const IDLE_ROUNDS = 4;

/** Upper bound of those rounds, above the accept queue's length (listen(2)): if the socket cannot be removed, connections do not end. */
const MAX_ACCEPT_ROUNDS = 1024;

/** How long a connection may take to send its request headers while the server closes, in milliseconds. */
const REQUEST_HEAD_TIMEOUT_MS = 500;

/** How often per request timeout Node.js checks connections. */
const CHECKS_PER_TIMEOUT = 10;

/**
 * The socket between the shim and the resident plugin: HTTP/1.1 on a unix socket that serves root only. {@link
 * answer} defines the requests and answers.
 *
 * A caller may die at any moment, send invalid data, or never complete its request. The process must survive that and answer
 * every other caller, and an ADD whose caller died must be rolled back.
 */
export class CniServer {
  readonly #options: CniServerOptions;
  readonly #peers: PeerCheck;
  readonly #servers = new Set<Server>();
  /** Requests in flight, with their cancellation. */
  readonly #inFlight = new Map<Promise<void>, AbortController>();
  readonly #stopped = new AbortController();
  /** Connections that have not sent their request headers. */
  readonly #idle = new Set<Duplex>();
  /** Connections that were accepted only to answer with the shortage. */
  readonly #rejected = new WeakSet<Duplex>();
  /** Callbacks for when no connection is idle. */
  readonly #onNoIdle: (() => void)[] = [];

  /** @throws Error as {@link PeerCheck} */
  constructor(options: CniServerOptions) {
    this.#options = options;
    this.#peers = new PeerCheck(options);
  }

  /** @throws Failure INVALID_SETTINGS when the socket is in use or cannot be created */
  async listen(): Promise<void> {
    const { path, log, clock } = this.#options;
    const createServer = () => this.#createServer();
    const onListening = (server: Server) => {
      const earlier = [...this.#servers];
      this.#servers.add(server);
      for (const each of earlier) void this.#close(each).then(() => this.#servers.delete(each));
    };
    await listenAtOwnSocket({ path, log, clock, createServer, onListening, stopped: this.#stopped.signal });
    log.info({ path }, `listening at ${path}`);
  }

  /**
   * Stops accepting connections and waits for the commands in flight, also without their callers. Removes the
   * socket first: later callers wait for the next resident, and earlier ones are still answered.
   *
   * Commands that take longer than the grace period are cancelled, as callers wait only a few seconds for the next resident.
   * Cancelled ADDs are rolled back and the runtime repeats them; pending releases of DELs are in the journal.
   */
  async stop(): Promise<void> {
    this.#stopped.abort();
    const servers = [...this.#servers];
    const closed = Promise.all(servers.map((server) => this.#close(server)));
    await Promise.all(servers.map((server) => this.#requestHeadsReceived(server)));
    await this.#drained();
    for (const server of this.#servers) server.closeAllConnections();
    await closed;
  }

  async #drained(): Promise<void> {
    const { clock, drainTimeoutMs, onDrained, log } = this.#options;
    const done = new AbortController();
    const ended = this.#allAnswered().finally(() => done.abort());
    if ((await clock.sleep(drainTimeoutMs, done.signal)) === 'elapsed') {
      log.warn(`${this.#inFlight.size} calls are cancelled: they did not end within ${drainTimeoutMs} ms of the stop`);
      onDrained();
      for (const cancel of this.#inFlight.values()) cancel.abort(new ProcessStopping());
    }
    await ended;
  }

  async #allAnswered(): Promise<void> {
    while (this.#inFlight.size > 0) await Promise.all(this.#inFlight.keys());
  }

  #createServer(): Server {
    const { requestTimeoutMs } = this.#options;
    const server = createServer({
      requestTimeout: requestTimeoutMs,
      headersTimeout: requestTimeoutMs,
      connectionsCheckingInterval: requestTimeoutMs / CHECKS_PER_TIMEOUT,
    });
    server.on('connection', (socket) => {
      if (!this.#peers.admits(socket)) return;
      this.#idle.add(socket);
      socket.once('close', () => this.#removeIdle(socket));
      const shortage = this.#options.shortage();
      if (!shortage) return;
      // Answers immediately, to free the last file descriptor.
      this.#rejected.add(socket);
      socket.once('finish', () => socket.destroy());
      answerAtOnce(socket, '503 Service Unavailable', shortage);
    });
    server.on('request', (request, response) => {
      if (!this.#rejected.has(request.socket)) this.#handle(request, response);
      this.#removeIdle(request.socket);
    });
    server.on('clientError', answerInvalidHttp);
    return server;
  }

  /** Stops accepting connections. Earlier ones, also in the accept queue, are answered. */
  async #close(server: Server): Promise<void> {
    await this.#requestHeadsReceived(server);
    await new Promise<void>((resolve) => server.close(() => resolve()));
  }

  /**
   * Waits until every connection has sent its request headers, or the timeout is over: closing a server closes the connections
   * that have not.
   */
  async #requestHeadsReceived(server: Server): Promise<void> {
    await drainAcceptQueue(server);
    if (this.#idle.size === 0) return;
    const done = new AbortController();
    const noIdle = new Promise<void>((resolve) => this.#onNoIdle.push(resolve));
    await Promise.race([noIdle, this.#options.clock.sleep(REQUEST_HEAD_TIMEOUT_MS, done.signal)]);
    done.abort();
  }

  #removeIdle(socket: Duplex): void {
    this.#idle.delete(socket);
    if (this.#idle.size > 0) return;
    for (const resolve of this.#onNoIdle.splice(0)) resolve();
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    const cancel = new AbortController();
    const closed = new Promise<void>((resolve) => {
      response.once('close', () => {
        if (!response.writableFinished) cancel.abort(new Failure('CANCELLED', 'the caller disconnected'));
        resolve();
      });
    });
    const answered = answer({ request, response, cancel }, this.#options)
      .catch((error: unknown) => {
        this.#options.log.error({ err: error }, 'defect: a request failed');
        sendError(response, 500, error);
      })
      .then(() => closed);
    this.#inFlight.set(answered, cancel);
    this.#options.activity?.busy();
    void answered.finally(() => {
      this.#inFlight.delete(answered);
      if (this.#inFlight.size === 0) this.#options.activity?.idle();
    });
  }
}

/** Waits until the accept queue is empty. On a busy machine that takes seconds. */
async function drainAcceptQueue(server: Server): Promise<void> {
  let idleRounds = 0;
  const onAccept = () => (idleRounds = 0);
  server.on('connection', onAccept);
  for (let round = 0; round < MAX_ACCEPT_ROUNDS && idleRounds < IDLE_ROUNDS; round++) {
    idleRounds++;
    await setImmediate();
  }
  server.off('connection', onAccept);
}

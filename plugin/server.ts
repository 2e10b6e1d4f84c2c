import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { setImmediate } from 'node:timers/promises';

import { Failure } from '@podwire/shared/failure/failure';
import { bindSocket } from '@podwire/shared/rpc/listen';
import { watchSocket, removeOwnSocket, type SocketFile } from '@podwire/shared/rpc/socket-owner';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import { Stopping } from './requests/request.js';
import { answer, answerAtOnce, answerGarbage, sendError, type RouteOptions } from './routes.js';

export interface CniServerOptions extends RouteOptions {
  /** Absolute path of the unix socket. */
  readonly path: string;
  readonly log: Logger;
  readonly clock: Clock;
  /** Time for a request to come in whole, in milliseconds; then it is refused. */
  readonly requestTimeoutMs: number;
  /** Time for commands under way once the server stops, in milliseconds; then they are cut off. */
  readonly drainTimeoutMs: number;
  /** Why no call can be served now; undefined if it can. */
  readonly shortage: () => Failure | undefined;
  /** Called when the grace period is over, to cancel work without a caller. */
  readonly onDrained: () => void;
}

/**
 * Rounds of the event loop without a connection, after which none is taken to wait that was made before the socket was taken away: each round accepts
 * one of them.
 */
const IDLE_ROUNDS = 4;

/** As many as can wait to be accepted (listen(2)), and some: where the socket cannot be taken away, they do not end. */
const MAX_ACCEPT_ROUNDS = 1024;

/** How long a connection may take to send the head of its request when the server closes, in milliseconds. */
const SILENCE_MS = 500;

/** How often in a request's time it is looked after. */
const CHECKS_PER_TIMEOUT = 10;

/**
 * The socket between the shim and the resident plugin: HTTP/1.1 on a unix socket accessible to root only. {@link
 * answer} defines the requests and answers.
 *
 * A caller may die at any moment, send garbage, or never end its request. None of that may end the process or leave a
 * caller without an answer, and an ADD whose caller died has to be rolled back. A deleted socket is created again; a
 * socket of another process at the same path is left alone.
 */
export class CniServer {
  readonly #options: CniServerOptions;
  readonly #servers = new Set<Server>();
  /** What is under way, each with what cuts it off. */
  readonly #underWay = new Map<Promise<void>, AbortController>();
  readonly #stopped = new AbortController();
  /** Connections that have not sent a request. */
  readonly #silent = new Set<Duplex>();
  /** Connections accepted only to report why they cannot be served. */
  readonly #refused = new WeakSet<Duplex>();
  /** Who waits for there to be none. */
  readonly #waiting: (() => void)[] = [];
  #own: SocketFile | undefined;

  constructor(options: CniServerOptions) {
    this.#options = options;
  }

  /** @throws Failure INVALID_SETTINGS when the socket is taken or cannot be made */
  async listen(): Promise<void> {
    await this.#open();
    const { path, log, clock } = this.#options;
    log.info({ path }, `listening at ${path}`);
    const open = () => this.#open();
    void watchSocket({ path, log, clock, own: () => this.#own, open, stopped: this.#stopped.signal });
  }

  /**
   * Takes no more connections, and waits for the commands under way, also for those whose caller is gone. Removes the socket first:
   * who comes later waits for the next resident, and who came before is still answered.
   *
   * The next one comes once this one has ended, and callers wait for it a few seconds: what waits for a service that hangs, or went
   * away together with this process, is cut off. ADDs are undone then, and the runtime repeats them; what DELs have left is in the journal.
   */
  async stop(): Promise<void> {
    this.#stopped.abort();
    removeOwnSocket(this.#options.path, this.#own);
    const servers = [...this.#servers];
    const closed = Promise.all(servers.map((server) => this.#close(server)));
    await Promise.all(servers.map((server) => this.#allHeard(server)));
    await this.#drained();
    for (const server of this.#servers) server.closeAllConnections();
    await closed;
  }

  async #drained(): Promise<void> {
    const { clock, drainTimeoutMs, onDrained, log } = this.#options;
    const done = new AbortController();
    const ended = this.#allAnswered().finally(() => done.abort());
    if ((await clock.sleep(drainTimeoutMs, done.signal)) === 'elapsed') {
      log.warn(`${this.#underWay.size} calls are cut off: they have not ended within ${drainTimeoutMs} ms of the stop`);
      onDrained();
      for (const cancel of this.#underWay.values()) cancel.abort(new Stopping());
    }
    await ended;
  }

  async #allAnswered(): Promise<void> {
    while (this.#underWay.size > 0) await Promise.all(this.#underWay.keys());
  }

  async #open(): Promise<void> {
    const { path, log } = this.#options;
    const server = this.#makeServer();
    this.#own = await bindSocket(server, path);
    if (this.#stopped.signal.aborted) {
      removeOwnSocket(path, this.#own);
      server.close();
      return;
    }
    server.on('error', (error) => log.error({ err: error }, 'the socket failed'));
    const earlier = [...this.#servers];
    this.#servers.add(server);
    for (const each of earlier) void this.#close(each).then(() => this.#servers.delete(each));
  }

  #makeServer(): Server {
    const { requestTimeoutMs } = this.#options;
    const server = createServer({
      requestTimeout: requestTimeoutMs,
      headersTimeout: requestTimeoutMs,
      connectionsCheckingInterval: requestTimeoutMs / CHECKS_PER_TIMEOUT,
    });
    server.on('connection', (socket) => {
      this.#silent.add(socket);
      socket.once('close', () => this.#heard(socket));
      const shortage = this.#options.shortage();
      if (!shortage) return;
      // At once, as its descriptor is the last.
      this.#refused.add(socket);
      socket.once('finish', () => socket.destroy());
      answerAtOnce(socket, '503 Service Unavailable', shortage);
    });
    server.on('request', (request, response) => {
      if (!this.#refused.has(request.socket)) this.#take(request, response);
      this.#heard(request.socket);
    });
    server.on('clientError', answerGarbage);
    return server;
  }

  /** Takes no more connections; those that were made before, also those that are not accepted yet, are still answered. */
  async #close(server: Server): Promise<void> {
    await this.#allHeard(server);
    await new Promise<void>((resolve) => server.close(() => resolve()));
  }

  /**
   * Waits until every connection has sent the head of its request, or was given the time for it: closing a server cuts off those that
   * have not.
   */
  async #allHeard(server: Server): Promise<void> {
    await allAccepted(server);
    if (this.#silent.size === 0) return;
    const over = new AbortController();
    const spoken = new Promise<void>((resolve) => this.#waiting.push(resolve));
    await Promise.race([spoken, this.#options.clock.sleep(SILENCE_MS, over.signal)]);
    over.abort();
  }

  #heard(socket: Duplex): void {
    this.#silent.delete(socket);
    if (this.#silent.size > 0) return;
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  #take(request: IncomingMessage, response: ServerResponse): void {
    const cancel = new AbortController();
    const over = new Promise<void>((resolve) => {
      response.once('close', () => {
        if (!response.writableFinished) cancel.abort(new Failure('CANCELLED', 'the caller went away'));
        resolve();
      });
    });
    const answered = answer({ request, response, cancel }, this.#options)
      .catch((error: unknown) => {
        this.#options.log.error({ err: error }, 'a request failed by a defect');
        sendError(response, 500, error);
      })
      .then(() => over);
    this.#underWay.set(answered, cancel);
    void answered.finally(() => this.#underWay.delete(answered));
  }
}

/** Waits until no connection waits to be accepted, however many there are. Those of a busy machine take seconds in all. */
async function allAccepted(server: Server): Promise<void> {
  let idleRounds = 0;
  const accepted = () => (idleRounds = 0);
  server.on('connection', accepted);
  for (let round = 0; round < MAX_ACCEPT_ROUNDS && idleRounds < IDLE_ROUNDS; round++) {
    idleRounds++;
    await setImmediate();
  }
  server.off('connection', accepted);
}

import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { Duplex } from 'node:stream';
import { setImmediate } from 'node:timers/promises';

import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { bindSocket } from '@podwire/shared/rpc/listen';
import { keepSocket, removeOwn, type SocketFile } from '@podwire/shared/rpc/socket-owner';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import { VARIABLES, type Variable, type Variables } from './cni/environment.js';
import { cniErrorOf } from './cni/error.js';
import { OWN_VERSION } from './cni/version.js';
import type { JournalDesk } from './journal/desk.js';
import type { CniRequest } from './request.js';
import { readBody } from './request-body.js';
import type { CniAnswer } from './run.js';

export interface CniServerOptions {
  /** Absolute path of the unix socket. */
  readonly path: string;
  readonly log: Logger;
  readonly clock: Clock;
  readonly journal: JournalDesk;
  /** Carries out a command; does not throw. */
  readonly run: (request: CniRequest) => Promise<CniAnswer>;
  /** Wall clock in epoch nanoseconds. */
  readonly nowNs: () => bigint;
  /** Time for a request to come in whole, in milliseconds; then it is refused. */
  readonly requestTimeoutMs: number;
  /** Time for commands under way once the server stops, in milliseconds; then they are cut off. */
  readonly drainTimeoutMs: number;
  /** Why a call that arrives cannot be served, whatever it is; undefined where it can. */
  readonly shortage: () => Failure | undefined;
  /** Told that this time is over, for work that goes on without a caller. */
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

/** 404 is for what an earlier release does not know. */
const STATUS_OF_DISCARD: Partial<Record<FailureCode, number>> = { ATTACHMENT_NOT_FOUND: 410, STATE_IO: 503 };

/** How often in a request's time it is looked after. */
const CHECKS_PER_TIMEOUT = 10;

/** The headers that carry the CNI variables. */
const HEADER: Readonly<Record<Variable, string>> = {
  CNI_COMMAND: 'cni-command',
  CNI_CONTAINERID: 'cni-containerid',
  CNI_NETNS: 'cni-netns',
  CNI_IFNAME: 'cni-ifname',
  CNI_ARGS: 'cni-args',
  CNI_PATH: 'cni-path',
};

/**
 * The resident's side of the protocol with the shim: HTTP/1.1 on a unix socket that is root's alone. `POST /cni` carries the CNI
 * variables as headers and the network configuration as its body. It is answered with 200 and the result, or with another status
 * and a CNI error object. `GET /healthz` is answered with 200 while requests are taken, `GET /journal` with what waits in
 * the journal, `POST /journal/retry` with what is left of it once all of it was tried, and `POST /journal/discard` with the entry that
 * is given up, or with 410 where there is none.
 *
 * What can go wrong here: the caller dies at any moment, sends garbage, or never ends its request. None of that may end the
 * process or leave a caller without an answer; and what an ADD began for a caller that died has to be undone. Somebody may clean the
 * directory: a socket that is gone is made anew. A socket that another process put in its place is left to that.
 */
export class CniServer {
  readonly #options: CniServerOptions;
  readonly #servers = new Set<Server>();
  /** What is under way, each with what cuts it off. */
  readonly #underWay = new Map<Promise<void>, AbortController>();
  readonly #stopped = new AbortController();
  /** Connections that have not sent a request. */
  readonly #silent = new Set<Duplex>();
  /** Connections that were taken to be told why nothing can be done for them. */
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
    void keepSocket({ path, log, clock, own: () => this.#own, open, stopped: this.#stopped.signal });
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
    removeOwn(this.#options.path, this.#own);
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
      const reason = 'podwire-plugin is being stopped, and the next one carries it out; repeat it';
      for (const cancel of this.#underWay.values()) cancel.abort(new Failure('CANCELLED', reason));
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
      removeOwn(path, this.#own);
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
    const answered = this.#answer({ request, response, cancel })
      .catch((error: unknown) => {
        this.#options.log.error({ err: error }, 'a request failed by a defect');
        sendError(response, 500, error);
      })
      .then(() => over);
    this.#underWay.set(answered, cancel);
    void answered.finally(() => this.#underWay.delete(answered));
  }

  async #answer({ request, response, cancel }: Exchange): Promise<void> {
    const asked = `${request.method ?? ''} ${request.url ?? ''}`;
    if (asked === 'GET /healthz') {
      send(response, { status: 200, body: 'ok\n', type: 'text/plain' });
      return;
    }
    if (asked === 'GET /journal') {
      this.#sendJournal(response);
      return;
    }
    if (asked === 'POST /journal/retry') {
      request.resume();
      await this.#options.journal.retry();
      this.#sendJournal(response);
      return;
    }
    if (asked === 'POST /journal/discard') {
      await this.#discard({ request, response, cancel });
      return;
    }
    if (asked !== 'POST /cni') {
      sendError(
        response,
        404,
        new Failure(
          'INVALID_REQUEST',
          `${asked}: send POST /cni, GET /healthz, GET /journal, POST /journal/retry or POST /journal/discard`,
        ),
      );
      return;
    }
    const arrivedNs = this.#options.nowNs();
    const configuration = await readBody(request, cancel.signal);
    if (configuration instanceof Failure) {
      sendError(response, 400, configuration);
      return;
    }
    const { headers } = request;
    const answer = await this.#options.run({
      plugin: textOf(headers, 'cni-plugin'),
      shimRelease: textOf(headers, 'podwire-release'),
      variables: variablesOf(headers),
      overridesNetns: isTrue(textOf(headers, 'cni-netns-override')),
      configuration,
      traceContext: {
        traceparent: textOf(headers, 'traceparent'),
        tracestate: textOf(headers, 'tracestate'),
        baggage: textOf(headers, 'baggage'),
      },
      startedNs: startOf(headers),
      arrivedNs,
      cancel,
    });
    send(response, { status: answer.exitCode === 0 ? 200 : 500, body: answer.stdout, type: 'application/json' });
  }

  async #discard({ request, response, cancel }: Exchange): Promise<void> {
    try {
      const asked = await readBody(request, cancel.signal);
      // What cannot be read is refused as what it is not: a request.
      const body = await this.#options.journal.discard(asked instanceof Failure ? '' : asked, cancel);
      send(response, { status: 200, body, type: 'application/json' });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      sendError(response, STATUS_OF_DISCARD[error.code] ?? 400, error);
    }
  }

  #sendJournal(response: ServerResponse): void {
    send(response, { status: 200, body: this.#options.journal.text(), type: 'application/json' });
  }
}

/** One request and what belongs to it. */
interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Fires when the caller is gone. */
  readonly cancel: AbortController;
}

function variablesOf(headers: IncomingHttpHeaders): Variables {
  return Object.fromEntries(VARIABLES.map((variable) => [variable, textOf(headers, HEADER[variable])]));
}

/** A header as UTF-8, which is what the shim passes on; Node.js reads headers as ISO 8859-1. */
function textOf(headers: IncomingHttpHeaders, name: string): string | undefined {
  const value = headers[name];
  return typeof value === 'string' ? Buffer.from(value, 'latin1').toString() : undefined;
}

/** The spellings that Go's library for plugins takes. */
function isTrue(text: string | undefined): boolean {
  return text === '1' || text?.toUpperCase() === 'TRUE';
}

function startOf(headers: IncomingHttpHeaders): bigint | undefined {
  const text = textOf(headers, 'cni-exec-time') ?? '';
  return /^\d{1,20}$/.test(text) ? BigInt(text) : undefined;
}

interface Answer {
  readonly status: number;
  readonly body: string;
  readonly type: string;
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

/** One request a connection: callers run once, and a connection that stays would keep the process from stopping. */
function send(response: ServerResponse, { status, body, type }: Answer): void {
  response.sendDate = false;
  response
    .writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(body), connection: 'close' })
    .end(body);
}

/** Answers what never became a command. */
function sendError(response: ServerResponse, status: number, error: unknown): void {
  if (response.headersSent) return;
  send(response, { status, body: errorBody(error), type: 'application/json' });
}

function errorBody(error: unknown): string {
  return `${JSON.stringify(cniErrorOf(error, { cniVersion: OWN_VERSION }))}\n`;
}

/** Answers what is not HTTP, is too large in its head, or was not sent in time. */
function answerGarbage(error: Error, socket: Duplex): void {
  const failure = new Failure('INVALID_REQUEST', `this is no HTTP request of the CNI shim: ${error.message}`);
  answerAtOnce(socket, '400 Bad Request', failure);
}

/** Answers without waiting for the rest of the request. */
function answerAtOnce(socket: Duplex, status: string, failure: Failure): void {
  const body = errorBody(failure);
  const head = [
    `HTTP/1.1 ${status}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
    'connection: close',
  ];
  if (socket.writable) socket.end(`${head.join('\r\n')}\r\n\r\n${body}`);
  else socket.destroy();
}

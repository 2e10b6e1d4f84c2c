import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';

import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';

import type { Clock } from '@podwire/shared/runtime/clock';

import { cniErrorOf } from './cni/error.js';
import { OWN_VERSION } from './cni/version.js';
import type { JournalApi } from './journal/api.js';
import { cniRequestOf, decodeBody, MAX_BODY_BYTES } from './requests/http-request.js';
import type { CniRequest } from './requests/request.js';
import type { CniAnswer } from './run.js';

export interface RouteOptions {
  /** The recent commands, as JSON. */
  readonly commands: () => string;
  readonly journal: JournalApi;
  /** Runs a command, and reports it after the answer is sent; does not throw. */
  readonly run: (request: CniRequest, sendAnswer: (answer: CniAnswer) => void) => Promise<unknown>;
  readonly clock: Pick<Clock, 'after'>;
  /** Wall clock in epoch nanoseconds. */
  readonly nowNs: () => bigint;
}

export interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Fires when the caller disconnects. */
  readonly cancel: AbortController;
}

type Handler = (exchange: Exchange, options: RouteOptions) => Promise<void> | void;

/** Misdirected Request (RFC 9110): the shim repeats the call at the next process (kStatusStopping, shim/src/protocol.h). */
const STATUS_STOPPING = 421;

/** Not 404, which means that a release lacks the route. */
const DISCARD_STATUS: Partial<Record<FailureCode, number>> = { ATTACHMENT_NOT_FOUND: 410, STATE_IO: 503 };

const ROUTES: ReadonlyMap<string, Handler> = new Map([
  ['POST /cni', runCni],
  ['GET /healthz', sendHealth],
  ['GET /commands', sendCommands],
  ['GET /journal', sendJournal],
  ['POST /journal/retry', retryJournal],
  ['POST /journal/discard', discardEntry],
]);

/**
 * Answers a request of the shim or `podwirectl`. Any other method or path gets 404.
 *
 * | Request                 | Answer                                                                                       |
 * | ----------------------- | -------------------------------------------------------------------------------------------- |
 * | `POST /cni`             | 200 and the result, or another status and a CNI error document                               |
 * | `GET /healthz`          | 200                                                                                          |
 * | `GET /commands`         | the recent commands, as `RecentCommands.text` has them                                       |
 * | `GET /journal`          | the entries                                                                                  |
 * | `POST /journal/retry`   | the remaining entries, after each was tried once                                             |
 * | `POST /journal/discard` | the discarded entry, or 410 if there is none                                                 |
 *
 * `POST /cni` has the CNI variables as headers and the network configuration as its body.
 */
export async function answer(exchange: Exchange, options: RouteOptions): Promise<void> {
  const { request, response } = exchange;
  const route = `${request.method ?? ''} ${request.url ?? ''}`;
  const handler = ROUTES.get(route);
  if (handler) await handler(exchange, options);
  else
    sendError(
      response,
      404,
      new Failure('INVALID_REQUEST', `${route}: unknown route; send one of ${[...ROUTES.keys()].join(', ')}`),
    );
}

/** Well within the silence after which the shim takes the process for hung (kSilenceMs, shim/src/protocol.h). */
const INTERIM_PAUSE_MS = 5000;

/** Sends an interim response while a command runs. @returns what ends that */
function sendInterims(response: ServerResponse, clock: RouteOptions['clock']): () => void {
  const wait = () => clock.after(INTERIM_PAUSE_MS, send);
  const send = (): void => {
    response.writeProcessing();
    cancel = wait();
  };
  let cancel = wait();
  return () => cancel();
}

async function runCni({ request, response, cancel }: Exchange, { run, clock, nowNs }: RouteOptions): Promise<void> {
  const arrivedNs = nowNs();
  const configuration = await readBody(request, cancel.signal);
  if (configuration instanceof Failure) {
    sendError(response, 400, configuration);
    return;
  }
  const endInterims = sendInterims(response, clock);
  await run(cniRequestOf(request.headers, { configuration, arrivedNs, cancel }), (outcome) => {
    endInterims();
    const errorStatus = outcome.isForNextProcess ? STATUS_STOPPING : 500;
    const status = outcome.exitCode === 0 ? 200 : errorStatus;
    send(response, { status, body: outcome.stdout, type: 'application/json' });
  });
}

function sendHealth({ response }: Exchange): void {
  send(response, { status: 200, body: 'ok\n', type: 'text/plain' });
}

function sendCommands({ response }: Exchange, { commands }: RouteOptions): void {
  send(response, { status: 200, body: commands(), type: 'application/json' });
}

function sendJournal({ response }: Exchange, { journal }: RouteOptions): void {
  send(response, { status: 200, body: journal.text(), type: 'application/json' });
}

async function retryJournal(exchange: Exchange, options: RouteOptions): Promise<void> {
  exchange.request.resume();
  await options.journal.retry();
  sendJournal(exchange, options);
}

async function discardEntry({ request, response, cancel }: Exchange, { journal }: RouteOptions): Promise<void> {
  try {
    const requestBody = await readBody(request, cancel.signal);
    // An unreadable body is rejected as an invalid request.
    const body = await journal.discard(requestBody instanceof Failure ? '' : requestBody, cancel);
    send(response, { status: 200, body, type: 'application/json' });
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    sendError(response, DISCARD_STATUS[error.code] ?? 400, error);
  }
}

interface Answer {
  readonly status: number;
  readonly body: string;
  /** Media type of the body. */
  readonly type: string;
}

/** Closes the connection after one request: callers send only one, and an open connection would delay the stop. */
function send(response: ServerResponse, { status, body, type }: Answer): void {
  response.sendDate = false;
  response
    .writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(body), connection: 'close' })
    .end(body);
}

/** Answers a request that is not a valid command with a CNI error document. Does nothing if it is answered already. */
export function sendError(response: ServerResponse, status: number, error: unknown): void {
  if (response.headersSent) return;
  send(response, { status, body: errorBody(error), type: 'application/json' });
}

/** Answers invalid HTTP, too large headers, and requests that time out. */
export function answerInvalidHttp(error: Error, socket: Duplex): void {
  const failure = new Failure('INVALID_REQUEST', `not a valid HTTP request of the CNI shim: ${error.message}`);
  answerAtOnce(socket, '400 Bad Request', failure);
}

/** Answers without waiting for the rest of the request. @param status - code and reason: `503 Service Unavailable` */
export function answerAtOnce(socket: Duplex, status: string, failure: Failure): void {
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

function errorBody(error: unknown): string {
  return `${JSON.stringify(cniErrorOf(error, { cniVersion: OWN_VERSION }))}\n`;
}

/**
 * The body of a request, or why it cannot be read.
 * @param signal - ends the wait for the body; its reason is a Failure
 */
function readBody(request: IncomingMessage, signal: AbortSignal): Promise<string | Failure> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  return new Promise((resolve) => {
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
      // Bytes beyond the limit are read and dropped, so that the caller can finish sending and read the answer.
      if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
    });
    request.once('end', () => {
      resolve(
        bytes > MAX_BODY_BYTES
          ? new Failure('INVALID_CONFIG', `the network configuration is larger than ${MAX_BODY_BYTES} bytes`)
          : decodeBody(Buffer.concat(chunks)),
      );
    });
    signal.addEventListener('abort', () => resolve(failureOfSignal(signal)), { once: true });
    request.once('close', () => {
      // Every request closes eventually; by then the remaining ones are answered.
      if (!request.readableEnded)
        resolve(new Failure('CANCELLED', 'the connection closed before the request was complete'));
    });
  });
}

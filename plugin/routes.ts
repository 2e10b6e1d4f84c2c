import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';

import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';

import { VARIABLES, type Variable, type Variables } from './cni/environment.js';
import { cniErrorOf } from './cni/error.js';
import { OWN_VERSION } from './cni/version.js';
import type { JournalDesk } from './journal/api.js';
import type { CniRequest } from './requests/request.js';
import type { CniAnswer } from './run.js';

export interface RouteOptions {
  readonly journal: JournalDesk;
  /** Carries out a command; does not throw. */
  readonly run: (request: CniRequest) => Promise<CniAnswer>;
  /** Wall clock in epoch nanoseconds. */
  readonly nowNs: () => bigint;
}

/** One request and what belongs to it. */
export interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Fires when the caller is gone. */
  readonly cancel: AbortController;
}

type Route = (exchange: Exchange, options: RouteOptions) => Promise<void> | void;

/** For a call that may be made again, by another connection (RFC 9110): the shim asks the next process (kStatusOfEnding, shim/src/protocol.h). */
const STATUS_OF_ENDING = 421;

/** 404 is for what an earlier release does not know. */
const STATUS_OF_DISCARD: Partial<Record<FailureCode, number>> = { ATTACHMENT_NOT_FOUND: 410, STATE_IO: 503 };

const ROUTES: ReadonlyMap<string, Route> = new Map([
  ['POST /cni', carryOut],
  ['GET /healthz', tellHealth],
  ['GET /journal', tellJournal],
  ['POST /journal/retry', retryJournal],
  ['POST /journal/discard', discardEntry],
]);

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
 * What the shim and `podwirectl` ask the resident plugin, over HTTP/1.1. `POST /cni` carries the CNI variables as headers and the network configuration as its
 * body; it is answered with 200 and the result, or with another status and a CNI error object. `GET /healthz` is answered with 200 while requests
 * are taken, `GET /journal` with what waits in the journal, `POST /journal/retry` with what is left of it once all of it was tried, and
 * `POST /journal/discard` with the entry that is given up, or with 410 where there is none. All else is answered with 404.
 */
export async function answer(exchange: Exchange, options: RouteOptions): Promise<void> {
  const { request, response } = exchange;
  const asked = `${request.method ?? ''} ${request.url ?? ''}`;
  const route = ROUTES.get(asked);
  if (route) await route(exchange, options);
  else
    sendError(response, 404, new Failure('INVALID_REQUEST', `${asked}: send one of ${[...ROUTES.keys()].join(', ')}`));
}

async function carryOut({ request, response, cancel }: Exchange, { run, nowNs }: RouteOptions): Promise<void> {
  const arrivedNs = nowNs();
  const configuration = await readBody(request, cancel.signal);
  if (configuration instanceof Failure) {
    sendError(response, 400, configuration);
    return;
  }
  const { headers } = request;
  const { exitCode, stdout, isForNext } = await run({
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
    isStrict: isTrue(textOf(headers, 'podwire-strict')),
    startedNs: startOf(headers),
    arrivedNs,
    cancel,
  });
  const status = isForNext ? STATUS_OF_ENDING : 500;
  send(response, { status: exitCode === 0 ? 200 : status, body: stdout, type: 'application/json' });
}

function tellHealth({ response }: Exchange): void {
  send(response, { status: 200, body: 'ok\n', type: 'text/plain' });
}

function tellJournal({ response }: Exchange, { journal }: RouteOptions): void {
  send(response, { status: 200, body: journal.text(), type: 'application/json' });
}

async function retryJournal(exchange: Exchange, options: RouteOptions): Promise<void> {
  exchange.request.resume();
  await options.journal.retry();
  tellJournal(exchange, options);
}

async function discardEntry({ request, response, cancel }: Exchange, { journal }: RouteOptions): Promise<void> {
  try {
    const asked = await readBody(request, cancel.signal);
    // What cannot be read is refused as what it is not: a request.
    const body = await journal.discard(asked instanceof Failure ? '' : asked, cancel);
    send(response, { status: 200, body, type: 'application/json' });
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    sendError(response, STATUS_OF_DISCARD[error.code] ?? 400, error);
  }
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
  /** Media type of the body. */
  readonly type: string;
}

/** One request a connection: callers run once, and a connection that stays would keep the process from stopping. */
function send(response: ServerResponse, { status, body, type }: Answer): void {
  response.sendDate = false;
  response
    .writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(body), connection: 'close' })
    .end(body);
}

/** Answers what never became a command with a CNI error object. Idempotent: what was answered already stays as it is. */
export function sendError(response: ServerResponse, status: number, error: unknown): void {
  if (response.headersSent) return;
  send(response, { status, body: errorBody(error), type: 'application/json' });
}

/** Answers what is not HTTP, is too large in its head, or was not sent in time. */
export function answerGarbage(error: Error, socket: Duplex): void {
  const failure = new Failure('INVALID_REQUEST', `this is no HTTP request of the CNI shim: ${error.message}`);
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

/** As much as the shim sends (kMaxConfigurationBytes, shim/src/protocol.h). */
const MAX_BODY_BYTES = 4 * 1024 * 1024;

/**
 * The body of a request as text, or why there is none.
 * @param signal - ends the wait for it; with a Failure as its reason
 */
function readBody(request: IncomingMessage, signal: AbortSignal): Promise<string | Failure> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  return new Promise((resolve) => {
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
      // What comes after the limit is let pass, so that the caller can send all of it and then read the answer.
      if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
    });
    request.once('end', () => {
      resolve(
        bytes > MAX_BODY_BYTES
          ? new Failure('INVALID_CONFIG', `the network configuration is larger than ${MAX_BODY_BYTES} bytes`)
          : decode(Buffer.concat(chunks)),
      );
    });
    signal.addEventListener('abort', () => resolve(failureOfSignal(signal)), { once: true });
    request.once('close', () => {
      // Every request closes eventually; by then the remaining ones are answered.
      if (!request.readableEnded) resolve(new Failure('CANCELLED', 'the connection ended before the request did'));
    });
  });
}

const UTF8 = new TextDecoder('utf-8', { fatal: true });

function decode(bytes: Buffer): string | Failure {
  try {
    return UTF8.decode(bytes);
  } catch (cause) {
    return new Failure('CONFIG_NOT_JSON', 'the network configuration is not UTF-8, so it is not JSON', { cause });
  }
}

import type { ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';

import { cniErrorOf } from './cni/error.js';
import { OWN_VERSION } from './cni/version.js';

export interface Answer {
  readonly status: number;
  readonly body: string;
  /** Media type of the body. */
  readonly type: string;
}

/** One request a connection: callers run once, and a connection that stays would keep the process from stopping. */
export function send(response: ServerResponse, { status, body, type }: Answer): void {
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

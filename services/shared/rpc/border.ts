import { setMaxListeners } from 'node:events';

import {
  status,
  type MethodDefinition,
  type sendUnaryData,
  type Server,
  type ServiceDefinition,
  type StatusObject,
} from '@grpc/grpc-js';
import { SpanKind, trace, type Context } from '@opentelemetry/api';
import type { Metadata } from '@grpc/grpc-js';

import { Failure } from '../failure/failure.js';
import { statusOfError } from '../failure/status.js';
import { MAX_TIMER_MS, type Clock } from '../runtime/clock.js';
import { requestContext, type Logger } from '../runtime/log.js';
import { markFailed } from '../telemetry/span.js';
import { contextOf, methodName, recordCall, rpcAttributes } from './tracing.js';

/**
 * Makes calls of unknown methods pass the interceptors, as calls of known methods do. gRPC would answer them before, so that no limit
 * counted them and no certificate was checked.
 */
export function serveUnknownMethods(server: Server): void {
  const handlers: unknown = Reflect.get(server, 'handlers');
  if (!(handlers instanceof Map)) throw new TypeError('gRPC keeps its handlers elsewhere; adapt serveUnknownMethods');
  const known = handlers.get.bind(handlers);
  const unknown = (path: string): unknown => ({
    type: 'unary',
    path,
    deserialize: (bytes: Buffer) => bytes,
    serialize: (bytes: Buffer) => bytes,
    func: (_: unknown, respond: sendUnaryData<Buffer>) =>
      respond({ code: status.UNIMPLEMENTED, details: `The server does not implement the method ${path}` }),
  });
  handlers.get = (path: string): unknown => known(path) ?? unknown(path);
}

/** A call as its handler sees it, in addition to the request. */
export interface Call {
  /** Fires when the caller cancels, the deadline passes, or the server ends the call. Its reason is a {@link Failure}. */
  readonly signal: AbortSignal;
}

/** The part of gRPC's calls that {@link openCall} uses. */
export interface IncomingCall {
  readonly metadata: Metadata;
  readonly cancelled: boolean;
  getDeadline(): unknown;
  once(event: 'cancelled', listener: () => void): unknown;
  off(event: 'cancelled', listener: () => void): unknown;
}

export interface BorderOptions {
  readonly log: Logger;
  readonly clock: Clock;
  /** `/package.Service/Method`. */
  readonly path: string;
  /** Timeout of a call without a deadline, in milliseconds; undefined for no limit. */
  readonly defaultTimeoutMs: number | undefined;
}

/** An incoming call. Its span ends with `succeed` or `fail`. */
export interface ServedCall extends Call {
  /** Context of the handler: the call's span in the caller's trace, and a request of its own for the log. */
  readonly context: Context;
  /** Ends the call from the server: its signal fires with the failure. */
  readonly abort: (failure: Failure) => void;
  /** Ends the span after success. */
  readonly succeed: () => void;
  /** Logs the handler's error and ends the span. An expected error does not count as the server's fault. @returns the status */
  readonly fail: (error: unknown, expected?: { readonly expected: true }) => StatusObject;
  /** Releases timer and listeners. Called once, at the end. */
  readonly release: () => void;
}

/** Statuses that count as the server's fault, not the caller's (OpenTelemetry semantic conventions 1.44, gRPC, server spans). */
const SERVER_FAULTS: readonly status[] = [
  status.UNKNOWN,
  status.DEADLINE_EXCEEDED,
  status.UNIMPLEMENTED,
  status.INTERNAL,
  status.UNAVAILABLE,
  status.DATA_LOSS,
];

/**
 * Server-side wrapper of every method: merges deadline and cancellation into one signal, opens a span under the
 * caller's trace, converts errors to a status, and logs failures.
 */
export function openCall(call: IncomingCall, { log, clock, path, defaultTimeoutMs }: BorderOptions): ServedCall {
  const name = methodName(path);
  const caller = contextOf(call.metadata);
  const options = { kind: SpanKind.SERVER, attributes: rpcAttributes(path) };
  const span = trace.getTracer('podwire').startSpan(name, options, caller);
  const startedMs = clock.monotonicMs();
  const finish = (code: status): void => {
    span.setAttribute('rpc.response.status_code', status[code]);
    span.end();
    // A stream lasts as long as its reader wants.
    if (defaultTimeoutMs !== undefined)
      recordCall('server', { path, code, durationMs: clock.monotonicMs() - startedMs });
  };
  const fail: ServedCall['fail'] = (error, expected) => {
    const answer = statusOfError(error);
    const fault = SERVER_FAULTS.includes(answer.code) && !expected;
    const level = fault ? 'error' : expected ? 'debug' : 'info';
    log[level]({ err: error, rpc: name, status: status[answer.code] }, `${name} ${expected ? 'ended' : 'failed'}`);
    if (fault) markFailed(span, error);
    finish(answer.code);
    return answer;
  };
  const limit = limitCall(call, { clock, defaultTimeoutMs });
  return { context: requestContext(trace.setSpan(caller, span)), succeed: () => finish(status.OK), fail, ...limit };
}

/** gRPC's own deadline timer may fire this much earlier than the one here, in milliseconds. */
const TIMER_SLACK_MS = 5;

function limitCall(
  call: IncomingCall,
  { clock, defaultTimeoutMs }: Pick<BorderOptions, 'clock' | 'defaultTimeoutMs'>,
): Pick<ServedCall, 'signal' | 'abort' | 'release'> {
  const startMs = clock.monotonicMs();
  const callerDeadlineMs = Number(call.getDeadline());
  const timeoutMs = Number.isFinite(callerDeadlineMs)
    ? Math.max(0, callerDeadlineMs - clock.nowMs())
    : (defaultTimeoutMs ?? Infinity);
  const controller = new AbortController();
  // Every concurrent operation of a call listens to the signal. Node warns of a leak at more than ten listeners.
  setMaxListeners(0, controller.signal);
  const abort = (failure: Failure): void => controller.abort(failure);
  const onTimeout = () =>
    abort(new Failure('DEADLINE_EXCEEDED', `no answer within the call's timeout of ${timeoutMs} ms`));
  const onCancelled = () => {
    if (clock.monotonicMs() >= startMs + timeoutMs - TIMER_SLACK_MS) onTimeout();
    else abort(new Failure('CANCELLED', 'the caller cancelled the call'));
  };
  const timer = timeoutMs === Infinity ? undefined : setTimeout(onTimeout, Math.min(timeoutMs, MAX_TIMER_MS));
  call.once('cancelled', onCancelled);
  if (call.cancelled) onCancelled();
  const release = () => {
    clearTimeout(timer);
    // gRPC emits `cancelled` at the end of every call, answered ones included.
    call.off('cancelled', onCancelled);
  };
  return { signal: controller.signal, abort, release };
}

/** Replacement for a request whose bytes are no message. gRPC would answer that the server has a fault. */
class Undecodable {
  readonly failure: Failure;

  constructor(path: string, reason: unknown) {
    const text = `${path.slice(1)}: the request cannot be decoded (${String(reason)}); send the message of the contract`;
    this.failure = new Failure('INVALID_REQUEST', text);
  }
}

/** The service with requests that {@link requireDecoded} refuses where they cannot be decoded. */
export function withUndecodable(service: ServiceDefinition): ServiceDefinition {
  const methods = Object.entries(service).map(([name, method]) => {
    const requestDeserialize = (bytes: Buffer): unknown => {
      try {
        return method.requestDeserialize(bytes);
      } catch (error) {
        return new Undecodable(method.path, error);
      }
    };
    return [name, { ...method, requestDeserialize }] as const;
  });
  return Object.fromEntries(methods);
}

/** The message of a call inside another message. @throws Failure INVALID_REQUEST */
export function decodeRequest<Request>(
  { path, requestDeserialize }: Pick<MethodDefinition<Request, unknown>, 'path' | 'requestDeserialize'>,
  bytes: Buffer,
): Request {
  try {
    return requestDeserialize(bytes);
  } catch (error) {
    throw new Undecodable(path, error).failure;
  }
}

/** @returns the request @throws Failure INVALID_REQUEST if its bytes were no message */
export function requireDecoded<Request>(request: Request): Request {
  if (request instanceof Undecodable) throw request.failure;
  return request;
}

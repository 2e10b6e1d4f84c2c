import { setMaxListeners } from 'node:events';

import { status, type StatusObject } from '@grpc/grpc-js';
import { SpanKind, trace, type Context } from '@opentelemetry/api';
import type { Metadata } from '@grpc/grpc-js';

import { Failure } from '../failure/failure.js';
import { statusOfError } from '../failure/status.js';
import { MAX_TIMER_MS, type Clock } from '../runtime/clock.js';
import { requestContext, type Logger } from '../runtime/log.js';
import { markFailed } from '../runtime/span.js';
import { contextOf, methodName, rpcAttributes } from './tracing.js';

/** What a handler knows of the call besides its request. */
export interface Call {
  /** Fires when the caller gives up, its time is over, or the server ends the call; its reason is a {@link Failure}. */
  readonly signal: AbortSignal;
}

/** The part of gRPC's calls that the border needs. */
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
  /** Time for a call whose caller set none, in milliseconds; undefined for no limit. */
  readonly defaultTimeoutMs: number | undefined;
}

/** A call that came in, from its span's begin to its end. */
export interface ServedCall extends Call {
  /** Context of the handler: the call's span under the caller's trace, and a separate request in the log. */
  readonly context: Context;
  /** Ends the call from this side: its signal fires with the failure. */
  readonly abort: (failure: Failure) => void;
  /** The handler has done its work. */
  readonly succeed: () => void;
  /** Logs the handler's error. @returns its status. An expected error is not the server's fault. */
  readonly fail: (error: unknown, expected?: { readonly expected: true }) => StatusObject;
  /** Lets go of the timer and the listeners. Called once, at the very end. */
  readonly release: () => void;
}

/** Statuses that say the server failed, not the caller (OpenTelemetry semantic conventions 1.44, gRPC, server spans). */
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
  const finish = (code: status): void => {
    span.setAttribute('rpc.response.status_code', status[code]);
    span.end();
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

/** gRPC ends a call at its deadline with its own timer, which may fire this much before ours, in milliseconds. */
const TIMER_SLACK_MS = 5;

function limitCall(
  call: IncomingCall,
  { clock, defaultTimeoutMs }: Pick<BorderOptions, 'clock' | 'defaultTimeoutMs'>,
): Pick<ServedCall, 'signal' | 'abort' | 'release'> {
  const startMs = clock.nowMs();
  const callerDeadlineMs = Number(call.getDeadline());
  const timeoutMs = Number.isFinite(callerDeadlineMs)
    ? Math.max(0, callerDeadlineMs - startMs)
    : (defaultTimeoutMs ?? Infinity);
  const controller = new AbortController();
  // What a call does at once listens to it; Node would take more than ten for a leak, and say so.
  setMaxListeners(0, controller.signal);
  const abort = (failure: Failure): void => controller.abort(failure);
  const overdue = () =>
    abort(new Failure('DEADLINE_EXCEEDED', `no answer within the ${timeoutMs} ms that the call had`));
  const cancelled = () => {
    if (clock.nowMs() >= startMs + timeoutMs - TIMER_SLACK_MS) overdue();
    else abort(new Failure('CANCELLED', 'the caller gave up'));
  };
  const timer = timeoutMs === Infinity ? undefined : setTimeout(overdue, Math.min(timeoutMs, MAX_TIMER_MS));
  call.once('cancelled', cancelled);
  if (call.cancelled) cancelled();
  const release = () => {
    clearTimeout(timer);
    // gRPC says `cancelled` at the end of every call, of those that were answered too.
    call.off('cancelled', cancelled);
  };
  return { signal: controller.signal, abort, release };
}

import {
  status,
  type handleUnaryCall,
  type MethodDefinition,
  type sendUnaryData,
  type ServerUnaryCall,
} from '@grpc/grpc-js';
import { context, SpanKind, trace, type Span } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { statusOfError } from '../failure/status.js';
import { MAX_TIMER_MS, type Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { markFailed } from '../runtime/span.js';
import { contextOf, methodName, rpcAttributes } from './tracing.js';

/** What a handler knows of the call besides its request. */
export interface Call {
  /** Fires when the caller gives up or its time is over; its reason is a {@link Failure}. */
  readonly signal: AbortSignal;
}

export type Handler<Request, Response> = (request: Request, call: Call) => Promise<Response>;

export interface UnaryOptions {
  readonly log: Logger;
  readonly clock: Clock;
  /** Time for a call whose caller set none, in milliseconds. */
  readonly defaultTimeoutMs: number;
}

/** Makes gRPC handlers out of functions of ours. One for each server. */
export type Unary = <Request, Response>(
  method: MethodDefinition<Request, Response>,
  handler: Handler<Request, Response>,
) => handleUnaryCall<Request, Response>;

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
 * The server's border, once for all methods: deadline and cancellation become one signal, the call becomes a span under the
 * caller's trace, whatever is thrown becomes a status, and what failed is logged.
 */
export function unaryHandlers({ log, clock, defaultTimeoutMs }: UnaryOptions): Unary {
  const tracer = trace.getTracer('podwire');
  return (method, handler) => (call, reply) => {
    const name = methodName(method.path);
    const options = { kind: SpanKind.SERVER, attributes: rpcAttributes(method.path) };
    const caller = contextOf(call.metadata);
    const span = tracer.startSpan(name, options, caller);
    void context.with(trace.setSpan(caller, span), async () => {
      const limit = limitCall(call, { clock, defaultTimeoutMs });
      try {
        const response = await handler(call.request, { signal: limit.signal });
        finish({ span, code: status.OK });
        reply(null, response);
      } catch (error) {
        answerFailure({ error, name, span, log, reply });
      } finally {
        limit.release();
      }
    });
  };
}

interface FailedCall<Response> {
  readonly error: unknown;
  readonly name: string;
  readonly span: Span;
  readonly log: Logger;
  readonly reply: sendUnaryData<Response>;
}

function answerFailure<Response>({ error, name, span, log, reply }: FailedCall<Response>): void {
  const answer = statusOfError(error);
  const fault = SERVER_FAULTS.includes(answer.code);
  log[fault ? 'error' : 'info']({ err: error, rpc: name, status: status[answer.code] }, `${name} failed`);
  if (fault) markFailed(span, error);
  finish({ span, code: answer.code });
  reply(answer);
}

function finish({ span, code }: { readonly span: Span; readonly code: status }): void {
  span.setAttribute('rpc.response.status_code', status[code]);
  span.end();
}

type AnyCall = ServerUnaryCall<unknown, unknown>;

interface CallLimit {
  readonly signal: AbortSignal;
  readonly release: () => void;
}

/** gRPC ends a call at its deadline by a timer of its own, which may be this much ahead of ours, in milliseconds. */
const TIMER_SLACK_MS = 5;

function limitCall(call: AnyCall, { clock, defaultTimeoutMs }: Omit<UnaryOptions, 'log'>): CallLimit {
  const startMs = clock.nowMs();
  const callerDeadlineMs = Number(call.getDeadline());
  const timeoutMs = Number.isFinite(callerDeadlineMs) ? Math.max(0, callerDeadlineMs - startMs) : defaultTimeoutMs;
  const controller = new AbortController();
  const overdue = () =>
    controller.abort(new Failure('DEADLINE_EXCEEDED', `no answer within the ${timeoutMs} ms that the call had`));
  const cancelled = () => {
    if (clock.nowMs() >= startMs + timeoutMs - TIMER_SLACK_MS) overdue();
    else controller.abort(new Failure('CANCELLED', 'the caller gave up'));
  };
  const timer = setTimeout(overdue, Math.min(timeoutMs, MAX_TIMER_MS));
  call.once('cancelled', cancelled);
  if (call.cancelled) cancelled();
  const release = () => {
    clearTimeout(timer);
    // gRPC says `cancelled` at the end of every call, of those that were answered too.
    call.off('cancelled', cancelled);
  };
  return { signal: controller.signal, release };
}

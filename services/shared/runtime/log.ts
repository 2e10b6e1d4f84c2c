import { inspect } from 'node:util';

import { context, createContextKey, isSpanContextValid, trace, type Context } from '@opentelemetry/api';
import { pino, type DestinationStream, type Logger } from 'pino';

import { formatAttachment, type Attachment } from '../attachment/attachment.js';
import { Failure } from '../failure/failure.js';
import { RecentLines } from './recent-lines.js';
import { openStandardError } from './standard-error.js';

export type { Logger } from 'pino';

/** Log levels, from the most to the least verbose. */
export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal'] as const;

export interface LogOptions {
  /** Name of the process, on every line. */
  readonly service: string;
  readonly level: (typeof LOG_LEVELS)[number];
  /** Destination that lines are written to immediately. Default: standard error. */
  readonly destination?: DestinationStream;
  /** Keeps the last lines. Default: none are kept. */
  readonly recent?: RecentLines | undefined;
}

/** Stored in the trace's context: a separate AsyncLocalStorage would add its own cost to every promise. */
const SCOPE = createContextKey('podwire.attachment');

class Scope {
  readonly attachment: Attachment;

  constructor(attachment: Attachment) {
    this.attachment = attachment;
  }
}

const REQUEST = createContextKey('podwire.request');

/** The attachments of one request's errors. Kept per request, because requests that fail together throw the same error. */
class RequestErrors {
  /** Created for the first error, because most requests have none. */
  #attachments: WeakMap<object, Attachment> | undefined;

  note(error: unknown, attachment: Attachment): void {
    if (!(error instanceof Error)) return;
    this.#attachments ??= new WeakMap();
    if (!this.#attachments.has(error)) this.#attachments.set(error, attachment);
  }

  attachmentOf(error: unknown): Attachment | undefined {
    return error instanceof Error ? this.#attachments?.get(error) : undefined;
  }
}

/** A context for one request. A line that logs an error of the request has the attachment under which it was thrown. */
export function requestContext(base: Context): Context {
  return base.setValue(REQUEST, new RequestErrors());
}

/**
 * Runs `work` with the attachment on every line that it logs. A line of the same request ({@link requestContext}) that logs an
 * error of `work` has the attachment too, even if it is logged outside.
 */
export function withAttachment<Result>(attachment: Attachment, work: () => Promise<Result>): Promise<Result> {
  const outside = context.active();
  return context.with(outside.setValue(SCOPE, new Scope(attachment)), work).catch((error: unknown) => {
    requestErrors(outside)?.note(error, attachment);
    throw error;
  });
}

function requestErrors(of: Context): RequestErrors | undefined {
  const errors = of.getValue(REQUEST);
  return errors instanceof RequestErrors ? errors : undefined;
}

let standardError: DestinationStream | undefined;

/** The log of a server, and its last lines. */
export function serverLog(service: string): { readonly log: Logger; readonly recentLines: RecentLines } {
  const recentLines = new RecentLines();
  return { log: createLogger({ service, level: 'info', recent: recentLines }), recentLines };
}

/** A logger of JSON lines, each with its trace and attachment. */
export function createLogger({ service, level, destination, recent }: LogOptions): Logger {
  const output = destination ?? (standardError ??= openStandardError((lines) => reportLostLines(lines)));
  const log = pino(
    {
      level,
      base: { service },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: (error: unknown) => describeError(error) },
      mixin: scope,
    },
    recent?.alongside(output) ?? output,
  );
  const reportLostLines = (lines: number): void =>
    log.warn({ lines }, 'log lines were lost, because standard error was blocked');
  return log;
}

function scope(line: object): Record<string, string> {
  const span = trace.getActiveSpan()?.spanContext();
  const error = 'err' in line ? line.err : undefined;
  const attachment = currentAttachment() ?? requestErrors(context.active())?.attachmentOf(error);
  const fields: Record<string, string> = {};
  if (span && isSpanContextValid(span)) {
    fields.trace_id = span.traceId;
    fields.span_id = span.spanId;
  }
  if (attachment) fields.attachment = formatAttachment(attachment);
  return fields;
}

function currentAttachment(): Attachment | undefined {
  const scope = context.active().getValue(SCOPE);
  return scope instanceof Scope ? scope.attachment : undefined;
}

/** Depth limit of logged causes, as an error may be its own cause. */
const MAX_CAUSES = 8;

/** An error for the log, with its causes. Only defects have a stack. */
function describeError(error: unknown, depth = 0): Record<string, unknown> {
  if (!(error instanceof Error)) return { type: typeof error, message: inspect(error) };
  const isExpected = error instanceof Failure && error.code !== 'INTERNAL';
  const inner = (cause: unknown) => describeError(cause, depth + 1);
  const deeper = depth < MAX_CAUSES;
  return {
    type: error.name,
    message: error.message,
    ...(error instanceof Failure ? { code: error.code, details: error.details } : {}),
    // The failure's trace differs from the line's if the call had no parent span.
    ...(error instanceof Failure && error.traceId !== undefined ? { trace_id: error.traceId } : {}),
    ...(isExpected ? {} : { stack: error.stack }),
    ...(error.cause !== undefined && deeper ? { cause: inner(error.cause) } : {}),
    ...(error instanceof AggregateError && deeper ? { errors: error.errors.map(inner) } : {}),
  };
}

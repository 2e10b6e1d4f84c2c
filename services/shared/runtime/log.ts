import { inspect } from 'node:util';

import { context, createContextKey, isSpanContextValid, trace, type Context } from '@opentelemetry/api';
import { pino, type DestinationStream, type Logger } from 'pino';

import { formatAttachment, type Attachment } from '../attachment/attachment.js';
import { Failure } from '../failure/failure.js';
import { LateLines } from './late-lines.js';
import { openStandardError } from './standard-error.js';

export type { Logger } from 'pino';

/** Levels a process can log at, from the most to the least talkative. */
export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal'] as const;

export interface LogOptions {
  /** Name of the process, on every line. */
  readonly service: string;
  readonly level: (typeof LOG_LEVELS)[number];
  /** Where the lines go, at once. Default: standard error, as a CNI plugin's standard output is its answer, with {@link LateLines}. */
  readonly destination?: DestinationStream;
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

/** The attachments that the errors of one request were thrown under. Requests that fail together throw the same error. */
class RequestErrors {
  /** Made for the first error: most requests have none. */
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

/** A context for one request: a line in it that logs an error carries the attachment under which the request threw it. */
export function requestContext(base: Context): Context {
  return base.setValue(REQUEST, new RequestErrors());
}

/**
 * Runs `work`; every line logged meanwhile, at any depth, carries the attachment. So does a line of the same request
 * ({@link requestContext}) that logs an error of `work`, although it is logged outside.
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

let standardError: LateLines | undefined;

/** A logger of JSON lines, each with the trace and the attachment that it belongs to. */
export function createLogger({ service, level, destination }: LogOptions): Logger {
  const late = destination ? undefined : (standardError ??= new LateLines(openStandardError((lines) => tell(lines))));
  const log = pino(
    {
      level,
      base: { service },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: (error: unknown) => describeError(error) },
      mixin: scope,
      ...late?.options(),
    },
    late ?? destination,
  );
  const tell = (lines: number): void => log.warn({ lines }, 'lines of log were lost, as standard error took none');
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

/** How many causes of causes are logged; an error that is its own cause has no last one. */
const MAX_CAUSES = 8;

/** What was thrown, for the log alone: whole, with its causes. A stack is of use where a defect is. */
function describeError(error: unknown, depth = 0): Record<string, unknown> {
  if (!(error instanceof Error)) return { type: typeof error, message: inspect(error) };
  const foreseen = error instanceof Failure && error.code !== 'INTERNAL';
  const inner = (cause: unknown) => describeError(cause, depth + 1);
  const deeper = depth < MAX_CAUSES;
  return {
    type: error.name,
    message: error.message,
    ...(error instanceof Failure ? { code: error.code, details: error.details } : {}),
    // The failure's trace differs from the line's if the call had no parent span.
    ...(error instanceof Failure && error.traceId !== undefined ? { trace_id: error.traceId } : {}),
    ...(foreseen ? {} : { stack: error.stack }),
    ...(error.cause !== undefined && deeper ? { cause: inner(error.cause) } : {}),
    ...(error instanceof AggregateError && deeper ? { errors: error.errors.map(inner) } : {}),
  };
}

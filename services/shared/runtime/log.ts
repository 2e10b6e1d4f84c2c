import { AsyncLocalStorage } from 'node:async_hooks';

import { isSpanContextValid, trace } from '@opentelemetry/api';
import { pino, type DestinationStream, type Logger } from 'pino';

import { formatAttachment, type Attachment } from '../attachment/attachment.js';
import { Failure } from '../failure/failure.js';

export type { Logger } from 'pino';

/** Levels a process can log at, from the most to the least talkative. */
export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal'] as const;

export interface LogOptions {
  /** Name of the process, on every line. */
  readonly service: string;
  readonly level: (typeof LOG_LEVELS)[number];
  /** Where the lines go; standard error when undefined, as a CNI plugin's standard output is its answer. */
  readonly destination?: DestinationStream;
}

const attachments = new AsyncLocalStorage<Attachment>();

/** Runs `work`; every line logged meanwhile, at whatever depth, carries the attachment. */
export function withAttachment<Result>(attachment: Attachment, work: () => Result): Result {
  return attachments.run(attachment, work);
}

/** A logger of JSON lines, each with the trace and the attachment that it belongs to. */
export function createLogger({ service, level, destination }: LogOptions): Logger {
  return pino(
    {
      level,
      base: { service },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: describeError },
      mixin: scope,
    },
    destination ?? pino.destination({ dest: 2, sync: true }),
  );
}

function scope(): Record<string, string> {
  const span = trace.getActiveSpan()?.spanContext();
  const attachment = attachments.getStore();
  return {
    ...(span && isSpanContextValid(span) ? { trace_id: span.traceId, span_id: span.spanId } : {}),
    ...(attachment ? { attachment: formatAttachment(attachment) } : {}),
  };
}

function describeError(error: Error): Record<string, unknown> {
  return {
    type: error.name,
    message: error.message,
    ...(error instanceof Failure ? { code: error.code, details: error.details } : { stack: error.stack }),
    ...(error.cause instanceof Error ? { cause: describeError(error.cause) } : {}),
  };
}

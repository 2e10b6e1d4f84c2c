import { SpanStatusCode, trace, TraceFlags, type Attributes, type Span } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { messageOf } from '../failure/thrown.js';

const tracer = trace.getTracer('podwire');

/**
 * Runs `work` in a new span, which is the parent of every span that `work` starts. An error marks the span as failed, with
 * the failure's code as `error.type`, and is rethrown.
 *
 * Under an unrecorded span no new one is created: `work` runs in the active span.
 */
export function withSpan<Result>(
  name: string,
  attributes: Attributes,
  work: (span: Span) => Promise<Result>,
): Promise<Result> {
  const parent = trace.getActiveSpan();
  if (parent && isUnrecorded(parent)) return work(parent);
  return tracer.startActiveSpan(name, { attributes }, async (span) => {
    try {
      return await work(span);
    } catch (error) {
      markFailed(span, error);
      throw error;
    } finally {
      span.end();
    }
  });
}

/** Whether a span is recorded neither here nor by a called service. */
function isUnrecorded(span: Span): boolean {
  return !span.isRecording() && (span.spanContext().traceFlags & TraceFlags.SAMPLED) === 0;
}

/** Marks a span as failed, by OpenTelemetry's convention for recording errors. */
export function markFailed(span: Span, error: unknown): void {
  const message = messageOf(error);
  span.setStatus({ code: SpanStatusCode.ERROR, message });
  span.setAttribute(
    'error.type',
    error instanceof Failure ? error.code : error instanceof Error ? error.name : '_OTHER',
  );
}

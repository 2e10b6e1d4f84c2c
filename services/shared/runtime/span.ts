import { SpanStatusCode, trace, TraceFlags, type Attributes, type Span } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { messageOf } from '../failure/thrown.js';

const tracer = trace.getTracer('podwire');

/**
 * Runs `work` inside a span that ends with it, and is the parent of every span that `work` starts. A throw marks the
 * span as failed, with the failure's code as `error.type`, and is rethrown.
 *
 * Under an unrecorded span no new one is created: `work` runs in that one.
 */
export function withSpan<Result>(
  name: string,
  attributes: Attributes,
  work: (span: Span) => Promise<Result>,
): Promise<Result> {
  const parent = trace.getActiveSpan();
  if (parent && isLost(parent)) return work(parent);
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

/** Recorded neither here nor by a called service. */
function isLost(span: Span): boolean {
  return !span.isRecording() && (span.spanContext().traceFlags & TraceFlags.SAMPLED) === 0;
}

/** Marks a span as failed by an error, as OpenTelemetry's recording-errors convention asks. */
export function markFailed(span: Span, error: unknown): void {
  const message = messageOf(error);
  span.setStatus({ code: SpanStatusCode.ERROR, message });
  span.setAttribute(
    'error.type',
    error instanceof Failure ? error.code : error instanceof Error ? error.name : '_OTHER',
  );
}

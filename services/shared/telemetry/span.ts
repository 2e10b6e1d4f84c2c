import { SpanStatusCode, trace, TraceFlags, type Attributes, type Span } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { messageOf } from '../failure/thrown.js';
import { recordInterval } from './intervals.js';
import type { Phase } from './phases.js';

const tracer = trace.getTracer('podwire');

/** Phases of the command that a span's time belongs to, by the span's name. */
const SPAN_PHASES: Readonly<Record<string, Phase>> = {
  'podwire.dataplane.lock_wait': 'lock',
  'podwire.kernel.open': 'kernel',
  'podwire.kernel.observe': 'kernel',
  'podwire.kernel.batch': 'kernel',
};

/**
 * Runs `work` in a new span, which is the parent of every span that `work` starts. An error marks the span as failed, with
 * the failure's code as `error.type`, and is rethrown.
 *
 * Under an unrecorded span no new one is created: `work` runs in the active span. Its time is recorded as an interval in
 * either case, if the caller asked for intervals and the span has a phase.
 */
export function withSpan<Result>(
  name: string,
  attributes: Attributes,
  work: (span: Span) => Promise<Result>,
): Promise<Result> {
  const phase = SPAN_PHASES[name];
  const timed = (span: Span): Promise<Result> => (phase ? recordInterval(name, phase, () => work(span)) : work(span));
  const parent = trace.getActiveSpan();
  if (parent && isUnrecorded(parent)) return timed(parent);
  return tracer.startActiveSpan(name, { attributes }, async (span) => {
    try {
      return await timed(span);
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

import { SpanStatusCode, trace, TraceFlags, type Attributes, type Span, type SpanOptions } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import { messageOf } from '../failure/thrown.js';
import { systemClock } from '../runtime/clock.js';
import { histogram, onFirstUse } from './instruments.js';
import { recordInterval } from './intervals.js';
import type { Phase } from './phases.js';

const tracer = trace.getTracer('podwire');

const duration = onFirstUse(() => histogram('podwire.operation.duration'));

const MS_PER_SECOND = 1000;

/** Values of the label `operation` (metric `podwire.operation.duration`). */
type Operation = 'kernel.open' | 'kernel.observe' | 'kernel.batch' | 'dataplane.lock_wait' | 'ipam.lane_wait';

/** Spans that are also measured without a trace, by name: the phase of the command that their time belongs to, and the operation. */
const MEASURED: Readonly<Record<string, readonly [Phase, Operation?]>> = {
  'podwire.plugin.queue_wait': ['queue'],
  'podwire.dataplane.lock_wait': ['lock', 'dataplane.lock_wait'],
  'podwire.kernel.open': ['kernel', 'kernel.open'],
  'podwire.kernel.observe': ['kernel', 'kernel.observe'],
  'podwire.kernel.batch': ['kernel', 'kernel.batch'],
};

/**
 * Runs `work` in a new span, which is the parent of every span that `work` starts. An error marks the span as failed, with
 * the failure's code as `error.type`, and is rethrown.
 *
 * No new span is created under an unrecorded one: `work` runs in the active span. Its time is measured in either case, if
 * the span is one of {@link MEASURED}.
 */
export function withSpan<Result>(
  name: string,
  attributes: Attributes,
  work: (span: Span) => Promise<Result>,
  options: Omit<SpanOptions, 'attributes'> = {},
): Promise<Result> {
  const timed = (span: Span): Promise<Result> => measure(name, () => work(span));
  const parent = trace.getActiveSpan();
  if (parent && isUnrecorded(parent)) return timed(parent);
  return tracer.startActiveSpan(name, { attributes, ...options }, async (span) => {
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

async function measure<Result>(name: string, work: () => Promise<Result>): Promise<Result> {
  const [phase, operation] = MEASURED[name] ?? [];
  if (!phase) return work();
  const end = operation && startOperation(operation);
  try {
    return await recordInterval(name, phase, work);
  } finally {
    end?.();
  }
}

/** Measures a part of a call, sampled or not. @returns a function that ends it, to be called once */
export function startOperation(operation: Operation): () => void {
  const startedMs = systemClock.monotonicMs();
  return () => duration().record((systemClock.monotonicMs() - startedMs) / MS_PER_SECOND, { operation });
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

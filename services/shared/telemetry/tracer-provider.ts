import {
  context,
  SpanKind,
  trace,
  TraceFlags,
  type HrTime,
  type Span,
  type SpanOptions,
  type Tracer,
  type TracerProvider,
} from '@opentelemetry/api';
import { RandomIdGenerator } from '@opentelemetry/sdk-trace-base';

import type { Clock } from '../runtime/clock.js';
import { wallClockNs } from '../runtime/wall-clock.js';

const NS_PER_SECOND = 1_000_000_000n;

/** Spans with which a trace may begin, besides the spans of received requests. */
const ROOTS: ReadonlySet<string> = new Set([
  'podwire.shim',
  'podwire.plugin.replay',
  'podwire.leases.bind',
  'podwire.leases.return',
]);

/**
 * The SDK's provider, with two rules of Podwire:
 * - A trace begins with a command, a request, a replayed release, or the binding or return of addresses. Background checks
 *   begin none: their spans would be as many as the pods' spans.
 * - Spans start and end with microseconds. The SDK takes the start from the time of day in whole milliseconds, so that in
 *   traces of 10 ms children would begin before what preceded them.
 */
export class PodwireTracerProvider implements TracerProvider {
  readonly #provider: TracerProvider;
  readonly #nowNs: () => bigint;
  readonly #ids = new RandomIdGenerator();
  readonly #changed = new WeakSet<Tracer>();

  constructor(provider: TracerProvider, clock: Pick<Clock, 'nowMs' | 'monotonicMs'>) {
    this.#provider = provider;
    this.#nowNs = wallClockNs(clock);
  }

  getTracer(...source: Parameters<TracerProvider['getTracer']>): Tracer {
    const tracer = this.#provider.getTracer(...source);
    // Asked for with each call; the SDK returns the same one.
    if (this.#changed.has(tracer)) return tracer;
    this.#changed.add(tracer);
    const startSpan = tracer.startSpan.bind(tracer);
    // The SDK's startActiveSpan calls it too.
    tracer.startSpan = (name, options = {}, parent = context.active()) => {
      const startTime = this.#now();
      if (!trace.getSpan(parent) && !isRoot(name, options)) return this.#unrecorded();
      return this.#withPreciseEnd(startSpan(name, { startTime, ...options }, parent));
    };
    return tracer;
  }

  /** A span that neither this process nor a called service records. It has a trace ID, by which lines of the log belong together. */
  #unrecorded(): Span {
    const [traceId, spanId] = [this.#ids.generateTraceId(), this.#ids.generateSpanId()];
    return trace.wrapSpanContext({ traceId, spanId, traceFlags: TraceFlags.NONE });
  }

  /** The SDK ends a span whose start was given at a whole millisecond. */
  #withPreciseEnd(span: Span): Span {
    if (!span.isRecording()) return span;
    const end = span.end.bind(span);
    span.end = (endTime = this.#now()) => end(endTime);
    return span;
  }

  #now(): HrTime {
    const nowNs = this.#nowNs();
    return [Number(nowNs / NS_PER_SECOND), Number(nowNs % NS_PER_SECOND)];
  }
}

function isRoot(name: string, { kind }: SpanOptions): boolean {
  return kind === SpanKind.SERVER || ROOTS.has(name);
}

import type { HrTime, Span, Tracer, TracerProvider } from '@opentelemetry/api';

import type { Clock } from '../runtime/clock.js';

const MS_PER_SECOND = 1000;
const NS_PER_MS = 1e6;

/** A clock that was set by more than this has another origin from then on, in milliseconds. */
const SET_MS = 50;

/**
 * Gives spans a start and an end with microseconds. The SDK takes the start from the time of day in whole milliseconds, so
 * that in traces of 10 ms children would begin before what preceded them.
 */
export class PreciseTracerProvider implements TracerProvider {
  readonly #provider: TracerProvider;
  readonly #clock: Pick<Clock, 'nowMs' | 'monotonicMs'>;
  #originMs: number;

  constructor(provider: TracerProvider, clock: Pick<Clock, 'nowMs' | 'monotonicMs'>) {
    this.#provider = provider;
    this.#clock = clock;
    this.#originMs = clock.nowMs() - clock.monotonicMs();
  }

  getTracer(...source: Parameters<TracerProvider['getTracer']>): Tracer {
    const tracer = this.#provider.getTracer(...source);
    const startSpan = tracer.startSpan.bind(tracer);
    // The SDK's startActiveSpan calls it too.
    tracer.startSpan = (name, options, parent) =>
      this.#withPreciseEnd(startSpan(name, { startTime: this.#now(), ...options }, parent));
    return tracer;
  }

  /** The SDK ends a span whose start was given at a whole millisecond. */
  #withPreciseEnd(span: Span): Span {
    if (!span.isRecording()) return span;
    const end = span.end.bind(span);
    span.end = (endTime = this.#now()) => end(endTime);
    return span;
  }

  #now(): HrTime {
    const [nowMs, monotonicMs] = [this.#clock.nowMs(), this.#clock.monotonicMs()];
    if (Math.abs(nowMs - monotonicMs - this.#originMs) > SET_MS) this.#originMs = nowMs - monotonicMs;
    const timeMs = this.#originMs + monotonicMs;
    const seconds = Math.floor(timeMs / MS_PER_SECOND);
    return [seconds, Math.round((timeMs - seconds * MS_PER_SECOND) * NS_PER_MS)];
  }
}

import { isSpanContextValid, ROOT_CONTEXT, SpanKind, trace, TraceFlags } from '@opentelemetry/api';
import {
  AlwaysOffSampler,
  BasicTracerProvider,
  InMemorySpanExporter,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base';
import { beforeEach, describe, expect, test } from 'vitest';

import { PodwireTracerProvider } from './tracer-provider.js';

/** The time of day in whole milliseconds, as the SDK reads it, and a monotonic clock with microseconds. */
const time = { dayMs: 0, elapsedMs: 0 };
const clock = { nowMs: () => Math.floor(time.dayMs), monotonicMs: () => time.elapsedMs };

const exporter = new InMemorySpanExporter();
const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });

function pass(durationMs: number): void {
  time.dayMs += durationMs;
  time.elapsedMs += durationMs;
}

beforeEach(() => {
  time.dayMs = 1_700_000_000_000;
  time.elapsedMs = 5000;
  exporter.reset();
});

const spanTimes = () => exporter.getFinishedSpans().map(({ startTime, endTime }) => [startTime, endTime]);

describe('a span', () => {
  test('starts and ends with microseconds', () => {
    const tracer = new PodwireTracerProvider(provider, clock).getTracer('test');
    pass(0.25);
    const span = tracer.startSpan('podwire.shim');
    pass(0.125);
    span.end();
    expect(spanTimes()).toEqual([
      [
        [1_700_000_000, 250_000],
        [1_700_000_000, 375_000],
      ],
    ]);
  });

  test('that is made active too', () => {
    const tracer = new PodwireTracerProvider(provider, clock).getTracer('test');
    pass(1.5);
    tracer.startActiveSpan('podwire.shim', (span) => {
      pass(0.5);
      span.end();
    });
    expect(spanTimes()).toEqual([
      [
        [1_700_000_000, 1_500_000],
        [1_700_000_000, 2_000_000],
      ],
    ]);
  });

  test('is made once, however often its tracer was asked for', () => {
    const own = new PodwireTracerProvider(provider, clock);
    const first = own.getTracer('asked often');
    for (let count = 0; count < 20_000; count++) expect(own.getTracer('asked often')).toBe(first);
    first.startSpan('podwire.shim').end();
    expect(exporter.getFinishedSpans()).toHaveLength(1);
  });

  test('keeps the times that it is given', () => {
    const tracer = new PodwireTracerProvider(provider, clock).getTracer('test');
    tracer.startSpan('podwire.shim', { startTime: [1, 2] }).end([3, 4]);
    expect(spanTimes()).toEqual([
      [
        [1, 2],
        [3, 4],
      ],
    ]);
  });

  test.each([3_600_000, -3_600_000])('follows the time of day when it is set by %i ms', (durationMs) => {
    const tracer = new PodwireTracerProvider(provider, clock).getTracer('test');
    time.dayMs += durationMs;
    tracer.startSpan('podwire.shim').end();
    const [seconds, ns] = exporter.getFinishedSpans()[0]!.startTime;
    expect(seconds).toBe(1_700_000_000 + durationMs / 1000);
    expect(ns).toBeLessThanOrEqual(1_000_000);
  });

  test('that is not recorded is the SDK’s', () => {
    const off = new BasicTracerProvider({ sampler: new AlwaysOffSampler() });
    const span = new PodwireTracerProvider(off, clock).getTracer('test').startSpan('podwire.shim');
    expect(span.isRecording()).toBe(false);
    span.end();
  });
});

describe('a trace begins', () => {
  const tracer = () => new PodwireTracerProvider(provider, clock).getTracer('test');

  test.each([
    ['with the shim', 'podwire.shim', SpanKind.INTERNAL],
    ['with a replayed release', 'podwire.plugin.replay', SpanKind.INTERNAL],
    ['with a binding of leases', 'podwire.leases.bind', SpanKind.INTERNAL],
    ['with a return of addresses', 'podwire.leases.return', SpanKind.INTERNAL],
    ['with a received request', 'podwire.ipam.v1.AddressService/Allocate', SpanKind.SERVER],
  ])('%s', (_, name, kind) => {
    const span = tracer().startSpan(name, { kind }, ROOT_CONTEXT);
    expect(span.isRecording()).toBe(true);
    span.end();
  });

  test.each([
    ['with a background check', 'podwire.kernel.observe', SpanKind.INTERNAL],
    ['with a call in the background', 'podwire.ipam.v1.NodeService/RegisterNode', SpanKind.CLIENT],
  ])('not %s, whose called services record nothing either', (_, name, kind) => {
    const span = tracer().startSpan(name, { kind }, ROOT_CONTEXT);
    expect(span.isRecording()).toBe(false);
    expect(isSpanContextValid(span.spanContext())).toBe(true);
    expect(span.spanContext().traceFlags).toBe(TraceFlags.NONE);
    const child = tracer().startSpan('podwire.kernel.batch', {}, trace.setSpan(ROOT_CONTEXT, span));
    expect([child.isRecording(), child.spanContext().traceId]).toEqual([false, span.spanContext().traceId]);
  });

  test('elsewhere, and continues here', () => {
    const parent = trace.setSpanContext(ROOT_CONTEXT, {
      traceId: '0af7651916cd43dd8448eb211c80319c',
      spanId: 'b7ad6b7169203331',
      traceFlags: TraceFlags.SAMPLED,
    });
    const span = tracer().startSpan('podwire.kernel.observe', {}, parent);
    expect(span.isRecording()).toBe(true);
    span.end();
  });
});

import {
  AlwaysOffSampler,
  BasicTracerProvider,
  InMemorySpanExporter,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base';
import { beforeEach, describe, expect, test } from 'vitest';

import { PreciseTracerProvider } from './precise-tracer.js';

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
    const tracer = new PreciseTracerProvider(provider, clock).getTracer('test');
    pass(0.25);
    const span = tracer.startSpan('work');
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
    const tracer = new PreciseTracerProvider(provider, clock).getTracer('test');
    pass(1.5);
    tracer.startActiveSpan('work', (span) => {
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

  test('keeps the times that it is given', () => {
    const tracer = new PreciseTracerProvider(provider, clock).getTracer('test');
    tracer.startSpan('work', { startTime: [1, 2] }).end([3, 4]);
    expect(spanTimes()).toEqual([
      [
        [1, 2],
        [3, 4],
      ],
    ]);
  });

  test('follows the time of day when it is set', () => {
    const tracer = new PreciseTracerProvider(provider, clock).getTracer('test');
    time.dayMs += 3_600_000;
    tracer.startSpan('work').end();
    expect(spanTimes()[0]?.[0]).toEqual([1_700_003_600, 0]);
  });

  test('that is not recorded is the SDK’s', () => {
    const off = new BasicTracerProvider({ sampler: new AlwaysOffSampler() });
    const span = new PreciseTracerProvider(off, clock).getTracer('test').startSpan('work');
    expect(span.isRecording()).toBe(false);
    span.end();
  });
});

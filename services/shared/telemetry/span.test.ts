import { context, SpanStatusCode, trace, TraceFlags, type Span } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { withSpan } from './span.js';

const exporter = new InMemorySpanExporter();

beforeAll(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
});

beforeEach(() => {
  exporter.reset();
});

afterAll(() => {
  trace.disable();
  context.disable();
});

test('a span ends with its work, is active in it, and returns its result', async () => {
  const result = withSpan('outer', { 'podwire.pool': 'a' }, async (span) => {
    await Promise.resolve();
    expect(trace.getActiveSpan()).toBe(span);
    expect(exporter.getFinishedSpans()).toEqual([]);
    return 7;
  });
  await expect(result).resolves.toBe(7);
  const [span] = exporter.getFinishedSpans();
  expect(span).toMatchObject({ name: 'outer', attributes: { 'podwire.pool': 'a' }, ended: true });
  expect(span?.status.code).toBe(SpanStatusCode.UNSET);
});

test('a span that the work starts is its child', async () => {
  await withSpan('outer', {}, async () => {
    await Promise.resolve();
    await withSpan('inner', {}, () => Promise.resolve());
  });
  const [inner, outer] = exporter.getFinishedSpans();
  expect([inner?.name, outer?.name]).toEqual(['inner', 'outer']);
  expect(inner?.parentSpanContext?.spanId).toBe(outer?.spanContext().spanId);
  expect(inner?.spanContext().traceId).toBe(outer?.spanContext().traceId);
});

describe('under a span of another process', () => {
  const caller = { traceId: '0af7651916cd43dd8448eb211c80319c', spanId: 'b7ad6b7169203331', isRemote: true };
  const below = (traceFlags: TraceFlags) => trace.wrapSpanContext({ ...caller, traceFlags });
  const activeBelow = (parent: Span) =>
    context.with(trace.setSpan(context.active(), parent), () =>
      withSpan('inner', {}, (span) => Promise.resolve(span.spanContext())),
    );

  test('that is recorded, a span is created', async () => {
    const { traceId, spanId } = await activeBelow(below(TraceFlags.SAMPLED));
    expect(exporter.getFinishedSpans().map((span) => span.spanContext().spanId)).toEqual([spanId]);
    expect([traceId, spanId === caller.spanId]).toEqual([caller.traceId, false]);
  });

  test('that is not recorded, no span is created, and the work runs in the caller’s', async () => {
    expect(await activeBelow(below(TraceFlags.NONE))).toMatchObject({ traceId: caller.traceId, spanId: caller.spanId });
    expect(exporter.getFinishedSpans()).toEqual([]);
  });
});

test.each([
  ['a failure', new Failure('POOL_IN_USE', 'busy'), 'POOL_IN_USE', 'busy'],
  ['a defect', new TypeError('x'), 'TypeError', 'x'],
  ['a thrown value that is not an Error', 'text', '_OTHER', 'text'],
])('%s marks the span and is thrown on', async (_, thrown, type, message) => {
  const aborted = AbortSignal.abort(thrown);
  const work = async () => {
    await Promise.resolve();
    aborted.throwIfAborted();
  };
  await expect(withSpan('failing', {}, work)).rejects.toBe(thrown);
  const [span] = exporter.getFinishedSpans();
  expect(span).toMatchObject({ status: { code: SpanStatusCode.ERROR, message }, attributes: { 'error.type': type } });
});

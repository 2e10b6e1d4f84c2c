import { context, ROOT_CONTEXT, trace, TraceFlags, type Context } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';

import { startWaitSpan, withCommitSpan } from './update-request.js';

const exporter = new InMemorySpanExporter();
const TRANSACTION = { puts: [], deletes: [], comparisons: [] };
const commit = () => Promise.resolve({ committed: true, revision: 7 } as const);

beforeAll(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
});
beforeEach(() => exporter.reset());
afterAll(() => {
  trace.disable();
  context.disable();
});

/** A request whose trace is recorded. */
function recorded(name: string): { readonly span: ReturnType<typeof trace.getSpan>; readonly context: Context } {
  const span = trace.getTracer('test').startSpan(name, {}, ROOT_CONTEXT);
  return { span, context: trace.setSpan(ROOT_CONTEXT, span) };
}

/** A request whose caller does not record. */
function unrecorded(): Context {
  const parent = { traceId: '1'.repeat(32), spanId: '2'.repeat(16), traceFlags: TraceFlags.NONE };
  return trace.setSpanContext(ROOT_CONTEXT, parent);
}

test('a commit is a span of the first request’s trace, and is linked with the spans of the other requests', async () => {
  const [first, second] = [recorded('first'), recorded('second')];
  expect(await withCommitSpan(TRANSACTION, [first.context, second.context], commit)).toMatchObject({ revision: 7 });
  second.span?.end();
  const [span, other] = exporter.getFinishedSpans();
  expect(span?.name).toBe('podwire.store.commit');
  expect(span?.attributes).toMatchObject({ 'podwire.store.group_size': 2, 'podwire.store.committed': true });
  expect(span?.spanContext().traceId).toBe(first.span?.spanContext().traceId);
  expect(span?.links.map((link) => link.context.spanId)).toEqual([second.span?.spanContext().spanId]);
  expect(other?.links.map((link) => link.context.spanId)).toEqual([span?.spanContext().spanId]);
});

test('a commit is a span of the first recorded trace', async () => {
  const { span, context: asked } = recorded('second');
  await withCommitSpan(TRANSACTION, [unrecorded(), ROOT_CONTEXT, asked], commit);
  const [commitSpan] = exporter.getFinishedSpans();
  expect(commitSpan?.spanContext().traceId).toBe(span?.spanContext().traceId);
  expect(commitSpan?.attributes).toMatchObject({ 'podwire.store.group_size': 3 });
  expect(commitSpan?.links).toEqual([]);
});

test('a commit without a recorded trace has no span, and is executed', async () => {
  expect(await withCommitSpan(TRANSACTION, [unrecorded(), unrecorded()], commit)).toMatchObject({ revision: 7 });
  expect(exporter.getFinishedSpans()).toEqual([]);
});

test('a commit without a request has its own trace', async () => {
  await withCommitSpan(TRANSACTION, [ROOT_CONTEXT], commit);
  expect(exporter.getFinishedSpans().map(({ name }) => name)).toEqual(['podwire.store.commit']);
});

test('a wait is a span where the request’s trace is recorded, and ends once', async () => {
  context.with(unrecorded(), startWaitSpan)();
  const end = context.with(recorded('request').context, startWaitSpan);
  end();
  end();
  await new Promise((resolve) => setImmediate(resolve));
  expect(exporter.getFinishedSpans().map(({ name }) => name)).toEqual(['podwire.ipam.lane_wait']);
});

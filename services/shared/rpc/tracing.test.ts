import { Metadata } from '@grpc/grpc-js';
import { context, propagation, ROOT_CONTEXT, SpanKind, SpanStatusCode, trace, TraceFlags } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { W3CTraceContextPropagator } from '@opentelemetry/core';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { systemClock } from '../runtime/clock.js';
import { IntervalRecorder, recordInterval, withRecorder } from '../telemetry/intervals.js';
import { withSpan } from '../telemetry/span.js';
import { echoPool, TestServers, GET_POOL, callLimits } from '../testing/server.js';
import { contextOf, serverAttributes } from './tracing.js';

const exporter = new InMemorySpanExporter();
const METHOD = 'podwire.ipam.v1.PoolService/GetPool';
let servers: TestServers;

beforeAll(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
});

afterAll(() => {
  trace.disable();
  propagation.disable();
  context.disable();
});

beforeEach(() => {
  exporter.reset();
  servers = new TestServers();
});

afterEach(() => servers.clear());

const spanOf = (kind: SpanKind) => exporter.getFinishedSpans().find((span) => span.kind === kind);
const spanNamed = (name: string) => exporter.getFinishedSpans().find((span) => span.name === name);

test('caller, client, server and handler are one trace, each the parent of the next', async () => {
  await withSpan('start of the server', {}, () =>
    servers.serve({ getPool: (request, call) => withSpan('decision', {}, () => echoPool(request, call)) }),
  );
  await withSpan('ADD', {}, () => servers.peer().call(GET_POOL, { name: 'a' }, callLimits()));
  const line = [spanNamed('ADD'), spanOf(SpanKind.CLIENT), spanOf(SpanKind.SERVER), spanNamed('decision')];
  expect(line.map((span) => span?.name)).toEqual(['ADD', METHOD, METHOD, 'decision']);
  expect(new Set(line.map((span) => span?.spanContext().traceId)).size).toBe(1);
  const parents = line.map((span) => span?.parentSpanContext?.spanId);
  expect(parents).toEqual([undefined, ...line.slice(0, 3).map((span) => span?.spanContext().spanId)]);
  expect(line[2]?.attributes).toEqual({
    'rpc.system.name': 'grpc',
    'rpc.method': METHOD,
    'rpc.response.status_code': 'OK',
  });
});

test('a call belongs to its caller’s trace, whose span is not recorded here', async () => {
  const traceIds: (string | undefined)[] = [];
  const getPool: typeof echoPool = (request, call) => {
    traceIds.push(trace.getActiveSpan()?.spanContext().traceId);
    return echoPool(request, call);
  };
  await servers.serve({ getPool });
  const traceId = '0af7651916cd43dd8448eb211c80319c';
  const caller = { traceId, spanId: 'b7ad6b7169203331', traceFlags: TraceFlags.SAMPLED };
  await context.with(trace.setSpanContext(ROOT_CONTEXT, caller), async () => {
    await servers.peer().call(GET_POOL, { name: 'a' }, callLimits());
  });
  expect(traceIds).toEqual([traceId]);
});

test('a call without a trace has no parent, whatever span is active in the server', async () => {
  await withSpan('start of the server', {}, (span) => {
    expect(trace.getActiveSpan()).toBe(span);
    expect(trace.getSpan(contextOf(new Metadata()))).toBeUndefined();
    return Promise.resolve();
  });
});

test('the log line of a failed call carries its trace', async () => {
  const { lines } = await servers.serve({ getPool: () => Promise.reject(new Failure('POOL_NOT_FOUND', 'none')) });
  await expect(servers.peer().call(GET_POOL, { name: 'a' }, callLimits())).rejects.toThrow('none');
  expect(lines.at(-1)).toMatchObject({ trace_id: spanOf(SpanKind.CLIENT)?.spanContext().traceId });
});

test.each([
  ['a refusal', 'POOL_EXISTS', 'ALREADY_EXISTS', SpanStatusCode.ERROR, SpanStatusCode.UNSET],
  ['an answer that there is none', 'POOL_NOT_FOUND', 'NOT_FOUND', SpanStatusCode.UNSET, SpanStatusCode.UNSET],
  ['a defect', 'INTERNAL', 'INTERNAL', SpanStatusCode.ERROR, SpanStatusCode.ERROR],
] as const)('%s marks the spans of the client and the server', async (_, code, grpc, clientStatus, serverStatus) => {
  await servers.serve({ getPool: () => Promise.reject(new Failure(code, 'refused')) });
  await expect(servers.peer().call(GET_POOL, { name: 'a' }, callLimits())).rejects.toMatchObject({ code });
  const [client, server] = [spanOf(SpanKind.CLIENT), spanOf(SpanKind.SERVER)];
  for (const span of [client, server]) expect(span?.attributes).toMatchObject({ 'rpc.response.status_code': grpc });
  expect(client?.attributes['error.type']).toBe(clientStatus === SpanStatusCode.ERROR ? code : undefined);
  expect([client?.status.code, server?.status.code]).toEqual([clientStatus, serverStatus]);
});

test.each([
  ['an answer', () => Promise.resolve()],
  ['a failure', () => Promise.reject(new Failure('POOL_NOT_FOUND', 'none'))],
])('%s brings the server’s intervals, if the client records the call', async (_, end) => {
  const getPool: typeof echoPool = async (request, call) => {
    await recordInterval('podwire.store.commit', 'datastore', end);
    return echoPool(request, call);
  };
  await servers.serve({ getPool });
  const peer = servers.peer();
  const recorder = new IntervalRecorder(systemClock);
  const call = () => peer.call(GET_POOL, { name: 'a' }, callLimits()).then(() => undefined, String);
  await context.with(withRecorder(ROOT_CONTEXT, recorder), async () => {
    await call();
    await recordInterval('GetPool', 'rpc', call);
  });
  expect(recorder.intervals().map(({ name, phase, depth }) => [name, phase, depth])).toEqual([
    ['GetPool', 'rpc', 0],
    [peer.service, 'ipam', 1],
    ['podwire.store.commit', 'datastore', 2],
  ]);
});

test('the client’s span has the server’s address, and whether there was a connection', async () => {
  await servers.serve();
  const peer = servers.peer();
  for (let call = 0; call < 2; call++) await peer.call(GET_POOL, { name: 'a' }, callLimits());
  const clients = exporter.getFinishedSpans().filter(({ kind }) => kind === SpanKind.CLIENT);
  const socket = servers.address().replace('unix:', '');
  expect(clients.map(({ attributes }) => [attributes['server.address'], attributes['podwire.rpc.connected']])).toEqual([
    [socket, false],
    [socket, true],
  ]);
});

test.each([
  ['unix:/run/a.sock', { 'server.address': '/run/a.sock', 'network.transport': 'unix' }],
  ['127.0.0.1:4444', { 'server.address': '127.0.0.1', 'server.port': 4444 }],
  ['[fd00::1]:4444', { 'server.address': 'fd00::1', 'server.port': 4444 }],
  ['ipam.example', { 'server.address': 'ipam.example' }],
])('the server %s is named by the attributes of the conventions', (address, attributes) => {
  expect(serverAttributes(address)).toEqual(attributes);
});

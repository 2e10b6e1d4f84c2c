import { setTimeout as pause } from 'node:timers/promises';

import { context, trace, TraceFlags } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { createLogger, requestContext, withAttachment, type Logger } from './log.js';

const ATTACHMENT = { network: 'podwire', containerId: 'c0ffee', interfaceName: 'eth0' };
const OTHER = { ...ATTACHMENT, interfaceName: 'eth1' };
const SPAN = {
  traceId: '0af7651916cd43dd8448eb211c80319c',
  spanId: 'b7ad6b7169203331',
  traceFlags: TraceFlags.SAMPLED,
};

beforeAll(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
});

afterAll(() => {
  context.disable();
});

/** A logger, and the lines that it wrote. */
function logger(level: 'info' | 'debug' = 'info'): { log: Logger; lines: Record<string, unknown>[] } {
  const lines: Record<string, unknown>[] = [];
  const destination = { write: (line: string) => void lines.push(JSON.parse(line)) };
  return { log: createLogger({ service: 'podwire-test', level, destination }), lines };
}

const inSpan = <Result>(work: () => Result): Result => context.with(trace.setSpanContext(context.active(), SPAN), work);

describe('a line', () => {
  test('holds level, time, service and message, and nothing else', () => {
    const { log, lines } = logger();
    log.info('hello');
    expect(lines).toEqual([{ level: 'info', time: expect.any(String), service: 'podwire-test', msg: 'hello' }]);
    expect(String(lines[0]?.time)).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  });

  test('of a lower level is not written', () => {
    const { log, lines } = logger();
    log.debug('hello');
    expect(lines).toEqual([]);
  });

  test('carries trace and attachment at any depth, and only there', async () => {
    const { log, lines } = logger();
    const deep = async () => {
      await pause(1);
      await Promise.all(
        [1, 2].map(async (n) => {
          await pause(n);
          log.child({ part: n }).info('deep');
        }),
      );
    };
    await inSpan(() => withAttachment(ATTACHMENT, deep));
    log.info('outside');
    const scope = { trace_id: SPAN.traceId, span_id: SPAN.spanId, attachment: 'podwire/c0ffee/eth0' };
    expect(lines).toMatchObject([{ part: 1, ...scope }, { part: 2, ...scope }, { msg: 'outside' }]);
    expect(Object.keys(lines[2] ?? {}).sort()).toEqual(['level', 'msg', 'service', 'time']);
  });

  test('carries its own attachment among other attachments', async () => {
    const { log, lines } = logger();
    const work = (attachment: typeof ATTACHMENT, durationMs: number) =>
      withAttachment(attachment, async () => {
        await pause(durationMs);
        log.info('done');
      });
    await Promise.all([work(ATTACHMENT, 10), work(OTHER, 1)]);
    expect(lines.map(({ attachment }) => attachment)).toEqual(['podwire/c0ffee/eth1', 'podwire/c0ffee/eth0']);
  });

  test('with an error at a border has the attachment that it was thrown under', async () => {
    const { log, lines } = logger();
    const failure = new Failure('POOL_IN_USE', 'busy');
    const inner = () => withAttachment(OTHER, () => Promise.reject(failure));
    await context.with(requestContext(context.active()), async () => {
      await expect(withAttachment(ATTACHMENT, inner)).rejects.toBe(failure);
      log.info({ err: failure }, 'failed');
    });
    log.info({ err: failure }, 'of no request');
    expect(lines.map(({ attachment }) => attachment)).toEqual(['podwire/c0ffee/eth1', undefined]);
  });

  test('with an error of several requests has its own request’s attachment', async () => {
    const { log, lines } = logger();
    const shared = new Failure('STORE_UNAVAILABLE', 'the store is gone');
    const fail = (attachment: typeof ATTACHMENT) =>
      context.with(requestContext(context.active()), async () => {
        await withAttachment(attachment, () => Promise.reject(shared)).catch(() => undefined);
        log.info({ err: shared }, 'failed');
      });
    await Promise.all([fail(ATTACHMENT), fail(OTHER)]);
    expect(lines.map(({ attachment }) => attachment)).toEqual(['podwire/c0ffee/eth0', 'podwire/c0ffee/eth1']);
  });
});

describe('an error', () => {
  const logged = (error: unknown) => {
    const { log, lines } = logger();
    log.error({ err: error }, 'failed');
    return lines[0]?.err;
  };

  test('of Podwire has code and details, without a stack, with its cause', () => {
    const cause = new RangeError('too far');
    const failure = new Failure('STORE_UNAVAILABLE', 'the store is gone', { details: { path: '/a' }, cause });
    expect(logged(failure)).toEqual({
      type: 'Failure',
      message: 'the store is gone',
      code: 'STORE_UNAVAILABLE',
      details: { path: '/a' },
      cause: { type: 'RangeError', message: 'too far', stack: expect.stringContaining('log.test.ts') },
    });
  });

  test('of a call has the trace of the call, which may differ from the line’s', () => {
    const failure = new Failure('CONFLICT', 'busy', { traceId: '0af7651916cd43dd8448eb211c80319c' });
    expect(logged(failure)).toMatchObject({ trace_id: '0af7651916cd43dd8448eb211c80319c' });
  });

  test('that is a defect has its stack', () => {
    expect(logged(new TypeError('x'))).toEqual({ type: 'TypeError', message: 'x', stack: expect.any(String) });
    expect(logged(new Failure('INTERNAL', 'x'))).toHaveProperty('stack');
  });

  test('with several errors has each', () => {
    const error = new AggregateError([new Error('one'), 'two']);
    expect(logged(error)).toMatchObject({ errors: [{ message: 'one' }, { type: 'string', message: "'two'" }] });
  });

  test.each([
    ['a text', "'a text'", 'string'],
    [null, 'null', 'object'],
    [{ code: 7 }, '{ code: 7 }', 'object'],
  ])('that is %j, not an Error, is shown unchanged', (thrown, message, type) => {
    expect(logged(thrown)).toEqual({ type, message });
  });

  test('that is its own cause ends', () => {
    const error = new Error('round');
    error.cause = error;
    expect(logged(error)).toMatchObject({ message: 'round', cause: { message: 'round' } });
  });
});

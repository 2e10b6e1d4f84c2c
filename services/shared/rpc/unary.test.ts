import { once } from 'node:events';
import process from 'node:process';

import { Client, credentials, Metadata, status } from '@grpc/grpc-js';
import { context } from '@opentelemetry/api';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { withAttachment } from '../runtime/log.js';
import { propagateTraces } from '../telemetry/telemetry.js';
import { authorIn } from './access.js';
import { echoPool, TestServers, Gate, GET_POOL, LIST_POOLS, callLimits, type GetPool } from '../testing/server.js';

let servers: TestServers;

beforeAll(() => propagateTraces());

afterAll(() => context.disable());

beforeEach(() => {
  servers = new TestServers();
});

afterEach(() => servers.clear());

const reject = (error: Error): GetPool => {
  return () => Promise.reject(error);
};

/** A handler that waits for its signal, reports it, and throws its reason. */
function waiting() {
  const begun = new Gate();
  const ended = new Gate();
  const reasons: unknown[] = [];
  const getPool: GetPool = async (_, { signal }) => {
    begun.open();
    if (!signal.aborted) await once(signal, 'abort');
    reasons.push(signal.reason);
    ended.open();
    throw signal.reason;
  };
  const reason = ended.opened.then(() => reasons[0]);
  return { getPool, reason, started: begun.opened };
}

test('a call is answered', async () => {
  await servers.serve();
  const answer = await servers.peer().call(GET_POOL, { name: 'a' }, callLimits());
  expect(answer.pool).toMatchObject({ name: 'a', createTime: new Date(0) });
});

test('a handler’s work has its caller as author, and other work has none', async () => {
  const authors: (string | undefined)[] = [];
  await servers.serve({
    getPool: async (request, call) => {
      await Promise.resolve();
      authors.push(authorIn(context.active()));
      return echoPool(request, call);
    },
  });
  await servers.peer().call(GET_POOL, { name: 'a' }, callLimits());
  expect([...authors, authorIn(context.active())]).toEqual(['local process', undefined]);
});

test('a call whose bytes are no message is the caller’s fault', async () => {
  await servers.serve();
  const client = new Client(servers.address(), credentials.createInsecure());
  const error = await new Promise<unknown>((resolve) => {
    const bytes = Buffer.from([0x0a, 0xff, 0xff, 0xff]);
    client.makeUnaryRequest(
      GET_POOL.path,
      (sent: Buffer) => sent,
      (got) => got,
      bytes,
      (failure) => resolve(failure),
    );
  });
  client.close();
  const details = expect.stringMatching(/^podwire\.ipam\.v1\.PoolService\/GetPool: the request cannot be decoded \(/);
  expect(error).toMatchObject({ code: status.INVALID_ARGUMENT, details });
});

test('a call’s signal may have any number of listeners, without a leak warning of Node', async () => {
  const warnings: Error[] = [];
  const note = (warning: Error): unknown => warnings.push(warning);
  process.on('warning', note);
  await servers.serve({
    getPool: (request, call) => {
      for (let count = 0; count < 30; count++) call.signal.addEventListener('abort', () => count);
      return echoPool(request, call);
    },
  });
  await servers.peer().call(GET_POOL, { name: 'a' }, callLimits());
  process.off('warning', note);
  expect(warnings).toEqual([]);
});

describe('a failure', () => {
  test('is sent completely, and is logged with its details', async () => {
    const failure = new Failure('POOL_IN_USE', 'pool a: 3 addresses are in use; release them first', {
      violations: [{ field: 'name', reason: 'is in use' }],
      details: { pool: 'a' },
      cause: new Error('hidden'),
    });
    const attachment = { network: 'n', containerId: 'c', interfaceName: 'eth0' };
    const { lines } = await servers.serve({ getPool: () => withAttachment(attachment, () => Promise.reject(failure)) });
    await expect(servers.peer().call(GET_POOL, { name: 'a' }, callLimits())).rejects.toMatchObject({
      code: 'POOL_IN_USE',
      message: failure.message,
      violations: failure.violations,
      details: failure.details,
    });
    expect(lines.at(-1)).toMatchObject({
      level: 'info',
      rpc: 'podwire.ipam.v1.PoolService/GetPool',
      status: 'FAILED_PRECONDITION',
      attachment: 'n/c/eth0',
      err: { code: 'POOL_IN_USE', cause: { message: 'hidden' } },
    });
  });

  test('of several calls, as of a group commit, is logged with the attachment of each', async () => {
    const shared = new Failure('STORE_UNAVAILABLE', 'the store is gone');
    const both = new Gate();
    const names: string[] = [];
    const { lines } = await servers.serve({
      getPool: ({ name }) =>
        withAttachment({ network: 'n', containerId: name, interfaceName: 'eth0' }, async () => {
          if (names.push(name) === 2) both.open();
          await both.opened;
          throw shared;
        }),
    });
    const call = (name: string) => servers.peer().call(GET_POOL, { name }, callLimits());
    await Promise.allSettled([call('a'), call('b')]);
    const failed = lines.filter(({ err }) => err !== undefined);
    expect(failed.map(({ attachment }) => attachment).sort()).toEqual(['n/a/eth0', 'n/b/eth0']);
  });

  test('that is very long is cut, and the connection stays usable', async () => {
    const { lines } = await servers.serve({
      getPool: (request, call) => {
        if (request.name === 'long') throw new Failure('POOLS_EXHAUSTED', 'pool '.repeat(40_000));
        return echoPool(request, call);
      },
    });
    const peer = servers.peer();
    await expect(peer.call(GET_POOL, { name: 'long' }, callLimits())).rejects.toMatchObject({
      code: 'POOLS_EXHAUSTED',
    });
    expect(lines.at(-1)).toMatchObject({ err: { message: 'pool '.repeat(40_000) } });
    await expect(peer.call(GET_POOL, { name: 'a' }, callLimits())).resolves.toMatchObject({ pool: { name: 'a' } });
  });

  test('that is a defect becomes a neutral text for the caller, and is complete in the log', async () => {
    const { lines } = await servers.serve({ getPool: reject(new TypeError('password is hunter2')) });
    const call = servers.peer().call(GET_POOL, { name: 'a' }, callLimits());
    await expect(call).rejects.toMatchObject({
      code: 'INTERNAL',
      message: 'internal error: see the service’s log under this trace',
    });
    expect(lines.at(-1)).toMatchObject({
      level: 'error',
      status: 'INTERNAL',
      err: { type: 'TypeError', message: 'password is hunter2', stack: expect.stringContaining('unary.test.ts') },
    });
  });

  test('of a handler that throws synchronously counts as well', async () => {
    await servers.serve({
      getPool: () => {
        throw new Failure('POOL_NOT_FOUND', 'pool a: there is none');
      },
    });
    const call = servers.peer().call(GET_POOL, { name: 'a' }, callLimits());
    await expect(call).rejects.toMatchObject({ code: 'POOL_NOT_FOUND' });
  });

  test('UNIMPLEMENTED is the answer for a missing method', async () => {
    await servers.serve();
    const call = servers.peer().call(LIST_POOLS, { pageSize: 0, pageToken: '' }, callLimits());
    await expect(call).rejects.toMatchObject({
      code: 'UNIMPLEMENTED',
      message: expect.stringContaining(servers.address()),
    });
  });
});

describe('the signal', () => {
  test('aborts at the caller’s deadline, on both sides', async () => {
    const { getPool, reason } = waiting();
    await servers.serve({ getPool });
    const call = servers.peer().call(GET_POOL, { name: 'a' }, callLimits(1000));
    await expect(call).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    // The remaining time counts from the arrival of the call, so the caller may cancel before it is over.
    await expect(reason).resolves.toMatchObject({ code: expect.stringMatching(/^(DEADLINE_EXCEEDED|CANCELLED)$/) });
  });

  test('aborts at the deadline that the caller sent, though the caller keeps waiting', async () => {
    const { getPool, reason } = waiting();
    await servers.serve({ getPool });
    const metadata = new Metadata({ waitForReady: true });
    metadata.set('grpc-timeout', '150m');
    const client = new Client(servers.address(), credentials.createInsecure());
    const { path, requestSerialize, responseDeserialize } = GET_POOL;
    const answer = new Promise((resolve) => {
      client.makeUnaryRequest(path, requestSerialize, responseDeserialize, { name: 'a' }, metadata, resolve);
    });
    await expect(reason).resolves.toMatchObject({
      code: 'DEADLINE_EXCEEDED',
      message: expect.stringMatching(/^no answer within the call's timeout of \d+ ms$/),
    });
    await expect(answer).resolves.toMatchObject({ code: status.DEADLINE_EXCEEDED });
    client.close();
  });

  test('aborts when the caller cancels', async () => {
    const { getPool, reason, started } = waiting();
    await servers.serve({ getPool });
    const controller = new AbortController();
    const call = servers.peer().call(GET_POOL, { name: 'a' }, { ...callLimits(), signal: controller.signal });
    const outcome = expect(call).rejects.toMatchObject({ code: 'CANCELLED' });
    await started;
    controller.abort();
    await outcome;
    await expect(reason).resolves.toMatchObject({ code: 'CANCELLED', message: 'the caller cancelled the call' });
  });

  test('aborts after the default time where the caller set none', async () => {
    const { getPool } = waiting();
    await servers.serve({ getPool, defaultCallTimeoutMs: 100 });
    const call = servers.peer().call(GET_POOL, { name: 'a' }, { deadlineMs: Infinity });
    await expect(call).rejects.toMatchObject({
      code: 'DEADLINE_EXCEEDED',
      message: "no answer within the call's timeout of 100 ms",
    });
  });

  test('does not abort before the deadline, however far it is, nor after the answer', async () => {
    const signals: AbortSignal[] = [];
    await servers.serve({
      defaultCallTimeoutMs: Number.MAX_SAFE_INTEGER,
      getPool: async (request, call) => {
        signals.push(call.signal);
        await new Promise((resolve) => setTimeout(resolve, 20));
        call.signal.throwIfAborted();
        return echoPool(request, call);
      },
    });
    const peer = servers.peer();
    await peer.call(GET_POOL, { name: 'a' }, callLimits(20_000));
    await peer.call(GET_POOL, { name: 'a' }, { deadlineMs: Infinity });
    expect(signals.map(({ aborted }) => aborted)).toEqual([false, false]);
  });
});

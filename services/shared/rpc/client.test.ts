import { createServer } from 'node:http2';

import { Server, ServerCredentials, ServerInterceptingCall, status, type StatusObject } from '@grpc/grpc-js';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { TestServers, Gate, GET_POOL, pool, callLimits } from '../testing/server.js';

let servers: TestServers;

beforeEach(() => {
  servers = new TestServers();
});

afterEach(() => servers.clear());

const call = (peer = servers.peer(), durationMs?: number) => peer.call(GET_POOL, { name: 'a' }, callLimits(durationMs));

describe('a service that is down', () => {
  test('is waited for', async () => {
    const answer = call();
    await new Promise((resolve) => setTimeout(resolve, 200));
    await servers.serve();
    await expect(answer).resolves.toMatchObject({ pool: { name: 'a' } });
  });

  test('is waited for until the deadline, and named in the failure', async () => {
    const failed = call(servers.peer(), 150);
    await expect(failed).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED', retryable: true });
    await expect(failed).rejects.toThrow(`podwire-ipam at ${servers.address()}: did not answer in time`);
  });

  test('is not waited for once the caller cancels', async () => {
    const signal = AbortSignal.timeout(50);
    const failed = servers.peer().call(GET_POOL, { name: 'a' }, { ...callLimits(), signal });
    await expect(failed).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  test('may be restarted: the same peer finds it again', async () => {
    const peer = servers.peer();
    for (const round of [1, 2, 3]) {
      const { server } = await servers.serve();
      await expect(call(peer), `round ${round}`).resolves.toMatchObject({ pool: { name: 'a' } });
      await server.stop();
    }
  });

  test('may be cut off: the call in flight is UNREACHABLE or cancelled, and may be retried', async () => {
    const begun = new Gate();
    const { server } = await servers.serve({
      drainTimeoutMs: 50,
      getPool: () => {
        begun.open();
        return new Promise(() => undefined);
      },
    });
    const failed = call();
    const outcome = expect(failed).rejects.toMatchObject({ name: 'Failure', retryable: true });
    await begun.opened;
    await server.stop();
    await outcome;
  });
});

describe('a call', () => {
  test('whose deadline has passed is not made', async () => {
    let calls = 0;
    await servers.serve({ getPool: () => Promise.reject(new Failure('INTERNAL', `call ${++calls}`)) });
    await expect(call(servers.peer(), -1)).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    expect(calls).toBe(0);
  });

  test('whose signal is aborted is not made', async () => {
    let calls = 0;
    await servers.serve({ getPool: () => Promise.reject(new Failure('INTERNAL', `call ${++calls}`)) });
    const limits = { ...callLimits(), signal: AbortSignal.abort() };
    await expect(servers.peer().call(GET_POOL, { name: 'a' }, limits)).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(calls).toBe(0);
  });

  test('leaves no listener on the caller’s signal', async () => {
    await servers.serve();
    const { signal } = new AbortController();
    const listening = new Set<unknown>();
    const add = signal.addEventListener.bind(signal);
    const remove = signal.removeEventListener.bind(signal);
    signal.addEventListener = (type: string, listener: () => void) => {
      listening.add(listener);
      add(type, listener);
    };
    signal.removeEventListener = (type: string, listener: () => void) => {
      listening.delete(listener);
      remove(type, listener);
    };
    await servers.peer().call(GET_POOL, { name: 'a' }, { ...callLimits(), signal });
    expect(listening.size).toBe(0);
  });

  test('whose request is too large is not made, with the reason', async () => {
    let calls = 0;
    await servers.serve({ getPool: () => Promise.reject(new Failure('INTERNAL', `call ${++calls}`)) });
    const [peer, request] = [servers.peer(), { name: 'a'.repeat(1024 * 1024) }];
    await expect(peer.call(GET_POOL, request, callLimits())).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      message: `podwire-ipam at ${servers.address()}: request is larger than 1048576 bytes; send a smaller one`,
    });
    expect(calls).toBe(0);
  });

  test('over a closed channel fails like every call', async () => {
    const peer = servers.peer();
    peer.close();
    peer.close();
    await expect(call(peer)).rejects.toMatchObject({ name: 'Failure', code: 'CANCELLED' });
  });
});

describe('an answer', () => {
  /** Serves GetPool: the message at once, the status when `gate` opens, with a failure where one is given. */
  const serveWith = async (gate: Gate, other?: Partial<StatusObject>): Promise<string> => {
    const server = new Server({
      interceptors: [
        (_, next) =>
          new ServerInterceptingCall(next, {
            sendStatus: (told, send) => void gate.opened.then(() => send({ ...told, ...other })),
          }),
      ],
    });
    server.addService(
      { getPool: GET_POOL },
      { getPool: (_: unknown, reply: Reply) => reply(null, { pool: pool('a') }) },
    );
    const address = `unix:${servers.folder}/late.sock`;
    await new Promise((resolve) => server.bindAsync(address, ServerCredentials.createInsecure(), resolve));
    ends.push(() => server.forceShutdown());
    return address;
  };
  type Reply = (error: null, value: { readonly pool: ReturnType<typeof pool> }) => void;
  const ends: (() => void)[] = [];

  afterEach(() => ends.splice(0).forEach((end) => end()));

  test('counts from the arrival of its message, and a later cancellation does not change it', async () => {
    const gate = new Gate();
    const peer = servers.peer(await serveWith(gate));
    const given = new AbortController();
    const limits = { ...callLimits(), signal: given.signal };
    await expect(peer.call(GET_POOL, { name: 'a' }, limits)).resolves.toMatchObject({ pool: { name: 'a' } });
    given.abort();
    gate.open();
    await expect(peer.call(GET_POOL, { name: 'a' }, callLimits())).resolves.toMatchObject({ pool: { name: 'a' } });
  });

  test('is kept, with any later status', async () => {
    const gate = new Gate();
    const peer = servers.peer(await serveWith(gate, { code: status.INTERNAL, details: 'late' }));
    await expect(call(peer)).resolves.toMatchObject({ pool: { name: 'a' } });
    gate.open();
    // The call uses the same channel, so it comes after that status.
    await expect(call(peer)).resolves.toMatchObject({ pool: { name: 'a' } });
  });

  test('of success without a message is a defect of the service, not a missing method', async () => {
    const server = createServer();
    server.on('stream', (stream) => {
      stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true });
      stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' })).end();
    });
    const path = `${servers.folder}/empty.sock`;
    await new Promise<void>((resolve) => server.listen(path, resolve));
    ends.push(() => server.close());
    const peer = servers.peer(`unix:${path}`);
    await expect(call(peer)).rejects.toMatchObject({ code: 'INTERNAL', message: expect.stringContaining('message') });
    peer.close();
  });

  test('that cannot be read is a failure', async () => {
    const gate = new Gate();
    const peer = servers.peer(await serveWith(gate));
    const unreadable = {
      ...GET_POOL,
      responseDeserialize: () => {
        throw new Error('not a pool');
      },
    };
    const failed = peer.call(unreadable, { name: 'a' }, callLimits());
    gate.open();
    await expect(failed).rejects.toMatchObject({ name: 'Failure' });
    await expect(failed).rejects.toThrow('not a pool');
  });
});

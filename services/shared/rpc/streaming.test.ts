import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Client, connectivityState, credentials, status } from '@grpc/grpc-js';
import {
  FollowPoliciesRequest,
  FollowPoliciesResponse,
  NetworkPolicyServiceService,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import { WatchResponse, WatchServiceService, type WatchRequest } from '@podwire/proto/podwire/ipam/v1/watch';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { systemClock } from '../runtime/clock.js';
import { Gate, recordingLog } from '../testing/server.js';
import { Peer } from './client.js';
import { RpcServer } from './server.js';
import { preparedMethod, type StreamHandler } from './streaming.js';

type Watch = StreamHandler<WatchRequest, WatchResponse>;

const { watch: WATCH } = WatchServiceService;
const forever = new AbortController().signal;

const message = (resumeToken: string): WatchResponse => WatchResponse.fromPartial({ resumeToken });
const REQUEST: WatchRequest = { kinds: [], resumeToken: '' };

let folder: string;
const servers: RpcServer[] = [];
const peers: Peer[] = [];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-streams-'));
});

afterEach(async () => {
  for (const peer of peers.splice(0)) peer.close();
  await Promise.all(servers.splice(0).map((server) => server.stop()));
  rmSync(folder, { recursive: true });
});

async function serve(
  watch: Watch,
  limits: { readonly maxStreamsCount?: number; readonly drainTimeoutMs?: number } = {},
) {
  const { log, lines } = recordingLog();
  const server = new RpcServer({
    addresses: [`unix:${join(folder, 'a.sock')}`],
    log,
    clock: systemClock,
    defaultCallTimeoutMs: 50,
    drainTimeoutMs: 5000,
    ...limits,
    services: (_, streaming) => [
      {
        name: 'podwire.ipam.v1.WatchService',
        definition: WatchServiceService,
        implementation: { watch: streaming(WATCH, watch) },
      },
    ],
  });
  const [address = ''] = await server.listen();
  servers.push(server);
  const peer = new Peer('podwire-ipam', address);
  peers.push(peer);
  return { server, peer, lines, address };
}

/** Tokens of all messages, and the end of the stream. */
async function received(stream: AsyncIterable<WatchResponse>): Promise<{ tokens: string[]; error: unknown }> {
  const tokens: string[] = [];
  try {
    for await (const { resumeToken } of stream) tokens.push(resumeToken);
    return { tokens, error: undefined };
  } catch (error) {
    return { tokens, error };
  }
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
}

/** Sends one message, and then waits for its end; records when it was cancelled. */
function endless() {
  const left = new Gate();
  const watch: Watch = async function* (_, { signal }) {
    try {
      yield message('first');
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve));
    } finally {
      left.open();
    }
  };
  return { watch, left: left.opened };
}

test('messages come in their order, and the stream ends with its handler', async () => {
  const { peer, server } = await serve(async function* ({ resumeToken }) {
    for (let index = 0; index < 3; index++) yield message(`${resumeToken}${index}`);
    await Promise.resolve();
  });
  const stream = peer.stream(WATCH, { ...REQUEST, resumeToken: 'p' }, forever);
  await expect(received(stream)).resolves.toEqual({ tokens: ['p0', 'p1', 'p2'], error: undefined });
  expect(server.streamsCount).toBe(0);
});

test('a stream has no time limit of the server’s', async () => {
  const { peer } = await serve(async function* () {
    await new Promise((resolve) => setTimeout(resolve, 200));
    yield message('late');
  });
  await expect(received(peer.stream(WATCH, REQUEST, forever))).resolves.toMatchObject({ tokens: ['late'] });
});

test('a failure in mid-stream arrives completely after the messages before it, and is logged', async () => {
  const { peer, lines } = await serve(async function* () {
    yield message('one');
    await Promise.resolve();
    throw new Failure('STORE_UNAVAILABLE', 'no etcd', { details: { endpoint: 'a' } });
  });
  const { tokens, error } = await received(peer.stream(WATCH, REQUEST, forever));
  expect(tokens).toEqual(['one']);
  expect(error).toMatchObject({ code: 'STORE_UNAVAILABLE', message: 'no etcd', details: { endpoint: 'a' } });
  expect(lines.at(-1)).toMatchObject({
    level: 'error',
    rpc: 'podwire.ipam.v1.WatchService/Watch',
    status: 'UNAVAILABLE',
  });
});

test('a defect becomes a neutral text', async () => {
  const { peer, lines } = await serve(() => {
    throw new TypeError('password is hunter2');
  });
  const { error } = await received(peer.stream(WATCH, REQUEST, forever));
  expect(error).toMatchObject({ code: 'INTERNAL', message: 'internal error: see the service’s log under this trace' });
  expect(lines.at(-1)).toMatchObject({ err: { message: 'password is hunter2' } });
});

describe('the end', () => {
  test('by the caller’s signal closes the handler and leaves nothing open', async () => {
    const { watch, left } = endless();
    const { peer, server, lines } = await serve(watch);
    const controller = new AbortController();
    const end = received(peer.stream(WATCH, REQUEST, controller.signal));
    await until(() => server.streamsCount === 1);
    controller.abort();
    await left;
    expect((await end).error).toMatchObject({ code: 'CANCELLED' });
    await until(() => server.streamsCount === 0);
    expect(lines.filter(({ level }) => level === 'error')).toEqual([]);
  });

  test('by the end of the iteration has the same effect', async () => {
    const { watch, left } = endless();
    const { peer, server } = await serve(watch);
    for await (const { resumeToken } of peer.stream(WATCH, REQUEST, forever)) {
      expect(resumeToken).toBe('first');
      break;
    }
    await left;
    await until(() => server.streamsCount === 0);
  });

  test('of the server is UNAVAILABLE at once, also for later callers', async () => {
    const { watch, left } = endless();
    const { peer, server } = await serve(watch, { drainTimeoutMs: 600_000 });
    const ends = [1, 2, 3].map(() => received(peer.stream(WATCH, REQUEST, forever)));
    await until(() => server.streamsCount === 3);
    await server.stop();
    await left;
    for (const { tokens, error } of await Promise.all(ends)) {
      expect(tokens).toEqual(['first']);
      expect(error).toMatchObject({
        code: 'UNREACHABLE',
        message: 'the server is stopping; retry, or call another replica',
      });
    }
    expect(server.streamsCount).toBe(0);
  });

  test('of the server does not wait for a client that does not read', async () => {
    const { peer, server } = await serve(
      async function* () {
        for (;;) yield await Promise.resolve(message('x'.repeat(100_000)));
      },
      { drainTimeoutMs: 200 },
    );
    const stream = peer.stream(WATCH, REQUEST, forever)[Symbol.asyncIterator]();
    await stream.next();
    await server.stop();
    expect(server.streamsCount).toBe(0);
    await stream.return(undefined);
  });
});

test('a client that does not read is sent no more than the connection holds', async () => {
  let yielded = 0;
  const { peer, server } = await serve(async function* () {
    for (; yielded < 2000; yielded++) yield await Promise.resolve(message('x'.repeat(100_000)));
  });
  const controller = new AbortController();
  const stream = peer.stream(WATCH, REQUEST, controller.signal);
  await stream.next();
  let before = -1;
  while (before !== yielded) {
    before = yielded;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  expect(yielded).toBeLessThan(100);
  controller.abort();
  await stream.return();
  await until(() => server.streamsCount === 0);
});

test('one stream beyond the server’s limit is refused, until one ends', async () => {
  const { watch } = endless();
  const { peer, server } = await serve(watch, { maxStreamsCount: 1 });
  const first = peer.stream(WATCH, REQUEST, forever);
  await first.next();
  const { error } = await received(peer.stream(WATCH, REQUEST, forever));
  expect(error).toMatchObject({ code: 'TOO_MANY_STREAMS' });
  await first.return();
  await until(() => server.streamsCount === 0);
  const second = peer.stream(WATCH, REQUEST, forever);
  await expect(second.next()).resolves.toMatchObject({ value: { resumeToken: 'first' } });
  await second.return();
});

test('messages that are bytes already are sent unchanged', () => {
  const method = preparedMethod(WATCH);
  const bytes = WatchResponse.encode(message('t')).finish();
  expect(WATCH.responseDeserialize(method.responseSerialize(bytes))).toEqual(message('t'));
  expect(method.responseSerialize(bytes).buffer).toBe(bytes.buffer);
});

test('a closed channel opens no stream', async () => {
  const { peer } = await serve(endless().watch);
  peer.close();
  const { error } = await received(peer.stream(WATCH, REQUEST, forever));
  expect(error).toMatchObject({ code: 'CANCELLED' });
});

describe('a method with a stream of requests', () => {
  const { followPolicies: FOLLOW } = NetworkPolicyServiceService;
  const first = FollowPoliciesRequest.fromPartial({ nodeName: 'n1' });
  const acknowledged = (number: bigint) => FollowPoliciesRequest.fromPartial({ acknowledgedNumber: number });

  /** Answers the first request with message 1, and each further one with the message after it. */
  const echo: StreamHandler<FollowPoliciesRequest, FollowPoliciesResponse> = async function* (
    _,
    { onRequest, signal },
  ) {
    let wake: (number: bigint) => void = () => undefined;
    onRequest(({ acknowledgedNumber: number }) => {
      if (number > 9n) throw new Failure('INVALID_REQUEST', 'too high');
      wake(number);
    });
    for (let number = 0n; !signal.aborted;) {
      yield FollowPoliciesResponse.fromPartial({ number: number + 1n });
      number = await new Promise<bigint>((resolve) => {
        wake = resolve;
        signal.addEventListener('abort', () => resolve(0n));
      });
    }
  };

  async function serveEcho() {
    const { log, lines } = recordingLog();
    const server = new RpcServer({
      ...{ addresses: [`unix:${join(folder, 'a.sock')}`], log, clock: systemClock },
      ...{ defaultCallTimeoutMs: 50, drainTimeoutMs: 60_000 },
      services: (_, streaming) => [
        {
          name: 'podwire.ipam.v1.NetworkPolicyService',
          definition: { followPolicies: FOLLOW },
          implementation: { followPolicies: streaming(FOLLOW, echo) },
        },
      ],
    });
    const [address = ''] = await server.listen();
    servers.push(server);
    return { server, lines, address };
  }

  test('gives further requests to its handler, whose failure ends the call', async () => {
    const { address } = await serveEcho();
    const peer = new Peer('podwire-ipam', address);
    peers.push(peer);
    let send: (request: FollowPoliciesRequest) => void = () => undefined;
    const stream = peer.stream(FOLLOW, first, forever, (opened) => (send = opened));
    await expect(stream.next()).resolves.toMatchObject({ value: { number: 1n } });
    for (const number of [1n, 4n]) {
      send(acknowledged(number));
      await expect(stream.next()).resolves.toMatchObject({ value: { number: number + 1n } });
    }
    send(acknowledged(10n));
    await expect(stream.next()).rejects.toMatchObject({ code: 'INVALID_REQUEST', message: 'too high' });
    // After the end it does nothing.
    send(acknowledged(1n));
  });

  test.each([
    ['refuses a call that ends without a request', (call: { end(): void }) => call.end(), status.INVALID_ARGUMENT],
    [
      'ends a call without a request when it drains',
      (_: unknown, server: RpcServer) => server.stop(),
      status.UNAVAILABLE,
    ],
  ])('%s', async (_, act, code) => {
    const { address, server } = await serveEcho();
    const client = new Client(address, credentials.createInsecure());
    const call = client.makeBidiStreamRequest(FOLLOW.path, FOLLOW.requestSerialize, FOLLOW.responseDeserialize);
    const ended = new Promise((resolve) => call.on('error', resolve));
    call.resume();
    await until(() => client.getChannel().getConnectivityState(true) === connectivityState.READY);
    await new Promise((resolve) => setTimeout(resolve, 20));
    void act(call, server);
    await expect(ended).resolves.toMatchObject({ code });
    client.close();
  });
});

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Client, credentials, status } from '@grpc/grpc-js';
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
import { preparedMethod, type DuplexHandler, type StreamHandler } from './streaming.js';

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

describe('a stream with messages of the caller', () => {
  const FOLLOW = NetworkPolicyServiceService.followPolicies;
  type Follow = DuplexHandler<FollowPoliciesRequest, FollowPoliciesResponse>;

  const request = (fields: Partial<FollowPoliciesRequest>) => FollowPoliciesRequest.fromPartial(fields);
  const response = (number: bigint) => FollowPoliciesResponse.fromPartial({ number });

  async function serveDuplex(follow: Follow) {
    const server = new RpcServer({
      addresses: [`unix:${join(folder, 'duplex.sock')}`],
      ...{ log: recordingLog().log, clock: systemClock, defaultCallTimeoutMs: 50, drainTimeoutMs: 5000 },
      services: (_, streaming) => [
        {
          name: 'podwire.ipam.v1.NetworkPolicyService',
          definition: { followPolicies: FOLLOW },
          implementation: { followPolicies: streaming.duplex(FOLLOW, follow) },
        },
      ],
    });
    const [address = ''] = await server.listen();
    servers.push(server);
    const peer = new Peer('podwire-ipam', address);
    peers.push(peer);
    return { server, peer, address };
  }

  /** Answers each later message with its number. */
  const echo: Follow = async function* ({ nodeName }, { signal }, later) {
    const numbers = [BigInt(nodeName.length)];
    let wake = (): void => undefined;
    later(({ acknowledgedNumber }) => {
      numbers.push(acknowledgedNumber);
      wake();
    });
    signal.addEventListener('abort', () => wake());
    while (!signal.aborted) {
      const [number] = numbers.splice(0, 1);
      if (number === undefined) await new Promise<void>((resolve) => (wake = resolve));
      else yield response(number);
    }
  };

  test('gets them in their order, also those before it listens, and none after its end', async () => {
    const { peer, server } = await serveDuplex(echo);
    let send: (message: FollowPoliciesRequest) => void = () => undefined;
    const numbers: bigint[] = [];
    for await (const { number } of peer.stream(FOLLOW, request({ nodeName: 'n' }), forever, (open) => (send = open))) {
      if (number === 1n) for (let next = 2n; next <= 50n; next++) send(request({ acknowledgedNumber: next }));
      numbers.push(number);
      if (number === 50n) break;
    }
    expect(numbers).toEqual(Array.from({ length: 50 }, (_, index) => BigInt(index + 1)));
    send(request({ acknowledgedNumber: 51n }));
    await until(() => server.streamsCount === 0);
  });

  test('continues when the caller sends no more, and is refused when it has sent nothing', async () => {
    const { address } = await serveDuplex(echo);
    const client = new Client(address, credentials.createInsecure());
    const open = () => client.makeBidiStreamRequest(FOLLOW.path, FOLLOW.requestSerialize, FOLLOW.responseDeserialize);
    const call = open();
    call.end(request({ nodeName: 'node' }));
    await expect(call[Symbol.asyncIterator]().next()).resolves.toMatchObject({ value: { number: 4n } });
    const silent = open();
    silent.end();
    await expect(silent[Symbol.asyncIterator]().next()).rejects.toMatchObject({ code: status.INVALID_ARGUMENT });
    client.close();
  });

  test('ends with the failure of a message that cannot be decoded', async () => {
    const { peer } = await serveDuplex(echo);
    let send: (message: FollowPoliciesRequest) => void = () => undefined;
    const method = {
      ...FOLLOW,
      requestSerialize: (message: FollowPoliciesRequest) =>
        message.nodeName === '' ? Buffer.from([0xff]) : FOLLOW.requestSerialize(message),
    };
    const stream = peer.stream(method, request({ nodeName: 'n' }), forever, (open) => (send = open));
    await stream.next();
    send(request({}));
    await expect(stream.next()).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
  });
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

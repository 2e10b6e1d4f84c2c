import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';

import { Client, compressionAlgorithms, credentials, status, type ChannelOptions } from '@grpc/grpc-js';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { WatchResponse, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { service as healthService } from 'grpc-health-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { systemClock } from '../runtime/clock.js';
import { certificateSource, CertificateFolder } from '../testing/certificates.js';
import { ManualClock } from '../testing/manual-clock.js';
import { callLimits, echoPool, Gate, GET_POOL, recordingLog, TestServers } from '../testing/server.js';
import { IPAM_SERVER_NAME, type Role } from '../tls/caller.js';
import type { Peer } from './client.js';
import { MAX_REQUEST_BYTES } from './connection.js';
import { NetworkListener, type NetworkLimits } from './network-listener.js';
import { RpcServer } from './server.js';
import { MAX_STREAMS_PER_CALLER } from './streaming.js';

/** Limits of a client at the network listener. Requests with the name "held" wait for a gate. */

const QUEUE_LIMITS = { maxExecutingCount: 16, maxExecutingPerCallerCount: 4, maxCallersPerTurn: 8 };
/** Used budgets do not come back during a test. */
const NETWORK_LIMITS: NetworkLimits = {
  connectionsPerCaller: 2,
  connectionsPerSource: 5,
  handshakes: { burst: 12, perSecond: 0.001 },
  openCalls: 40,
  calls: { burst: 60, perSecond: 0.001 },
};
/** More than execute at once. */
const FLOOD = 15;

const REQUEST = { kinds: [], resumeToken: '' };
const { watch: WATCH } = WatchServiceService;

/** Its folder and clients are used. */
let clients: TestServers;
let folder: CertificateFolder;
let server: RpcServer;
let gate: Gate;
let address: string;
let localAddress: string;
/** Names of the requests that were executed. */
let executed: string[];
let lines: Record<string, unknown>[];
/** Serial numbers of certificates. */
let revoked: Set<string>;
let isAllRevoked: boolean;

beforeEach(async () => {
  clients = new TestServers();
  folder = await CertificateFolder.create(join(clients.folder, 'certificates'));
  gate = new Gate();
  executed = [];
  revoked = new Set();
  isAllRevoked = false;
  localAddress = clients.address();
  const recording = recordingLog();
  ({ lines } = recording);
  server = new RpcServer({
    addresses: ['127.0.0.1:0', localAddress],
    defaultCallTimeoutMs: 60_000,
    drainTimeoutMs: 0,
    certificates: certificateSource(await folder.server()).source,
    proofs: { isRevoked: (serialNumber) => Promise.resolve(isAllRevoked || revoked.has(serialNumber)) },
    queueLimits: QUEUE_LIMITS,
    networkLimits: NETWORK_LIMITS,
    log: recording.log,
    clock: systemClock,
    services: (unary, streaming) => [
      {
        name: 'podwire.ipam.v1.PoolService',
        definition: PoolServiceService,
        implementation: {
          getPool: unary(GET_POOL, async (request, call) => {
            executed.push(request.name);
            if (request.name === 'held') await gate.opened;
            return echoPool(request, call);
          }),
        },
      },
      {
        name: 'podwire.ipam.v1.WatchService',
        definition: WatchServiceService,
        implementation: {
          watch: streaming(WATCH, async function* (_, { signal }) {
            yield WatchResponse.fromPartial({ resumeToken: 'first' });
            if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve));
          }),
        },
      },
    ],
  });
  [address = ''] = await server.listen();
  server.setServing();
});

afterEach(async () => {
  gate.open();
  await server.stop();
  await clients.clear();
});

async function peerOf(role: Role, name: string): Promise<Peer> {
  const tls = { certificates: certificateSource(await folder.client(role, name)).source, serverName: IPAM_SERVER_NAME };
  return clients.peer(address, { tls });
}

const getPool = (peer: Peer, name: string, timeoutMs?: number) => peer.call(GET_POOL, { name }, callLimits(timeoutMs));

const failureOf = (call: Promise<unknown>): Promise<unknown> =>
  call.then(() => undefined).catch((error: unknown) => error);

/** Sends requests that are held, and waits until as many execute as may. */
async function flood(peer: Peer, count = FLOOD): Promise<{ readonly outcomes: Promise<unknown>[] }> {
  const outcomes = Array.from({ length: count }, () => failureOf(getPool(peer, 'held')));
  await expect.poll(() => executed).toHaveLength(QUEUE_LIMITS.maxExecutingPerCallerCount);
  return { outcomes };
}

describe('while one node floods', () => {
  test('another node is served after no more of its requests than execute at once, and all are served in the end', async () => {
    const { outcomes } = await flood(await peerOf('node', 'worker-1'));

    await getPool(await peerOf('node', 'worker-2'), 'web');

    expect(executed.indexOf('web')).toBe(QUEUE_LIMITS.maxExecutingPerCallerCount);
    gate.open();
    expect(await Promise.all(outcomes)).toEqual(outcomes.map(() => undefined));
    expect(executed).toHaveLength(FLOOD + 1);
  });

  test('operators, local calls and health checks are served', async () => {
    const flooder = await peerOf('node', 'worker-1');
    await flood(flooder);

    await getPool(await peerOf('operator', 'worker-1'), 'operator');
    await getPool(clients.peer(localAddress), 'local');
    const { path, requestSerialize, requestDeserialize, responseSerialize, responseDeserialize } = healthService.Check!;
    const check = { path, requestSerialize, requestDeserialize, responseSerialize, responseDeserialize };
    const health = await flooder.call(
      { ...check, requestStream: false, responseStream: false },
      { service: '' },
      callLimits(),
    );

    expect(executed.slice(-2)).toEqual(['operator', 'local']);
    expect(health).toEqual({ status: 'SERVING' });
  });

  test('its waiting requests end with their deadline and never execute', async () => {
    const flooder = await peerOf('node', 'worker-1');
    await flood(flooder);

    expect(await failureOf(getPool(flooder, 'late', 100))).toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    gate.open();
    await getPool(flooder, 'last');

    expect(executed).not.toContain('late');
  });

  test('its requests beyond the limit are refused, and one line of the log names it', async () => {
    const { outcomes } = await flood(await peerOf('node', 'worker-1'), NETWORK_LIMITS.openCalls + 10);
    const refusedCalls = outcomes.slice(-10);

    for (const failure of await Promise.all(refusedCalls)) {
      expect(failure).toBeInstanceOf(Failure);
      expect(failure).toMatchObject({ code: 'TOO_MANY_REQUESTS', retryable: true });
    }
    const warnings = lines.filter(({ level }) => level === 'warn');
    expect(warnings.map(({ msg }) => msg)).toEqual([
      expect.stringMatching(/^node "worker-1": it has too many open calls, .*; check/),
    ]);
    expect(lines.filter(({ err }) => err !== undefined)).toEqual([]);
  });
});

describe('connections', () => {
  const warnings = () => lines.filter(({ level }) => level === 'warn').map(({ msg }) => msg);

  /** Connects without a handshake. */
  async function connected(): Promise<Socket> {
    const socket = connect(Number(address.split(':').at(-1)), '127.0.0.1');
    socket.on('error', () => undefined);
    await new Promise((resolve) => socket.once('connect', resolve));
    return socket;
  }

  const closed = (socket: Socket) => new Promise<void>((resolve) => socket.resume().once('close', () => resolve()));

  test('of one caller are limited by its certificate, and another caller is served', async () => {
    const [first, second, third] = await Promise.all([1, 2, 3].map(() => peerOf('node', 'worker-1')));
    await getPool(first!, 'first');
    await getPool(second!, 'second');
    expect(await failureOf(getPool(third!, 'third', 500))).toBeInstanceOf(Failure);
    await getPool(await peerOf('node', 'worker-2'), 'other');
    expect(executed).toEqual(['first', 'second', 'other']);
    expect(warnings()).toEqual([expect.stringMatching(/^node "worker-1": it has too many connections, /)]);
    first!.close();
    await expect.poll(() => failureOf(getPool(third!, 'third', 500))).toBeUndefined();
  });

  test('of one source that show no caller are limited, and count no more once they do', async () => {
    const held = await Promise.all(Array.from({ length: NETWORK_LIMITS.connectionsPerSource }, connected));
    await closed(await connected());
    expect(warnings()).toEqual([expect.stringMatching(/^client at 127\.0\.0\.1: it has too many connections/)]);
    held[0]!.destroy();
    for (const name of ['worker-1', 'worker-2', 'worker-3']) {
      const peer = await peerOf('node', name);
      await expect.poll(() => failureOf(getPool(peer, name, 500))).toBeUndefined();
    }
    for (const socket of held) socket.destroy();
  });

  test('with a revoked certificate take nothing of its node', async () => {
    const stolen = await folder.client('node', 'worker-1');
    const { source } = certificateSource(stolen);
    const serial = new X509Certificate(readFileSync(stolen.identity?.certificate.path ?? '')).serialNumber;
    revoked.add(serial);
    for (let count = 0; count < NETWORK_LIMITS.connectionsPerCaller + 1; count++) {
      const peer = clients.peer(address, { tls: { certificates: source, serverName: IPAM_SERVER_NAME } });
      expect(await failureOf(getPool(peer, 'stolen'))).toMatchObject({ code: 'ACCESS_DENIED' });
    }
    await getPool(await peerOf('node', 'worker-1'), 'renewed');
    expect(executed).toEqual(['renewed']);
    expect(warnings()).toEqual([expect.stringMatching(/^client at 127\.0\.0\.1: it shows no valid certificate/)]);
  });

  test('without a call end after a while, and one with a call stays', async () => {
    const clock = new ManualClock();
    const prove = () => Promise.reject(new Error('not called'));
    const listener = new NetworkListener({
      ...{ address: '127.0.0.1:0', clock, limits: NETWORK_LIMITS, prove },
      refused: () => undefined,
    });
    const port = await listener.listen(() => undefined);
    const socket = connect(port, '127.0.0.1');
    await new Promise((resolve) => socket.once('connect', resolve));
    await expect.poll(() => clock.sleeping).toBe(1);
    clock.advance(9_999);
    expect(socket.destroyed).toBe(false);
    clock.advance(1);
    await closed(socket);
    listener.close();
    await listener.ended();
  });

  test('are not made faster than handshakes should be', async () => {
    for (let count = 0; count < NETWORK_LIMITS.handshakes.burst; count++) {
      const socket = await connected();
      socket.destroy();
      await new Promise((resolve) => setImmediate(resolve));
    }
    await closed(await connected());
    await getPool(clients.peer(localAddress), 'local');
    expect(executed).toEqual(['local']);
  });
});

describe('calls of unknown methods', () => {
  const unknown = { ...GET_POOL, path: '/podwire.Unknown/Method' };
  const send = (peer: Peer) => peer.call(unknown, { name: '' }, callLimits(2_000));

  test('are refused with the name, and count as calls of their caller', async () => {
    const peer = await peerOf('node', 'worker-1');
    await expect(send(peer)).rejects.toMatchObject({ message: expect.stringContaining('/podwire.Unknown/Method') });
    for (let count = 0; count < NETWORK_LIMITS.calls.burst; count++) await failureOf(send(peer));
    expect(await failureOf(getPool(peer, 'excess', 500))).toBeInstanceOf(Failure);
    await getPool(await peerOf('node', 'worker-2'), 'other');
    expect(executed).toEqual(['other']);
  });

  test('with a revoked certificate are refused as all other calls', async () => {
    const { source } = certificateSource(await folder.client('node', 'worker-1'));
    const peer = clients.peer(address, { tls: { certificates: source, serverName: IPAM_SERVER_NAME } });
    isAllRevoked = true;
    await expect(send(peer)).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  });
});

test('calls of one caller that start too fast end its connection, also when they are cancelled, and other callers are served', async () => {
  const peer = await peerOf('node', 'worker-1');
  const { burst } = NETWORK_LIMITS.calls;
  // The first call counts for the source.
  for (let count = 0; count < burst; count++) {
    const cancelled = new AbortController();
    const stream = peer.stream(WATCH, REQUEST, cancelled.signal);
    await stream.next();
    cancelled.abort();
    await failureOf(stream.next());
  }
  await getPool(peer, 'last');
  expect(await failureOf(getPool(peer, 'excess', 500))).toBeInstanceOf(Failure);
  await getPool(await peerOf('node', 'worker-2'), 'other');
  expect(executed).toEqual(['last', 'other']);
});

describe('streams of one caller', () => {
  test('are limited, while another caller and local clients may open more', async () => {
    const peer = await peerOf('node', 'worker-1');
    const open = async (from: Peer) => {
      const stream = from.stream(WATCH, REQUEST, new AbortController().signal);
      await stream.next();
      return stream;
    };
    const first = await open(peer);
    for (let count = 1; count < MAX_STREAMS_PER_CALLER; count++) await open(peer);

    await expect(open(peer)).rejects.toMatchObject({
      code: 'TOO_MANY_STREAMS',
      message: `node "worker-1": it has ${MAX_STREAMS_PER_CALLER} open streams; close streams`,
    });
    await open(await peerOf('node', 'worker-2'));
    const local = clients.peer(localAddress);
    await Promise.all(Array.from({ length: MAX_STREAMS_PER_CALLER + 1 }, () => open(local)));
    const openCount = server.streamsCount;
    await first.return();
    await expect.poll(() => server.streamsCount).toBe(openCount - 1);
    await open(peer);
  });
});

describe('a request that is too large', () => {
  /** A client without Podwire's own limit. */
  async function send(name: string, options: ChannelOptions = {}): Promise<number | undefined> {
    const { ca, identity } = await folder.client('node', 'worker-1');
    const [caBytes, key, certificate] = [ca, identity?.key, identity?.certificate].map((file) =>
      readFileSync(file?.path ?? ''),
    );
    const client = new Client(address, credentials.createSsl(caBytes, key, certificate), {
      'grpc.ssl_target_name_override': IPAM_SERVER_NAME,
      'grpc.max_send_message_length': -1,
      ...options,
    });
    const { path, requestSerialize, responseDeserialize } = GET_POOL;
    const code = await new Promise<number | undefined>((resolve) => {
      const deadline = { deadline: Date.now() + 10_000 };
      client.makeUnaryRequest(path, requestSerialize, responseDeserialize, { name }, deadline, (error) =>
        resolve(error?.code),
      );
    });
    client.close();
    return code;
  }

  test('is refused without being executed', async () => {
    expect(await send('x'.repeat(MAX_REQUEST_BYTES))).toBe(status.RESOURCE_EXHAUSTED);
    expect(executed).toEqual([]);
    expect(await send('web')).toBeUndefined();
  });

  test('is refused when it is small only as it is compressed', async () => {
    const compressed = { 'grpc.default_compression_algorithm': compressionAlgorithms.gzip };
    expect(await send('x'.repeat(8 * MAX_REQUEST_BYTES), compressed)).toBe(status.RESOURCE_EXHAUSTED);
    expect(executed).toEqual([]);
    expect(await send('web', compressed)).toBeUndefined();
  });
});

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { request, type IncomingMessage } from 'node:http';
import { connect, createServer } from 'node:net';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { BinaryReader, BinaryWriter } from '@bufbuild/protobuf/wire';
import { Client, connectivityState, credentials } from '@grpc/grpc-js';
import { service as healthService } from 'grpc-health-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { echoPool, TestServers, Gate, GET_POOL, callLimits } from '../testing/server.js';

const BUF = createRequire(import.meta.url).resolve('@bufbuild/buf/bin/buf');

let servers: TestServers;

beforeEach(() => {
  servers = new TestServers();
});

afterEach(() => servers.clear());

/** Calls the server with `buf curl`, which has no files of the contract. */
async function curl(...args: readonly string[]): Promise<{ readonly ok: boolean; readonly text: string }> {
  const socket = servers.address().slice('unix:'.length);
  const base = ['curl', '--protocol', 'grpc', '--http2-prior-knowledge', '--unix-socket', socket];
  const child = spawn(process.execPath, [BUF, ...base, ...args]);
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  await once(child, 'close');
  return { ok: child.exitCode === 0, text: child.exitCode === 0 ? stdout : stderr };
}

const health = async (service = '') => {
  const { text } = await curl('-d', JSON.stringify({ service }), 'http://localhost/grpc.health.v1.Health/Check');
  const answer: unknown = JSON.parse(text);
  return answer;
};

describe('with reflection only, a client', () => {
  test('lists the services and their methods', async () => {
    await servers.serve();
    const { ok, text } = await curl('--list-methods', 'http://localhost');
    expect(ok, text).toBe(true);
    expect(text).toContain('podwire.ipam.v1.PoolService/GetPool\n');
    expect(text).toContain('grpc.health.v1.Health/Check\n');
    expect(text).not.toContain('AddressService');
  });

  test('calls a method whose messages come from other files', async () => {
    await servers.serve();
    const { text } = await curl('-d', '{"name":"a"}', 'http://localhost/podwire.ipam.v1.PoolService/GetPool');
    expect(JSON.parse(text)).toMatchObject({ pool: { name: 'a', createTime: '1970-01-01T00:00:00Z' } });
  });

  test.each(['google.rpc.ErrorInfo', 'google.rpc.BadRequest', 'google.rpc.Status'])(
    'learns what %s is, which the details of a failure are made of',
    async (symbol) => {
      await servers.serve();
      expect(await filesOf(symbol)).toContainEqual(expect.stringContaining(symbol.replace('google.rpc.', '')));
    },
  );
});

/** Files with a symbol according to reflection (grpc.reflection.v1), as text; none for an unknown symbol. */
async function filesOf(symbol: string): Promise<string[]> {
  const client = new Client(servers.address(), credentials.createInsecure());
  const FILE_CONTAINING_SYMBOL = 4;
  const FILE_DESCRIPTOR_RESPONSE = 4;
  const stream = client.makeBidiStreamRequest(
    '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo',
    (name: string) =>
      Buffer.from(
        new BinaryWriter()
          .uint32((FILE_CONTAINING_SYMBOL << 3) | 2)
          .string(name)
          .finish(),
      ),
    (bytes: Buffer) => new BinaryReader(bytes),
  );
  stream.write(symbol);
  const [answer]: BinaryReader[] = await once(stream, 'data');
  stream.end();
  client.close();
  const files: string[] = [];
  while (answer && answer.pos < answer.len) {
    const [field, wireType] = answer.tag();
    if (field !== FILE_DESCRIPTOR_RESPONSE) answer.skip(wireType);
    else {
      const response = new BinaryReader(answer.bytes());
      while (response.pos < response.len) {
        response.tag();
        files.push(Buffer.from(response.bytes()).toString('latin1'));
      }
    }
  }
  return files;
}

test('a server that cannot do its work is unhealthy, until it can again', async () => {
  const { server } = await servers.serve();
  server.setServing();
  server.setNotServing();
  await expect(health('podwire.ipam.v1.PoolService')).resolves.toEqual({ status: 'NOT_SERVING' });
  server.setServing();
  await expect(health('podwire.ipam.v1.PoolService')).resolves.toEqual({ status: 'SERVING' });
});

test('a server is healthy from setServing to stop', async () => {
  const { server } = await servers.serve({ drainTimeoutMs: 3000 });
  await expect(health()).resolves.toEqual({ status: 'NOT_SERVING' });
  server.setServing();
  await expect(health()).resolves.toEqual({ status: 'SERVING' });
  await expect(health('podwire.ipam.v1.PoolService')).resolves.toEqual({ status: 'SERVING' });
  await expect(health('podwire.ipam.v1.Nothing')).resolves.toMatchObject({ code: 'not_found' });
});

test('a unix socket answers GET with the health, and stops while clients send nothing, or do not close', async () => {
  const { server } = await servers.serve({ drainTimeoutMs: 60_000 });
  const socketPath = servers.address().slice('unix:'.length);
  const ask = async () => {
    const sent = request({ socketPath, path: '/healthz' }).end();
    const [response]: IncomingMessage[] = await once(sent, 'response');
    response?.resume();
    return response?.statusCode;
  };
  expect(await ask()).toBe(503);
  server.setServing();
  expect(await ask()).toBe(200);
  const silent = connect(socketPath);
  await once(silent, 'connect');
  expect(await ask()).toBe(200);
  const ended = once(silent, 'close');
  const frozen = connect({ path: socketPath, allowHalfOpen: true });
  frozen.write('GET /healthz HTTP/1.1\r\n\r\n');
  const [answer]: Buffer[] = await once(frozen, 'data');
  expect(String(answer)).toContain('200 OK');
  await server.stop();
  await ended;
  frozen.destroy();
});

describe('listening', () => {
  test('at a unix socket, which only its owner can access', async () => {
    const { addresses } = await servers.serve();
    const path = servers.address().slice('unix:'.length);
    expect(addresses).toEqual([servers.address()]);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(readFileSync('/proc/net/unix', 'utf8')).toContain(path);
  });

  test('at several addresses, of which port 0 becomes a free one', async () => {
    const { addresses, lines } = await servers.serve({ addresses: [servers.address(), '127.0.0.1:0', '[::1]:0'] });
    expect(addresses).toEqual([
      servers.address(),
      expect.stringMatching(/^127\.0\.0\.1:[1-9]\d+$/),
      expect.stringMatching(/^\[::1\]:[1-9]\d+$/),
    ]);
    expect(lines.map(({ msg }) => msg)).toEqual(addresses.map((address) => `listening at ${address}`));
    for (const address of addresses) {
      await expect(servers.peer(address).call(GET_POOL, { name: 'a' }, callLimits())).resolves.toHaveProperty(
        'pool.name',
        'a',
      );
    }
  });

  test('fails where the port is taken', async () => {
    const other = createServer().listen(0, '127.0.0.1');
    await once(other, 'listening');
    const taken = other.address();
    const address = `127.0.0.1:${typeof taken === 'object' && taken ? taken.port : 0}`;
    await expect(servers.serve({ addresses: [address] })).rejects.toMatchObject({
      code: 'INVALID_SETTINGS',
      message: expect.stringMatching(`^cannot listen at ${address}: .*EADDRINUSE`),
    });
    other.close();
  });

  test('fails where another server answers', async () => {
    await servers.serve();
    await expect(servers.serve()).rejects.toMatchObject({ code: 'INVALID_SETTINGS' });
    await expect(servers.peer().call(GET_POOL, { name: 'a' }, callLimits())).resolves.toHaveProperty('pool.name', 'a');
  });
});

describe('a unix socket that is removed', () => {
  const socket = () => servers.address().slice('unix:'.length);
  const isAnew = () => expect.poll(() => existsSync(socket()), { timeout: 20_000 }).toBe(true);

  test('is created again, repeatedly, with a log line', async () => {
    const { lines } = await servers.serve();
    for (const remove of [() => rmSync(socket()), () => rmSync(dirname(socket()), { recursive: true })]) {
      remove();
      await isAnew();
      expect(statSync(socket()).mode & 0o777).toBe(0o600);
      const answer = servers.peer().call(GET_POOL, { name: 'a' }, callLimits());
      await expect(answer).resolves.toHaveProperty('pool.name', 'a');
    }
    const told = [`socket ${socket()} was deleted: creating it again`, `socket ${socket()} is created again`];
    expect(lines.map(({ msg }) => msg)).toEqual([`listening at ${servers.address()}`, ...told, ...told]);
  });

  test('affects neither a call in flight nor its connection', async () => {
    const held = new Gate();
    const begun = new Gate();
    await servers.serve({
      getPool: async (request, call) => {
        begun.open();
        if (request.name === 'slow') await held.opened;
        return echoPool(request, call);
      },
    });
    const client = new Client(servers.address(), credentials.createInsecure());
    const peer = servers.peer();
    const slow = peer.call(GET_POOL, { name: 'slow' }, callLimits());
    await begun.opened;
    const states: number[] = [];
    await new Promise<void>((resolve) => client.waitForReady(Infinity, () => resolve()));
    rmSync(socket());
    await isAnew();
    states.push(client.getChannel().getConnectivityState(false));
    held.open();
    await expect(slow).resolves.toHaveProperty('pool.name', 'slow');
    rmSync(socket());
    await expect(peer.call(GET_POOL, { name: 'next' }, callLimits())).resolves.toHaveProperty('pool.name', 'next');
    states.push(client.getChannel().getConnectivityState(false));
    expect(states).toEqual([connectivityState.READY, connectivityState.READY]);
    client.close();
  });

  test('is left to another process that listens there, with one log line', async () => {
    const { server, lines } = await servers.serve();
    rmSync(socket());
    const other = createServer().listen(socket());
    await once(other, 'listening');
    const { ino } = statSync(socket());
    await expect.poll(() => lines.length).toBe(3);
    // Time for two more checks.
    await sleep(2200);
    expect(lines.slice(1).map(({ msg }) => msg)).toEqual([
      `socket ${socket()} was deleted: creating it again`,
      expect.stringMatching(/so no call reaches this process: .*another process listens there/),
    ]);
    await server.stop();
    expect(statSync(socket()).ino).toBe(ino);
    other.close();
  });

  test('is not created again by a stopped server', async () => {
    const { server, lines } = await servers.serve();
    rmSync(socket());
    await server.stop();
    await sleep(1500);
    expect(existsSync(socket())).toBe(false);
    expect(lines).toHaveLength(1);
  });
});

describe('stopping', () => {
  /** A call in flight, and the function that ends it. */
  async function callUnderWay(drainTimeoutMs: number) {
    const begun = new Gate();
    const held = new Gate();
    const signals: AbortSignal[] = [];
    const { server } = await servers.serve({
      drainTimeoutMs,
      getPool: async (request, call) => {
        signals.push(call.signal);
        begun.open();
        await held.opened;
        return echoPool(request, call);
      },
    });
    server.setServing();
    const answer = servers.peer().call(GET_POOL, { name: 'a' }, callLimits());
    answer.catch(() => undefined);
    await begun.opened;
    return { server, answer, release: held.open, signals };
  }

  test('completes calls in flight, accepts no more, and frees the socket', async () => {
    const { server, answer, release } = await callUnderWay(10_000);
    let stopped = false;
    const stopping = server.stop().then(() => (stopped = true));
    const late = servers.peer().call(GET_POOL, { name: 'b' }, callLimits(200));
    await expect(late).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    expect(stopped).toBe(false);
    release();
    await expect(answer).resolves.toHaveProperty('pool.name', 'a');
    await stopping;
    await servers.serve();
    await expect(servers.peer().call(GET_POOL, { name: 'c' }, callLimits())).resolves.toHaveProperty('pool.name', 'c');
  });

  test('cuts off calls that continue after the drain time-out, and aborts their signals', async () => {
    const { server, answer, signals } = await callUnderWay(100);
    await server.stop();
    await expect(answer).rejects.toMatchObject({ name: 'Failure', retryable: true });
    await expect.poll(() => signals[0]?.aborted).toBe(true);
  });

  test('is reported to watchers of the health before their streams are cut', async () => {
    const { server } = await callUnderWay(1500);
    const client = new Client(servers.address(), credentials.createInsecure());
    const { path, requestSerialize, responseDeserialize } = healthService.Watch!;
    const watch = client.makeServerStreamRequest(path, requestSerialize, responseDeserialize, { service: '' });
    const seen: unknown[] = [];
    watch.on('data', ({ status }: { status: string }) => seen.push(status));
    const cut = once(watch, 'error');
    await expect.poll(() => seen).toEqual(['SERVING']);
    await server.stop();
    await cut;
    expect(seen).toEqual(['SERVING', 'NOT_SERVING']);
    client.close();
  });

  test('works before listening and repeatedly', async () => {
    const { server } = await servers.serve();
    await server.stop();
    await server.stop();
  });
});

import { createServer } from 'node:net';

import { Metadata, status, type Client } from '@grpc/grpc-js';
import type { GetPoolResponse } from '@podwire/proto/podwire/ipam/v1/pool';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { TestServers, GET_POOL } from '../testing/server.js';
import { SilentProxy } from '../testing/silent-proxy.js';
import { Connection, type ConnectionTimeouts } from './connection.js';

/** Longer than any test. */
const NEVER_MS = 600_000;

let servers: TestServers;
let proxy: SilentProxy;
let connections: Connection[];

beforeEach(async () => {
  servers = new TestServers();
  connections = [];
  await servers.serve();
  proxy = await SilentProxy.start(servers.address().slice('unix:'.length));
});

afterEach(async () => {
  vi.unstubAllEnvs();
  for (const connection of connections) connection.close();
  await proxy.close();
  await servers.clear();
});

function connected(timeouts?: ConnectionTimeouts, address = proxy.address): Connection {
  const connection = new Connection(address, { timeouts });
  connections.push(connection);
  return connection;
}

/** Waits for the service without a time limit. @throws the error that gRPC reports */
function call(client: Client): Promise<string | undefined> {
  const { path, requestSerialize, responseDeserialize } = GET_POOL;
  const metadata = new Metadata({ waitForReady: true });
  return new Promise((resolve, reject) => {
    const answered = (error: Error | null, response?: GetPoolResponse): void => {
      if (error) reject(error);
      else resolve(response?.pool?.name);
    };
    client.makeUnaryRequest(path, requestSerialize, responseDeserialize, { name: 'a' }, metadata, answered);
  });
}

/** A machine that is too busy to answer in time counts as silent, and the call fails; the next one uses another connection. */
async function untilAnswered(connection: Connection): Promise<void> {
  await expect.poll(() => call(connection.client).catch(String)).toBe('a');
}

describe('a connection whose peer has fallen silent', () => {
  const timeouts = { keepaliveIntervalMs: 50, keepaliveTimeoutMs: 2000, connectTimeoutMs: NEVER_MS };

  test('is closed with the call in flight, and the next call uses another', async () => {
    const connection = connected(timeouts);
    await untilAnswered(connection);
    proxy.fallSilent();
    const lost = call(connection.client);
    proxy.recover();
    await expect(lost).rejects.toMatchObject({ code: status.UNAVAILABLE });
    await untilAnswered(connection);
  });

  test('is closed without a call, so that the next one does not notice', async () => {
    const connection = connected(timeouts);
    await untilAnswered(connection);
    proxy.fallSilent();
    await expect.poll(() => proxy.connections).toBe(0);
    proxy.recover();
    await untilAnswered(connection);
  });
});

describe('a connection that cannot be established', () => {
  const timeouts = { keepaliveIntervalMs: NEVER_MS, keepaliveTimeoutMs: NEVER_MS, connectTimeoutMs: 200 };

  test('is abandoned, repeatedly, and the waiting calls fail', async () => {
    proxy.fallSilent();
    const connection = connected(timeouts);
    for (const round of [1, 2, 3]) {
      await expect(call(connection.client), `round ${round}`).rejects.toMatchObject({ code: status.UNAVAILABLE });
    }
    proxy.recover();
    await untilAnswered(connection);
  });

  test('of a closed client is not established again', async () => {
    proxy.fallSilent();
    const connection = connected(timeouts);
    const lost = call(connection.client);
    await expect.poll(() => proxy.connections).toBeGreaterThan(0);
    connection.close();
    await expect(lost).rejects.toMatchObject({ code: status.UNAVAILABLE });
    const made = proxy.connections;
    await new Promise((resolve) => setTimeout(resolve, 7 * timeouts.connectTimeoutMs));
    expect(proxy.connections).toBe(made);
  });
});

test('a connection with rare calls is kept', async () => {
  const connection = connected({ keepaliveIntervalMs: 20, keepaliveTimeoutMs: NEVER_MS, connectTimeoutMs: 2000 });
  await untilAnswered(connection);
  const { client } = connection;
  for (const pauseMs of [0, 2500]) {
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
    expect(await call(connection.client)).toBe('a');
  }
  expect([connection.client === client, proxy.connections]).toEqual([true, 1]);
});

test('a connect to a service of this machine that hangs is abandoned', async () => {
  const path = servers.address('later').slice('unix:'.length);
  const hanging = createServer(() => undefined).listen(path);
  const timeouts = { keepaliveIntervalMs: NEVER_MS, keepaliveTimeoutMs: NEVER_MS, connectTimeoutMs: 200 };
  const connection = connected(timeouts, servers.address('later'));
  await expect(call(connection.client)).rejects.toMatchObject({ code: status.UNAVAILABLE });
  hanging.close();
  await servers.serve({ addresses: [servers.address('later')] });
  await untilAnswered(connection);
});

test('a connection to a service of this machine is neither probed nor closed', async () => {
  const connection = connected(
    { keepaliveIntervalMs: 1, keepaliveTimeoutMs: 1, connectTimeoutMs: NEVER_MS },
    servers.address('later'),
  );
  const { client } = connection;
  const answer = call(client);
  await new Promise((resolve) => setTimeout(resolve, 100));
  await servers.serve({ addresses: [servers.address('later')] });
  expect(await answer).toBe('a');
  expect(connection.client).toBe(client);
});

test('the state of the connection is known, before and with the service, and when that falls silent', async () => {
  const connection = connected({ keepaliveIntervalMs: 50, keepaliveTimeoutMs: 2000, connectTimeoutMs: NEVER_MS });
  expect(connection.isConnected).toBe(false);
  await untilAnswered(connection);
  expect(connection.isConnected).toBe(true);
  proxy.fallSilent();
  await expect.poll(() => connection.isConnected).toBe(false);
});

test.each(['grpc_proxy', 'https_proxy', 'http_proxy'])('no call goes to the proxy of %s', async (variable) => {
  vi.stubEnv(variable, 'http://127.0.0.1:1');
  vi.stubEnv('no_proxy', '');
  await untilAnswered(
    connected({ keepaliveIntervalMs: NEVER_MS, keepaliveTimeoutMs: NEVER_MS, connectTimeoutMs: NEVER_MS }),
  );
  await untilAnswered(connected(undefined, servers.address()));
});

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { Client, credentials, Metadata, status, type ServiceError } from '@grpc/grpc-js';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { echoPool, TestServers, GET_POOL, LIST_POOLS, callLimits } from '../testing/server.js';
import { RELEASE, releaseFault } from './release.js';

let servers: TestServers;

beforeEach(() => {
  servers = new TestServers();
});

afterEach(() => servers.clear());

describe('releases', () => {
  test.each([
    [3, ['2', '3', '4', undefined]],
    [0, ['0', '1', undefined]],
  ])('of release %i works with %j', (own, stated) => {
    expect(stated.map((each) => releaseFault(own, each))).toEqual(stated.map(() => undefined));
  });

  test.each(['1', '5', '0', '999999999'])('that are not neighbours are recognised: 3 and %s', (stated) => {
    expect(releaseFault(3, stated)).toBe(
      `is of release 3 and works with releases 2 to 4, while the caller is of release ${stated}; update the older of the two, one release at a time`,
    );
  });

  test.each(['', '-1', '1.0', 'v1', '3\n', '9999999999', '٣'])('that are no number count as absent: %j', (stated) => {
    expect(releaseFault(3, stated)).toContain('the caller is of an invalid release');
  });

  test('the shim states the release of the services', () => {
    const header = readFileSync(join(import.meta.dirname, '../../../plugin/shim/src/protocol.h'), 'utf8');
    expect(/kRelease = "(\d+)"/.exec(header)?.[1]).toBe(String(RELEASE));
  });
});

describe('a service', () => {
  test.each([1, 2, 3])('of release 2 serves a caller of release %i', async (release) => {
    await servers.serve({ release: 2 });
    const answer = await servers.peer(servers.address(), { release }).call(GET_POOL, { name: 'a' }, callLimits());
    expect(answer.pool).toMatchObject({ name: 'a' });
  });

  test.each([0, 4, 17])('of release 2 refuses a caller of release %i, and does nothing', async (release) => {
    const asked: string[] = [];
    await servers.serve({
      release: 2,
      getPool: (request, call) => {
        asked.push(request.name);
        return echoPool(request, call);
      },
    });
    const peer = servers.peer(servers.address(), { release });
    await expect(peer.call(GET_POOL, { name: 'a' }, callLimits())).rejects.toMatchObject({
      code: 'RELEASE_MISMATCH',
      message: `${peer.description}: this service is of release 2 and works with releases 1 to 3, while the caller is of release ${release}; update the older of the two, one release at a time`,
    });
    expect(asked).toEqual([]);
    // A neighbour on the same socket is served.
    await expect(
      servers.peer(servers.address(), { release: 3 }).call(GET_POOL, { name: 'b' }, callLimits()),
    ).resolves.toBeDefined();
  });

  test('serves callers without a release, such as Calico, grpcurl and early releases', async () => {
    await servers.serve({ release: 7 });
    const client = new Client(servers.address(), credentials.createInsecure());
    const answer = await new Promise((resolve, reject) => {
      const { path, requestSerialize, responseDeserialize } = GET_POOL;
      const metadata = new Metadata({ waitForReady: true });
      const answered = (error: ServiceError | null, value: unknown) => (error ? reject(error) : resolve(value));
      client.makeUnaryRequest(path, requestSerialize, responseDeserialize, { name: 'a' }, metadata, answered);
    });
    client.close();
    expect(answer).toMatchObject({ pool: { name: 'a' } });
  });

  test('answers a neighbour’s unknown method with UNIMPLEMENTED', async () => {
    await servers.serve({ release: 2 });
    const asked = { pageSize: 1, pageToken: '' };
    await expect(
      servers.peer(servers.address(), { release: 3 }).call(LIST_POOLS, asked, callLimits()),
    ).rejects.toMatchObject({
      code: 'UNIMPLEMENTED',
    });
  });

  test('ignores unknown fields, and so does its caller', async () => {
    await servers.serve();
    // Field 2000, a text, as a later contract may have it.
    const unknown = Buffer.from([0x82, 0x7d, 0x03, 0x6e, 0x65, 0x77]);
    const later = {
      ...GET_POOL,
      requestSerialize: (request: { readonly name: string }) =>
        Buffer.concat([GET_POOL.requestSerialize(request), unknown]),
      responseDeserialize: (bytes: Buffer) => GET_POOL.responseDeserialize(Buffer.concat([bytes, unknown])),
    };
    await expect(servers.peer().call(later, { name: 'a' }, callLimits())).resolves.toMatchObject({
      pool: { name: 'a' },
    });
  });

  test('refuses health checks as well', async () => {
    const { server } = await servers.serve({ release: 2 });
    server.setServing();
    const check = {
      path: '/grpc.health.v1.Health/Check',
      requestStream: false,
      responseStream: false,
      requestSerialize: () => Buffer.alloc(0),
      requestDeserialize: () => '',
      responseSerialize: () => Buffer.alloc(0),
      responseDeserialize: (bytes: Buffer) => bytes.toString('hex'),
    } as const;
    const health = (release: number) => servers.peer(servers.address(), { release }).call(check, '', callLimits());
    await expect(health(4)).rejects.toMatchObject({ code: 'RELEASE_MISMATCH' });
    await expect(health(3)).resolves.toBe('0801');
  });
});

test('callers of every release can read the refusal', async () => {
  await servers.serve({ release: 2 });
  const client = new Client(servers.address(), credentials.createInsecure());
  const { path, requestSerialize, responseDeserialize } = GET_POOL;
  const metadata = new Metadata({ waitForReady: true });
  metadata.set('podwire-release', '9');
  const error = await new Promise<ServiceError | null>((resolve) => {
    client.makeUnaryRequest(path, requestSerialize, responseDeserialize, { name: 'a' }, metadata, resolve);
  });
  client.close();
  expect(error).toMatchObject({ code: status.FAILED_PRECONDITION, details: expect.stringContaining('release 9') });
});

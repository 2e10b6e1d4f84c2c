import { createPublicKey, webcrypto } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { PodServiceService } from '@podwire/proto/podwire/dataplane/v1/pod';
import { ProbeServiceService } from '@podwire/proto/podwire/dataplane/v1/probe';
import { CallNodeRequest, ClusterServiceService } from '@podwire/proto/podwire/ipam/v1/cluster';
import { NodeServiceService, ReleaseTunnelAddressRequest, TunnelKind } from '@podwire/proto/podwire/ipam/v1/node';
import { DeletePoolRequest, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { WatchKind, WatchRequest, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock } from '@podwire/shared/runtime/clock';
import { certificateSource } from '@podwire/shared/testing/certificates';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { recordingLog } from '@podwire/shared/testing/server';
import { IPAM_SERVER_NAME } from '@podwire/shared/tls/caller';
import { tokenOf } from '@podwire/shared/tls/token-file';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Place } from '../testing/service.js';
import { ISSUER, NAMESPACE, TokenApi } from '../testing/token-api.js';
import type { KubernetesApi } from './api.js';
import { NodeTokens } from './node-tokens.js';

/** Nodes that prove themselves with tokens, which a double of the API server signs and reviews. */

const { signal } = new AbortController();
const SECOND_MS = 1000;

let folder: string;
let server: TokenApi;
let api: KubernetesApi;
let clock: ManualClock;
let tokens: NodeTokens;
let lines: Record<string, unknown>[];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-tokens-'));
  server = await TokenApi.start(join(folder, 'account'));
  api = server.connect();
  clock = new ManualClock();
  clock.advance(Date.now() - clock.nowMs());
  const recording = recordingLog();
  ({ lines } = recording);
  tokens = new NodeTokens({ api, clock, log: recording.log });
});

afterEach(async () => {
  api.close();
  await server.stop();
  rmSync(folder, { recursive: true });
});

/** Verifies a token; the answer to a refusal is not waited for. */
async function verify(token: string, connection = '192.0.2.1:5000') {
  const outcome = Promise.resolve()
    .then(() => tokens.verify(token, connection, signal))
    .then(
      (proven) => ({ proven, error: undefined }),
      (error: unknown) => ({ proven: undefined, error }),
    );
  const ended = outcome.then(() => true);
  while (!(await Promise.race([ended, new Promise((resolve) => setTimeout(() => resolve(false), 2))])))
    if (clock.nextMs !== undefined && clock.nextMs <= SECOND_MS) clock.advance(clock.nextMs);
  const { proven, error } = await outcome;
  if (!proven) throw error;
  return proven;
}

const denied = (reason: string | RegExp) => ({ code: 'ACCESS_DENIED', message: expect.stringMatching(reason) });

test('a token names its node, and costs one review however often it is shown', async () => {
  const token = await server.token();

  const all = await Promise.all(Array.from({ length: 20 }, (_, port) => verify(token, `192.0.2.1:${port}`)));
  expect(all.map(({ caller }) => caller)).toEqual(all.map(() => ({ kind: 'network', role: 'node', name: 'worker-1' })));
  expect(server.reviewsCount).toBe(1);
  expect(tokens.verify(token, '192.0.2.9:1', signal)).toMatchObject({ caller: { name: 'worker-1' } });
});

describe('without any review, a token is refused', () => {
  const otherKey = () => webcrypto.subtle.generateKey({ name: 'ECDSA', namedCurve: 'P-256' }, true, ['sign', 'verify']);

  test.each<[string, () => Promise<string>, string]>([
    ['that is noise', () => Promise.resolve('not.a.token'), "not one of the API server's"],
    ['that is missing', () => Promise.resolve(''), 'the call has none'],
    ['that is too long', () => Promise.resolve('x'.repeat(20_000)), 'longer than 16384 bytes'],
    ['that has expired', () => server.token({ lifeS: -120 }), '"exp" claim timestamp check failed'],
    ['for another audience', () => server.token({ audience: 'https://kubernetes.default.svc' }), 'unexpected "aud"'],
    ['of another issuer', () => server.token({ issuer: `${ISSUER}.example` }), 'unexpected "iss"'],
    [
      'of another account',
      () => server.token({ subject: 'system:serviceaccount:podwire-system:podwire-ipam' }),
      'it belongs to system:serviceaccount:podwire-system:podwire-ipam',
    ],
    [
      'of the account in another namespace',
      () => server.token({ subject: 'system:serviceaccount:default:podwire-node' }),
      'it belongs to system:serviceaccount:default:podwire-node',
    ],
    ['that is bound to no node', () => server.token({ bound: { pod: { uid: 'p' } } }), 'not bound to a pod on a node'],
    ['that is bound to no pod', () => server.token({ bound: {} }), 'not bound to a pod on a node'],
    [
      'without a signature',
      async () => {
        const [, payload] = (await server.token()).split('.');
        return `${Buffer.from('{"alg":"none"}').toString('base64url')}.${payload}.`;
      },
      "not one of the API server's",
    ],
    [
      'that is signed with the public key as a secret',
      async () => server.forgedToken({ alg: 'HS256' }, Buffer.from(await server.publicKey())),
      '"alg" \\(Algorithm\\) Header Parameter value not allowed',
    ],
    [
      'that is signed with another key under the name of the right one',
      async () => server.forgedToken({ alg: 'ES256' }, (await otherKey()).privateKey),
      "not one of the API server's",
    ],
    [
      'that brings its key along',
      async () => {
        const { privateKey, publicKey } = await otherKey();
        const jwk = await webcrypto.subtle.exportKey('jwk', publicKey);
        return server.forgedToken({ alg: 'ES256', kid: 'own', jwk: { kty: 'EC', ...jwk } }, privateKey);
      },
      "not one of the API server's",
    ],
    [
      'of which the payload was changed',
      async () => {
        const [header, payload = '', signature] = (await server.token()).split('.');
        const changed = Buffer.from(payload, 'base64url').toString().replaceAll('worker-1', 'worker-2');
        return [header, Buffer.from(changed).toString('base64url'), signature].join('.');
      },
      'signature verification failed',
    ],
  ])('%s', async (_, make, reason) => {
    await expect(verify(await make())).rejects.toMatchObject(denied(reason));
    expect(server.reviewsCount).toBe(0);
  });

  test('that an earlier key of the API server has signed is accepted, and one of a new key', async () => {
    const earlier = await server.token();
    await server.addKey();
    expect(createPublicKey(await server.publicKey()).asymmetricKeyType).toBe('rsa');
    await verify(earlier);
    clock.advance(10 * SECOND_MS);
    await server.addKey();
    await expect(verify(await server.token({ node: 'worker-2' }))).resolves.toHaveProperty('caller.name', 'worker-2');
  });
});

test('an unknown key makes the keys be read again, but not with each token', async () => {
  await verify(await server.token());
  clock.advance(10 * SECOND_MS);
  const count = () => server.requests.filter(({ path }) => path === '/openid/v1/jwks').length;
  const { privateKey } = await webcrypto.subtle.generateKey({ name: 'ECDSA', namedCurve: 'P-256' }, true, [
    'sign',
    'verify',
  ]);
  const all = Array.from({ length: 30 }, async (_, port) =>
    tokens.verify(
      await server.forgedToken({ alg: 'ES256', kid: `k-${port}` }, privateKey),
      `192.0.2.1:${port}`,
      signal,
    ),
  );
  const outcomes = Promise.allSettled(all);
  await expect.poll(() => clock.sleeping).toBe(30);
  expect(count()).toBe(2);
  clock.advance(SECOND_MS);
  expect((await outcomes).map(({ status }) => status)).toEqual(all.map(() => 'rejected'));
});

test('a connection with refused tokens is answered once a second, and its good token at once when it is known', async () => {
  const good = await server.token();
  await verify(good, '192.0.2.1:1');
  const refusals = Array.from({ length: 3 }, (_, index) => {
    const verified = Promise.resolve(tokens.verify(`rubbish.${index}.x`, '192.0.2.1:1', signal));
    return verified.catch(() => clock.monotonicMs());
  });
  expect(tokens.verify(good, '192.0.2.1:1', signal)).toMatchObject({ caller: { name: 'worker-1' } });
  // Another client of the same address waits for no refusal.
  await tokens.verify(await server.token({ id: 'second' }), '192.0.2.1:2', signal);

  const startMs = clock.monotonicMs();
  for (let count = 0; count < 3; count++) {
    await expect.poll(() => clock.nextMs).toBeLessThanOrEqual(SECOND_MS);
    clock.advance(clock.nextMs!);
  }
  const times = await Promise.all(refusals);
  expect(times.map((ms) => Math.round((Number(ms) - startMs) / SECOND_MS))).toEqual([1, 2, 3]);
});

describe('a known token is refused with the next review', () => {
  test.each<[string, () => unknown, string]>([
    ['once its pod is deleted', () => server.deletedPods.add('pod-of-worker-1'), 'has been invalidated'],
    ['once its Node is deleted', () => server.nodes.delete('worker-1'), 'its Node "worker-1" was deleted'],
    ['once its Node was made again', () => server.nodes.set('worker-1', 'another'), 'its Node "worker-1" was deleted'],
  ])('%s', async (_, change, reason) => {
    const token = await server.token();
    const second = await server.token({ id: 'second' });
    const { check } = await verify(token);
    change();
    await tokens.review(signal);
    expect(() => check()).not.toThrow();

    clock.advance(36 * SECOND_MS);
    await tokens.review(signal);
    expect(() => check()).toThrow(reason);
    await expect(verify(token)).rejects.toMatchObject(denied(reason));
    await expect(verify(second)).rejects.toMatchObject(denied(reason));
    // Further attempts cost no further review.
    const before = server.reviewsCount;
    await expect(verify(token, '192.0.2.7:1')).rejects.toMatchObject(denied(reason));
    expect(server.reviewsCount).toBe(before);
  });
});

test('a renewed token keeps streams of its pod, and the pod is reviewed once a minute with the latest one', async () => {
  const { check } = await verify(await server.token({ lifeS: 600 }));
  await verify(await server.token({ id: 'second' }));
  clock.advance(700 * SECOND_MS);
  const before = server.reviewsCount;
  await tokens.review(signal);
  await tokens.review(signal);
  expect(server.reviewsCount).toBe(before + 1);
  expect(() => check()).not.toThrow();

  clock.advance(3600 * SECOND_MS);
  expect(() => check()).toThrow('it has expired');
});

test('while the API server is down, known tokens are served until they expire, and new ones are not verified', async () => {
  const token = await server.token();
  const { check } = await verify(token);
  const next = await server.token({ node: 'worker-2' });
  server.answer = () => ({ status: 503 });
  for (let minute = 0; minute < 59; minute++) {
    clock.advance(60 * SECOND_MS);
    await tokens.review(signal);
  }

  await expect(verify(token)).resolves.toHaveProperty('caller.name', 'worker-1');
  expect(() => check()).not.toThrow();
  await expect(verify(next)).rejects.toMatchObject({ code: 'UNREACHABLE' });
  expect(lines.filter(({ msg }) => String(msg).includes('served unreviewed'))).toHaveLength(1);
  clock.advance(3 * 60 * SECOND_MS);
  await expect(verify(token)).rejects.toMatchObject(denied('"exp" claim'));
  expect(() => check()).toThrow('it has expired');
});

test.each([403, 404, 409])('an answer %i to the review says nothing about the token', async (status) => {
  const token = await server.token();
  const { check } = await verify(token);
  server.answer = ({ path }) => (path.endsWith('/tokenreviews') ? { status, body: {} } : undefined);
  clock.advance(36 * SECOND_MS);
  await tokens.review(signal);
  expect(() => check()).not.toThrow();
  await expect(verify(await server.token({ id: 'second' }))).rejects.toMatchObject({ code: 'UNREACHABLE' });
});

describe('podwire-ipam', () => {
  const { getPool } = PoolServiceService;
  const limits = () => ({ deadlineMs: Date.now() + 10_000 });
  const ends: (() => unknown)[] = [];
  let place: Place;

  beforeEach(() => {
    place = new Place();
  });

  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end();
    place.remove();
  });

  async function start(ofService = systemClock): Promise<string> {
    const env = {
      PODWIRE_IPAM_LISTEN: `${place.address},127.0.0.1:0`,
      PODWIRE_IPAM_NODE_TOKENS: 'true',
      PODWIRE_IPAM_AUTHORITY_DIRECTORY: join(folder, 'authority'),
    };
    const service = await place.start(env, ofService, () => server.connect());
    ends.push(() => service.stop());
    return service.addresses[1]!;
  }

  function peer(address: string, token?: () => string): Peer {
    const ca = { setting: 'CA', path: join(folder, 'authority', 'ca.crt') };
    const tls = { certificates: certificateSource({ ca, identity: undefined }).source, serverName: IPAM_SERVER_NAME };
    const made = new Peer('podwire-ipam', address, { tls, token });
    ends.push(() => made.close());
    return made;
  }

  test('serves a node with the token of its file, for itself only, and no client without one', async () => {
    const address = await start();
    const path = join(folder, 'token');
    writeFileSync(path, `${await server.token()}\n`);
    const node = peer(address, tokenOf({ setting: 'TOKEN', path }, { clock, ...recordingLog() }));
    const tunnel = (nodeName: string) =>
      node.call(
        NodeServiceService.releaseTunnelAddress,
        ReleaseTunnelAddressRequest.fromPartial({ nodeName, kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV4 }),
        limits(),
      );

    await expect(node.call(getPool, { name: 'default' }, limits())).resolves.toMatchObject({
      pool: { name: 'default' },
    });
    await expect(tunnel('worker-1')).resolves.toBeDefined();
    await expect(tunnel('worker-2')).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
    await expect(
      node.call(PoolServiceService.listPools, { pageSize: 0, pageToken: '' }, limits()),
    ).rejects.toMatchObject({
      code: 'ACCESS_DENIED',
    });
    await expect(peer(address).call(getPool, { name: 'default' }, limits())).rejects.toMatchObject({
      code: 'ACCESS_DENIED',
      message: 'token: the call has none; send one, or connect with a client certificate',
    });

    // The plugin's STATUS asks for it.
    const health = { ...getPool, path: '/grpc.health.v1.Health/Check' };
    await node.call(health, { name: '' }, limits());
    await expect(peer(address).call(health, { name: '' }, limits())).rejects.toMatchObject({ code: 'ACCESS_DENIED' });

    // The kubelet replaces the file.
    writeFileSync(path, await server.token({ node: 'worker-2' }));
    clock.advance(10 * SECOND_MS);
    await expect(tunnel('worker-2')).resolves.toBeDefined();
    await expect(tunnel('worker-1')).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  });

  test('serves the chart’s test with what the connectivity test calls, and no other change', async () => {
    const address = await start();
    const token = await server.token({ subject: `system:serviceaccount:${NAMESPACE}:podwire-test`, pod: 'of-test' });
    const tester = peer(address, () => token);
    const onNode = (path: string) =>
      tester
        .stream(
          ClusterServiceService.callNode,
          CallNodeRequest.fromPartial({ nodeName: 'worker-1', request: { path } }),
          AbortSignal.timeout(10_000),
        )
        .next();
    const page = { pageSize: 0, pageToken: '' };
    await expect(tester.call(ClusterServiceService.listNodeStates, page, limits())).resolves.toMatchObject({
      nodes: [],
    });
    await expect(tester.call(PoolServiceService.listPools, page, limits())).resolves.toBeDefined();
    await expect(onNode(ProbeServiceService.runProbes.path)).rejects.toMatchObject({ code: 'NODE_NOT_FOUND' });
    await expect(onNode(PodServiceService.detachPod.path)).rejects.toMatchObject({
      code: 'ACCESS_DENIED',
      message: expect.stringContaining('reader "podwire-test": may not call podwire.ipam.v1.ClusterService/CallNode'),
    });
    const deletion = DeletePoolRequest.fromPartial({ name: 'default' });
    await expect(tester.call(PoolServiceService.deletePool, deletion, limits())).rejects.toMatchObject({
      code: 'ACCESS_DENIED',
    });
  });

  test('serves a node while 30 connections send rubbish, and reviews none of it', async () => {
    const address = await start();
    const flooders = Array.from({ length: 30 }, (_, index) => peer(address, () => `rubbish.${index}.${Math.random()}`));
    const stopped = new AbortController();
    const floods = flooders.map(async (flooder) => {
      while (!stopped.signal.aborted) {
        const calls = Array.from({ length: 20 }, () =>
          flooder.call(getPool, { name: 'default' }, { ...limits(), signal: stopped.signal }),
        );
        await Promise.allSettled(calls);
      }
    });
    await expect.poll(() => flooders.filter(({ isConnected }) => isConnected).length).toBe(30);
    try {
      for (const id of ['first', 'second', 'third']) {
        const token = await server.token({ id });
        const node = peer(address, () => token);
        await expect(node.call(getPool, { name: 'default' }, { deadlineMs: Date.now() + 2000 })).resolves.toBeDefined();
      }
      expect(server.reviewsCount).toBe(3);
    } finally {
      stopped.abort();
      await Promise.all(floods);
    }
  });

  test('ends the streams of a deleted pod within a minute', async () => {
    const address = await start(clock);
    const token = await server.token();
    const request = WatchRequest.fromPartial({ kinds: [WatchKind.WATCH_KIND_NODES] });
    const stream = peer(address, () => token).stream(WatchServiceService.watch, request, signal);
    await stream.next();
    server.deletedPods.add('pod-of-worker-1');
    const passing = setInterval(() => clock.advance(SECOND_MS), 10);
    ends.push(() => clearInterval(passing));
    const startMs = clock.monotonicMs();
    const read = async (): Promise<void> => {
      while (!(await stream.next()).done);
    };
    await expect(read()).rejects.toMatchObject(denied('has been invalidated'));
    expect(clock.monotonicMs() - startMs).toBeLessThanOrEqual(60 * SECOND_MS);
  });
});

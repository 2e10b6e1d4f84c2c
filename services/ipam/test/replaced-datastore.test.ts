import { randomUUID } from 'node:crypto';
import process from 'node:process';
import { Writable } from 'node:stream';

import { WatchKind, WatchRequest, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { systemClock } from '@podwire/shared/runtime/clock';
import { RecentLines } from '@podwire/shared/runtime/recent-lines';
import { createLogger } from '@podwire/shared/runtime/log';
import { afterEach, expect, test } from 'vitest';

import { readConfig } from '../config.js';
import { EtcdServer } from '../engine/testing/etcd-server.js';
import { startService } from '../service.js';
import { Caller, failureOf, outsideOfKubernetes, Place } from '../testing/service.js';

/** An etcd that is restored to an older state under a running service. */

const TIMEOUT_MS = 40_000;
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

/** A service on the server, with its log. */
async function startOn(server: EtcdServer) {
  const place = new Place();
  cleanups.push(() => place.remove());
  const lines: string[] = [];
  const destination = new Writable({
    write: (chunk: Buffer, _encoding, done) => {
      lines.push(String(chunk));
      done();
    },
  });
  const log = createLogger({ service: 'test', level: 'info', destination });
  const own = {
    random: Math.random,
    newUid: randomUUID,
    pid: process.pid,
    endProcess: () => undefined,
    env: {},
    recentLines: new RecentLines(),
  };
  const etcd = { PODWIRE_IPAM_STORE: 'etcd', PODWIRE_IPAM_ETCD_ENDPOINTS: server.url };
  const env = place.env({ ...etcd, PODWIRE_IPAM_UNKNOWN_NODES: 'register' });
  const service = await startService(readConfig(env), {
    ...own,
    log,
    clock: systemClock,
    kubernetes: outsideOfKubernetes,
  });
  cleanups.push(() => service.stop());
  const caller = new Caller(place.address);
  cleanups.push(() => caller.close());
  return { caller, lines };
}

/** @returns after the pools were received, with a function that ends the stream */
async function watchPools({ peer }: Caller) {
  const ending = new AbortController();
  cleanups.push(() => ending.abort());
  const request = WatchRequest.fromPartial({ kinds: [WatchKind.WATCH_KIND_POOLS] });
  const messages = peer.stream(WatchServiceService.watch, request, ending.signal)[Symbol.asyncIterator]();
  await messages.next();
  const rest = async (): Promise<void> => {
    while (!(await messages.next()).done);
  };
  const ended = rest();
  ended.catch(() => undefined);
  return { ended };
}

test('is reported by health, each request and one log line; no stream shows outdated records', async () => {
  const server = await EtcdServer.start();
  cleanups.push(() => server.dispose());
  const { caller, lines } = await startOn(server);
  const { ended } = await watchPools(caller);
  expect(await caller.health()).toBe(1);

  await server.stop();
  server.wipe();
  await server.restart();
  await expect.poll(() => caller.health(), { timeout: TIMEOUT_MS }).toBe(2);
  const refusal = {
    code: 'STORE_CORRUPT',
    message: expect.stringMatching(/is not the datastore that was read before/),
  };
  expect(await failureOf(ended)).toMatchObject(refusal);
  expect(await failureOf(watchPools(caller))).toMatchObject(refusal);
  expect(await failureOf(caller.listPools())).toMatchObject(refusal);
  expect(await failureOf(caller.allocate('c1'))).toMatchObject(refusal);
  expect(
    lines.filter((line) => /"level":"error".*refusing every request until a restart: etcd/.test(line)),
  ).toHaveLength(1);
  expect(lines.filter((line) => /the watch .* broke.*not the datastore/.test(line))).toEqual([]);
  expect(server.dump('/calico').size).toBe(0);
});

test('is reported by the first write of an older record, after other writers have raised its revision', async () => {
  const [server, copy] = [await EtcdServer.start(), await EtcdServer.start()];
  cleanups.push(
    () => server.dispose(),
    () => copy.dispose(),
  );
  const { caller } = await startOn(server);
  await caller.allocate('c1');
  await Promise.all([server.stop(), copy.stop()]);
  copy.takeDataOf(server);
  await server.restart();
  await expect
    .poll(() => caller.allocate('c2').then(() => 'answered', String), { timeout: TIMEOUT_MS })
    .toBe('answered');
  const known = server.revision();
  await server.stop();
  await copy.restart();
  while (copy.revision() <= known) copy.ctl('put', '/other', 'x');
  await copy.stop();
  server.takeDataOf(copy);
  await server.restart();
  await expect
    .poll(() => failureOf(caller.allocate('c3')), { timeout: TIMEOUT_MS })
    .toMatchObject({ code: 'STORE_CORRUPT', message: expect.stringMatching(/ipam.v2.assignment.* of revision/) });
  expect(await caller.health()).toBe(2);
  expect(await failureOf(caller.listPools())).toMatchObject({ code: 'STORE_CORRUPT' });
});

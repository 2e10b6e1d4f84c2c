import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { AddressServiceService, AssignAddressesRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import { AddressUse } from '@podwire/proto/podwire/ipam/v1/pool';
import { WatchKind, WatchRequest, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, expect, test, vi } from 'vitest';

import { HoldingProxy } from '../engine/testing/etcd-faults.js';
import { CertificateAuthority, EtcdServer, type EtcdServerOptions } from '../engine/testing/etcd-server.js';
import { Caller, Place } from '../testing/service.js';

/** The effects of etcd's behaviour and limits on callers of the service. */

const TIMEOUT_MS = 40_000;
const cleanups: (() => unknown)[] = [];
const limits = () => ({ deadlineMs: Date.now() + TIMEOUT_MS });

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function startEtcd(options: EtcdServerOptions = {}): Promise<EtcdServer> {
  const server = await EtcdServer.start(options);
  cleanups.push(() => server.dispose());
  return server;
}

async function startReplica(endpoints: string, rest: Record<string, string> = {}): Promise<Caller> {
  const place = new Place();
  cleanups.push(() => place.remove());
  const service = await place.start({
    ...{ PODWIRE_IPAM_STORE: 'etcd', PODWIRE_IPAM_UNKNOWN_NODES: 'register', PODWIRE_IPAM_ETCD_ENDPOINTS: endpoints },
    ...rest,
  });
  cleanups.push(() => service.stop());
  const caller = new Caller(place.address);
  cleanups.push(() => caller.close());
  return caller;
}

/** The pools of a watch, and the number of its restarts. */
function watchPools({ peer }: Caller) {
  const ending = new AbortController();
  const seen = { pools: new Set<string>(), removed: new Set<string>(), resets: 0 };
  const following = (async () => {
    const request = WatchRequest.fromPartial({ kinds: [WatchKind.WATCH_KIND_POOLS] });
    for await (const { reset, changes } of peer.stream(WatchServiceService.watch, request, ending.signal)) {
      if (reset) seen.resets++;
      for (const { name, object } of changes) {
        if (object) seen.pools.add(name);
        else if (seen.pools.delete(name)) seen.removed.add(name);
      }
    }
  })();
  cleanups.push(async () => {
    ending.abort();
    await following.catch(() => undefined);
  });
  return seen;
}

test('a watch continues without a gap, though its replica missed compacted changes and etcd restarted', async () => {
  const server = await startEtcd();
  const proxy = await HoldingProxy.start(server.ports.client);
  const { port } = new URL(proxy.url);
  const away = await startReplica(proxy.url);
  const writer = await startReplica(server.url);
  const seen = watchPools(away);
  await writer.createPool({ name: 'first', cidr: '10.66.0.0/24' });
  await vi.waitUntil(() => seen.pools.has('first'), { timeout: TIMEOUT_MS });

  await proxy.close();
  await writer.createPool({ name: 'second', cidr: '10.67.0.0/24' });
  await writer.deletePool('first');
  server.compact();
  await server.kill();
  await server.restart();
  const create = () => writer.createPool({ name: 'third', cidr: '10.68.0.0/24' }).then(() => 'made', String);
  await expect.poll(create, { timeout: TIMEOUT_MS }).toMatch(/made|POOL_EXISTS/);
  const again = await HoldingProxy.start(server.ports.client, Number(port));
  cleanups.push(() => again.close());
  await vi.waitUntil(() => seen.pools.has('third') && seen.removed.has('first'), { timeout: TIMEOUT_MS });
  expect(seen).toEqual({ pools: new Set(['default', 'second', 'third']), removed: new Set(['first']), resets: 1 });
});

test('certificates, members, prefix and time limits come from the settings', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'podwire-etcd-service-'));
  cleanups.push(() => rmSync(directory, { recursive: true, force: true }));
  const authority = new CertificateAuthority(join(directory, 'ca'));
  const files = authority.issue('podwire');
  const server = await startEtcd({ tls: files });
  const caller = await startReplica(`https://127.0.0.1:1,${server.url}`, {
    PODWIRE_IPAM_ETCD_CA_FILE: files.ca,
    PODWIRE_IPAM_ETCD_CERT_FILE: files.cert,
    PODWIRE_IPAM_ETCD_KEY_FILE: files.key,
    PODWIRE_IPAM_DATASTORE_PREFIX: '/cluster-a',
    PODWIRE_IPAM_ETCD_REQUEST_TIMEOUT_MS: '300',
    PODWIRE_IPAM_ETCD_DIAL_TIMEOUT_MS: '1000',
  });
  const allocated = () => caller.allocateAddress('c1').catch(String);
  // A disk with other writers may be slower than the configured time limit.
  await expect.poll(allocated, { timeout: TIMEOUT_MS }).toMatch(/\/32$/);
  const keys = [...server.dump('/').keys()];
  expect(keys.filter((key) => !/^(\/podwire)?\/cluster-a\//.test(key))).toEqual([]);
  expect(keys).toContain('/cluster-a/ipam/v2/handle/net.c1');
  server.pause();
  const failed = expect(caller.release('c1')).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  await failed.finally(() => server.resume());
  // etcd may have executed the release after the time limit: then it is another address.
  await expect.poll(allocated, { timeout: TIMEOUT_MS }).toMatch(/\/32$/);
});

test('an expiring certificate is logged while its connection is open', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'podwire-etcd-service-'));
  cleanups.push(() => rmSync(directory, { recursive: true, force: true }));
  const files = new CertificateAuthority(join(directory, 'ca')).issue('podwire');
  const server = await startEtcd({ tls: files });
  const place = new Place();
  cleanups.push(() => place.remove());
  const settings = {
    PODWIRE_IPAM_STORE: 'etcd',
    PODWIRE_IPAM_ETCD_ENDPOINTS: server.url,
    PODWIRE_IPAM_ETCD_CA_FILE: files.ca,
    PODWIRE_IPAM_ETCD_CERT_FILE: files.cert,
    PODWIRE_IPAM_ETCD_KEY_FILE: files.key,
  };
  // It is valid for two days.
  const service = await place.start(settings, { ...systemClock, nowMs: () => Date.now() + 46 * 3_600_000 });
  cleanups.push(() => service.stop());
  await expect
    .poll(() => place.log, { timeout: TIMEOUT_MS })
    .toMatch(/of PODWIRE_IPAM_ETCD_CERT_FILE: expires at 20\S+Z; renew it/);
});

test('an etcd without space serves reads, and serves writes when it has space again', async () => {
  const server = await startEtcd({ flags: ['--quota-backend-bytes=2000000'] });
  const caller = await startReplica(server.url);
  const address = await caller.allocateAddress('c1');
  const fill = () =>
    Array.from({ length: 60 }, (_, index) => server.ctl('put', '/other', `${'x'.repeat(1e5)}${index}`));
  expect(fill).toThrow(/database space exceeded/);

  const full = { code: 'STORE_FULL', message: expect.stringMatching(/etcdctl alarm disarm/) };
  await expect(caller.allocate('c2')).rejects.toMatchObject(full);
  await expect(caller.release('c1')).rejects.toMatchObject(full);
  expect(await caller.allocateAddress('c1')).toBe(address);
  expect((await caller.listPools()).pools.map(({ name }) => name)).toEqual(['default']);

  server.compact();
  server.ctl('defrag');
  server.ctl('alarm', 'disarm');
  await caller.release('c1');
  expect(await caller.allocateAddress('c2')).toMatch(/\/32$/);
});

test('the largest blocks are allocated and released completely, both families together', async () => {
  const server = await startEtcd();
  const caller = await startReplica(server.url);
  await caller.createPool({ name: 'four', cidr: '10.80.0.0/19', blockSize: 20 });
  await caller.createPool({ name: 'six', cidr: 'fd80::/112', blockSize: 116 });
  const asked = AssignAddressesRequest.fromPartial({
    ...{ handleId: 'h', nodeName: 'n1', use: AddressUse.ADDRESS_USE_WORKLOAD, pools: ['four', 'six'] },
    ...{ ipv4Count: 4096, ipv6Count: 16 },
  });
  const { addresses } = await caller.peer.call(AddressServiceService.assignAddresses, asked, limits());
  expect(new Set(addresses.map(({ address }) => address)).size).toBe(4112);
  const blocks = await caller.allBlocks();
  expect(blocks.map(({ cidr }) => cidr.split('/')[1]).sort()).toEqual(['116', '20']);
  const release = { handleId: 'h', searchAllBlocks: false };
  const released = await caller.peer.call(HandleServiceService.releaseHandle, release, limits());
  expect(released.addresses).toHaveLength(4112);
  expect((await caller.allBlocks()).flatMap(({ allocations }) => allocations)).toEqual([]);
});

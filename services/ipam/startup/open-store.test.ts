import { randomUUID } from 'node:crypto';
import process from 'node:process';
import { Writable } from 'node:stream';

import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { readConfig } from '../config.js';
import { Events } from '../engine/events.js';
import { untilAnswered } from '../engine/testing/etcd-faults.js';
import { EtcdServer } from '../engine/testing/etcd-server.js';
import type { RunningService } from '../service.js';
import { Caller, Place } from '../testing/service.js';
import { openStore } from './datastore.js';

const never = new AbortController().signal;
const cleanups: (() => unknown)[] = [];
let server: EtcdServer;
beforeEach(async () => {
  server = await EtcdServer.start();
  cleanups.push(() => server.dispose());
});
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

const etcd = (rest: Record<string, string> = {}) => ({
  PODWIRE_IPAM_STORE: 'etcd',
  PODWIRE_IPAM_UNKNOWN_NODES: 'register',
  PODWIRE_IPAM_ETCD_ENDPOINTS: server.url,
  PODWIRE_IPAM_ETCD_DIAL_TIMEOUT_MS: '1000',
  // A disk with other writers may be slower than the usual time limit.
  PODWIRE_IPAM_ETCD_REQUEST_TIMEOUT_MS: '10000',
  ...rest,
});

async function startReplica(rest: Record<string, string> = {}): Promise<{ caller: Caller; service: RunningService }> {
  const place = new Place();
  const service = await place.start(etcd(rest));
  const caller = new Caller(place.address);
  cleanups.push(async () => {
    caller.close();
    await service.stop();
    place.remove();
  });
  return { caller, service };
}

describe('the service on etcd', () => {
  test('shares the datastore with its replicas, under Calico’s keys', async () => {
    const { caller: first } = await startReplica();
    const { caller: second } = await startReplica();
    const address = await first.allocateAddress('c1');
    expect(await second.allocateAddress('c1')).toBe(address);
    const allocated = await Promise.all(
      Array.from({ length: 20 }, (_, index) => (index % 2 ? first : second).allocateAddress(`d${index}`)),
    );
    expect(new Set([...allocated, address]).size).toBe(21);
    const keys = [...server.dump('/').keys()];
    expect(keys.filter((key) => !/^\/calico\/|^\/podwire\/calico\/history\//.test(key))).toEqual([]);
    expect(keys).toContain('/calico/resources/v3/projectcalico.org/ippools/default');
    expect(keys.filter((key) => key.startsWith('/calico/ipam/v2/assignment/ipv4/block/10.65.0.'))).toHaveLength(1);
    await second.release('c1');
    expect(await first.allocateAddress('c2')).not.toBe('none');
  });

  test('keeps to its prefix, and leaves other prefixes unchanged', async () => {
    const { caller } = await startReplica({ PODWIRE_IPAM_DATASTORE_PREFIX: '/mine/calico' });
    server.ctl('put', '/calico/ipam/v2/x', 'other');
    await caller.allocateAddress('c1');
    const isOwn = (key: string) => /^\/mine\/calico\/|^\/podwire\/mine\/calico\/history\//.test(key);
    expect([...server.dump('/').keys()].filter((key) => !isOwn(key))).toEqual(['/calico/ipam/v2/x']);
  });

  test('splits a pool into as many parts as one may have, while other clients allocate from it', async () => {
    const { caller: first } = await startReplica({ PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/16' });
    const { caller: second } = await startReplica();
    const allocations = Array.from({ length: 40 }, (_, index) =>
      (index % 2 ? first : second).allocateAddress(`c${index}`, { nodeName: `node-${index % 5}` }),
    );
    const { pools } = await first.splitPool('default', { number: 64 });
    expect(new Set(await Promise.all(allocations)).size).toBe(40);
    expect(pools).toHaveLength(64);
    const parts = (await second.listPools()).pools;
    expect(parts.map(({ name }) => name).sort()).toEqual(pools.map(({ name }) => name).sort());
    const held = parts.map(({ utilization }) => Number(utilization?.allocated));
    expect(held.reduce((sum, count) => sum + count)).toBe(40);
    for (const { poolName } of await second.allBlocks()) expect(poolName).toMatch(/^split-default-\d+$/);
  });

  test('continues after etcd is killed and restarted', async () => {
    const { caller } = await startReplica();
    const address = await caller.allocateAddress('c1');
    await server.kill();
    await server.restart();
    await expect.poll(() => caller.allocateAddress('c1').catch(() => 'not yet'), { timeout: 40_000 }).toBe(address);
    expect(await caller.health()).toBe(1);
  });
});

describe('settings', () => {
  const open = (env: Record<string, string>, lines: string[]) => {
    const destination = new Writable({
      write: (chunk: Buffer, _encoding, done) => {
        lines.push(String(chunk));
        done();
      },
    });
    const events = new Events(createLogger({ service: 'test', level: 'info', destination }));
    return openStore(readConfig(env), {
      ...{ pid: process.pid, newUid: randomUUID, events, clock: systemClock, random: Math.random, identity: 'test' },
      signal: never,
      kubernetes: () => {
        throw new Error('the test is in no cluster');
      },
    });
  };

  test('select the store; finding and losing it is logged', async () => {
    const lines: string[] = [];
    const opened = await untilAnswered(() => open(etcd({ PODWIRE_IPAM_ETCD_MAX_TXN_OPS: '500' }), lines));
    expect(opened).toMatchObject({ traits: { maxOperationsCount: 499, isExclusiveWriter: false, hasLock: true } });
    await opened.store.commit({ comparisons: [], puts: [{ key: '/a', value: Buffer.from('1') }], deletes: [] }, never);
    expect(server.dump('/a').size).toBe(1);
    await server.kill();
    await expect(opened.store.revision(never)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    await opened.store.close();
    expect(lines.join('')).toMatch(/using the datastore at http.*does not answer/s);
  });

  test('have the address of etcd; when it is unreachable, the failure names it', async () => {
    await server.stop();
    await expect(open(etcd({ PODWIRE_IPAM_ETCD_DIAL_TIMEOUT_MS: '200' }), [])).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      message: expect.stringContaining(server.url),
    });
  });

  test('of another store have no effect', async () => {
    const place = new Place();
    cleanups.push(() => place.remove());
    const opened = await open({ ...place.env(), PODWIRE_IPAM_ETCD_CA_FILE: '', PODWIRE_IPAM_STORE: 'embedded' }, []);
    expect(opened.traits.isExclusiveWriter).toBe(true);
    expect(await opened.store.revision(never)).toBe(1);
    await opened.store.close();
  });
});

import { setTimeout as sleep } from 'node:timers/promises';

import { systemClock } from '@podwire/shared/runtime/clock';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { commit, HoldingProxy, never, put, EtcdFixture, UNAVAILABLE, untilAnswered } from '../testing/etcd-faults.js';
import type { EtcdServer } from '../testing/etcd-server.js';
import type { EtcdStore } from './etcd-store.js';

/** Timeout of a request. It elapses only in {@link commitInVain}, however slow the machine is. */
const REQUEST_TIMEOUT_MS = 500;

let time: ManualClock;
let scene: EtcdFixture;
let server: EtcdServer;
let store: EtcdStore;
/** The way to the server on which a transaction is held back, and the one that is there afterwards. */
let slow: HoldingProxy;
beforeEach(async () => {
  scene = new EtcdFixture();
  server = await scene.start();
  slow = await HoldingProxy.start(server.ports.client);
  scene.onEnd(() => slow.close());
  const later = await HoldingProxy.start(server.ports.client);
  const [, port = ''] = /:(\d+)$/.exec(later.url) ?? [];
  const servers = [slow, { url: later.url }];
  await later.close();
  time = new ManualClock();
  const sleep = (durationMs: number, signal: AbortSignal) =>
    (durationMs === REQUEST_TIMEOUT_MS ? time : systemClock).sleep(durationMs, signal);
  const clock = { ...systemClock, sleep };
  store = await scene.open(servers, { requestTimeoutMs: REQUEST_TIMEOUT_MS, clock, uid: 'this-store' });
  openLater = async () => {
    const proxy = await HoldingProxy.start(server.ports.client, Number(port));
    scene.onEnd(() => proxy.close());
  };
});
afterEach(() => scene.end());

let openLater: () => Promise<void>;

/** A transaction whose answer never comes: it is still on its way. */
async function commitInVain(key: string): Promise<void> {
  slow.hold();
  const committing = store.commit(put(key, 'late', 0), never);
  const failed = expect(committing).rejects.toMatchObject(UNAVAILABLE);
  await expect.poll(() => slow.holds('late')).toBe(true);
  // The end of the request may follow its data.
  await sleep(100);
  slow.freeze();
  time.advance(REQUEST_TIMEOUT_MS);
  await failed;
  await openLater();
}

const fences = (): string[] => [...server.dump('/podwire/calico/fences/').keys()];

describe('a transaction that arrives after it was given up', () => {
  it('is executed if no request was answered since, and is seen by the next request', async () => {
    await commitInVain('/a');
    expect(slow.deliver()).toBeGreaterThan(100);
    await expect.poll(() => server.dump('/a').size).toBe(1);
    expect((await store.read(['/a'], never)).records).toHaveLength(1);
  });

  it.each<[string, () => Promise<unknown>]>([
    ['read', () => store.read(['/a'], never)],
    ['list', () => store.list('/a', never)],
    ['scan', () => store.scan({ prefix: '/a', after: undefined, limit: 1 }, never)],
    ['revision', () => store.revision(never)],
    ['commit', () => commit(store, put('/b'))],
  ])('is never executed after a %s was answered', async (_, ask) => {
    await commitInVain('/a');
    await ask();
    expect(slow.deliver()).toBeGreaterThan(100);
    // Time for its execution: no later request follows it on the same connection.
    await sleep(500);
    expect(server.dump('/a').size).toBe(0);
    expect(await commit(store, put('/a', 'again', 0))).toBeGreaterThan(1);
    expect([...server.dump('/a').values()]).toEqual(['again']);
  });

  it('leaves a key that etcd removes by itself, and the next one another', async () => {
    expect(fences()).toEqual([]);
    await commitInVain('/a');
    await store.revision(never);
    expect(fences()).toEqual(['/podwire/calico/fences/this-store/0']);
    const leases = server.ctl('lease', 'list').match(/^[0-9a-f]+$/gm) ?? [];
    expect(leases).toHaveLength(1);
    expect(server.ctl('lease', 'timetolive', leases[0]!, '--keys')).toMatch(/TTL\(86400s\).*this-store\/0/);
  });
});

describe('a transaction that etcd has refused', () => {
  it('is certain not to be executed, and costs nothing afterwards', async () => {
    const puts = Array.from({ length: 200 }, (_, index) => ({ key: `/many/${index}`, value: Buffer.from('1') }));
    const many = { comparisons: [], puts, deletes: [] };
    const roomy = await scene.open([server], { maxOperationsCount: 1000, uid: 'roomy' });
    await expect(roomy.commit(many, never)).rejects.toMatchObject({ code: 'STORE_LIMIT' });
    await commit(roomy, put('/b'));
    expect(fences()).toEqual([]);
  });
});

describe('transactions of a store whose server stands still again and again', () => {
  it('are executed before the read that follows their failure, or never', async () => {
    const times = { requestTimeoutMs: 500, dialTimeoutMs: 2000 };
    const hasty = await untilAnswered(() => scene.open([server], { ...times, uid: 'this-store' }));
    const executedLate: string[] = [];
    const make = async (key: string): Promise<void> => {
      for (let isAbsent = false; ;) {
        const result = await hasty.commit(put(key, '1', 0), never).catch(() => undefined);
        if (result?.committed) return;
        const { records } = await untilAnswered(() => hasty.read([key], never));
        if (records.length === 1) {
          // It was not there, and no one else makes it; so this was a transaction that had failed before.
          if (isAbsent && result) executedLate.push(key);
          return;
        }
        isAbsent = true;
      }
    };
    const writing = Promise.all(
      Array.from({ length: 6 }, async (_, writer) => {
        for (let number = 0; number < 60; number++) await make(`/w/${writer}/${number}`);
      }),
    );
    for (let pause = 0; pause < 4; pause++) {
      await sleep(30);
      server.pause();
      await sleep(700);
      server.resume();
    }
    await writing;
    expect(executedLate).toEqual([]);
    expect(server.dump('/w/').size).toBe(360);
    expect(fences().length).toBeGreaterThan(0);
  }, 120_000);
});

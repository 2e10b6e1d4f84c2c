import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import { forever } from '../engine/testing/stores.js';
import { NAMESPACE } from '../testing/api-server.js';
import { ObjectServer } from '../testing/object-server.js';
import { Leadership } from './leadership.js';

const LEASE = `/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases/podwire-ipam`;

let server: ObjectServer;
let api: KubernetesApi;
let clock: ManualClock;
const held: Leadership[] = [];
const leaders: string[] = [];

beforeAll(async () => {
  server = await ObjectServer.start();
  api = new KubernetesApi(server.options);
});
afterAll(async () => {
  api.close();
  await server.stop();
});
beforeEach(() => {
  clock = new ManualClock();
});
afterEach(async () => {
  for (const leadership of held.splice(0)) await leadership.release();
  server.delete(LEASE);
  leaders.length = 0;
});

async function acquire(identity: string): Promise<Leadership> {
  const leaderObserved = (leader: string) => leaders.push(`${identity}: ${leader}`);
  const leadership = new Leadership({ api, identity, clock, report: () => undefined, leaderObserved });
  await leadership.acquire(forever);
  held.push(leadership);
  return leadership;
}

/** The next leader, as a promise that does not block the test. */
function waitFor(identity: string): { readonly leads: () => boolean } {
  let leads = false;
  void acquire(identity).then(() => (leads = true));
  return { leads: () => leads };
}

const holder = () => Object(server.get(LEASE)?.spec).holderIdentity;

/** Advances the clock second by second, so that each request in between is answered. */
async function pass(seconds: number, until: () => boolean = () => false): Promise<void> {
  for (let second = 0; second < seconds && !until(); second++) {
    clock.advance(1000);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

test('the first one leads, renews, and the next one waits until it gives up', async () => {
  const first = await acquire('a');
  expect(holder()).toBe('a');
  const next = waitFor('b');
  await pass(40);
  expect([next.leads(), first.lost.aborted, holder()]).toEqual([false, false, 'a']);
  await first.release();
  await pass(3, next.leads);
  await expect.poll(next.leads).toBe(true);
  expect(holder()).toBe('b');
  expect(leaders).toEqual(['a: a', 'b: a', 'b: b']);
});

test('a leader that ends without giving up is followed after 15 s', async () => {
  server.put(LEASE.slice(0, LEASE.lastIndexOf('/')), {
    metadata: { name: 'podwire-ipam' },
    spec: { holderIdentity: 'dead', renewTime: '2036-01-01T00:00:00.000000Z' },
  });
  const next = waitFor('b');
  await pass(13);
  expect(next.leads()).toBe(false);
  await pass(10, next.leads);
  await expect.poll(next.leads).toBe(true);
});

test('a leader whose lease another process took knows that it lost', async () => {
  const first = await acquire('a');
  const lease = server.get(LEASE)!;
  server.put(LEASE.slice(0, LEASE.lastIndexOf('/')), { ...lease, spec: { holderIdentity: 'b' } });
  await pass(5, () => first.lost.aborted);
  await expect.poll(() => first.lost.aborted).toBe(true);
  expect(first.lost.reason).toMatchObject({ message: 'another podwire-ipam leads; this podwire-ipam starts again' });
});

test('a leader keeps the lease after the answer to a renewal was lost', async () => {
  const first = await acquire('a');
  server.injectFault('PUT', 'cut after');
  const next = waitFor('b');
  await pass(30);
  expect([first.lost.aborted, first.isHeld, next.leads(), holder()]).toEqual([false, true, false, 'a']);
});

test('a leader that cannot renew stops before another one begins', async () => {
  const first = await acquire('a');
  for (let count = 0; count < 20; count++) server.injectFault('PUT', 500);
  await pass(8);
  expect(first.lost.aborted).toBe(false);
  await pass(8, () => first.lost.aborted);
  await expect.poll(() => first.lost.aborted).toBe(true);
  await first.release();
  server.clearFaults();
});

test('a leader that was paused must not write, before it learns that another one leads', async () => {
  const first = await acquire('a');
  await pass(4);
  expect(() => first.requireHeld()).not.toThrow();
  clock.advance(60_000);
  expect(() => first.requireHeld()).toThrow('was not renewed for 10 s');
  // The next renewal finds the lease as it was.
  await expect
    .poll(() => {
      clock.advance(1000);
      return first.isHeld;
    })
    .toBe(true);
});

test('waiting ends with its signal', async () => {
  await acquire('a');
  const stop = new AbortController();
  const ignore = () => undefined;
  const waiting = new Leadership({ api, identity: 'b', clock, report: ignore, leaderObserved: ignore }).acquire(
    stop.signal,
  );
  stop.abort();
  await expect(waiting).rejects.toMatchObject({ code: 'CANCELLED' });
});

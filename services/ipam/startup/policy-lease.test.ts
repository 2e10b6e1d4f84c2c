import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { recordingLog } from '@podwire/shared/testing/server';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import { NAMESPACE } from '../testing/api-server.js';
import { ObjectServer } from '../testing/object-server.js';
import { PolicyLease } from './policy-lease.js';

const LEASES = `/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases`;

let server: ObjectServer;
let api: KubernetesApi;
let clock: ManualClock;
let leases: PolicyLease[];

beforeEach(async () => {
  server = await ObjectServer.start();
  api = new KubernetesApi(server.options);
  clock = new ManualClock();
  leases = [];
});

afterEach(async () => {
  await Promise.all(leases.map((lease) => lease.stop()));
  api.close();
  await server.stop();
});

function start(identity: string): PolicyLease {
  const lease = new PolicyLease({ api, clock, log: recordingLog().log, identity });
  leases.push(lease);
  lease.start();
  return lease;
}

/** Lets time pass second by second, so that each request in between is answered. */
async function passUntil(condition: () => boolean): Promise<void> {
  await expect
    .poll(() => {
      if (!condition()) clock.advance(1000);
      return condition();
    })
    .toBe(true);
}

test('one of two holds the lease, and the other one names it and follows when it stops', async () => {
  const first = start('a');
  await passUntil(() => first.held !== undefined);
  const second = start('b');
  await passUntil(() => second.leader === 'a');
  expect([first.leader, second.held]).toEqual(['a', undefined]);
  await first.stop();
  await passUntil(() => second.held !== undefined);
  expect([first.held, second.leader]).toEqual([undefined, 'b']);
});

test('a holder whose lease another process took ends, and holds it again later', async () => {
  const lease = start('a');
  await passUntil(() => lease.held !== undefined);
  const { held } = lease;
  server.put(LEASES, { metadata: { name: 'podwire-ipam' }, spec: { holderIdentity: 'thief' } });
  await passUntil(() => held?.aborted === true);
  expect(lease.held).toBeUndefined();
  server.put(LEASES, { metadata: { name: 'podwire-ipam' }, spec: { holderIdentity: '' } });
  await passUntil(() => lease.held !== undefined);
});

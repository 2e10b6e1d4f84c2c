import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { KubernetesApi } from '../../api-server/api.js';
import { decodePool } from '../../records/json/pool.js';
import type { JsonObject } from '../../records/json/json.js';
import { ObjectServer } from '../../testing/object-server.js';
import { forever } from '../testing/stores.js';
import { poolPatch, poolRecord } from './pool-form.js';
import { PoolStatusWriter, type PublishedStatus } from './pool-status.js';

const POOLS = '/apis/projectcalico.org/v3/ippools';
const resource = { plural: 'ippools', path: POOLS, apiVersion: 'projectcalico.org/v3', kind: 'IPPool' };
const OK: PublishedStatus = { name: 'a', isAllocatable: true, reason: 'OK', message: 'serves', isDrained: true };
const OVERLAP = { ...OK, isAllocatable: false, reason: 'CIDROverlap', message: 'overlaps pool "b"', isDrained: false };

let server: ObjectServer;
let api: KubernetesApi;
let writer: PoolStatusWriter;

beforeEach(async () => {
  server = await ObjectServer.start();
  api = new KubernetesApi(server.options);
  writer = new PoolStatusWriter({ api, resource, clock: systemClock });
  server.put(POOLS, { metadata: { name: 'a', labels: { team: 'x' } }, spec: { cidr: '10.0.0.0/16' } });
  server.requests.length = 0;
});
afterEach(async () => {
  api.close();
  await server.stop();
});

const pool = (): JsonObject => Object(server.get(`${POOLS}/a`));
const conditions = () => Object(pool().status).conditions;
const publish = (status: PublishedStatus) => writer.publish([status], forever);

test('a pool gets its condition and its finalizer, and nothing else changes', async () => {
  await publish(OK);
  expect(conditions()).toMatchObject([{ type: 'Allocatable', status: 'True', reason: 'OK', message: 'serves' }]);
  expect(pool()).toMatchObject({
    metadata: { labels: { team: 'x' }, finalizers: ['podwire.dev/ippool'] },
    spec: { cidr: '10.0.0.0/16' },
  });
  expect(server.requests).toEqual([`PATCH ${POOLS}/a`, `PATCH ${POOLS}/a/status`]);
  await publish(OK);
  expect(server.requests).toHaveLength(2);
});

test('a changed finding replaces the own condition, and its time', async () => {
  await publish(OK);
  const [{ lastTransitionTime }] = conditions();
  await publish({ ...OK, message: 'serves again' });
  expect(conditions()).toMatchObject([{ message: 'serves again', lastTransitionTime }]);
  await publish(OVERLAP);
  expect(conditions()).toMatchObject([{ status: 'False', reason: 'CIDROverlap', message: 'overlaps pool "b"' }]);
  expect(Object(pool().metadata).finalizers).toEqual([]);
});

test('the condition of another writer stays, also one that it writes meanwhile', async () => {
  const condition = { type: 'Allocatable', status: 'False', reason: 'CIDROverlap', message: 'theirs' };
  server.put(POOLS, { ...pool(), status: { conditions: [condition] } });
  await publish(OK);
  expect(conditions()).toEqual([condition]);
  expect(decodePool(poolRecord(pool(), 'marked'), { kind: 'pool', name: 'a' }).condition).toEqual({
    isAllocatable: false,
    isOwn: false,
  });
});

test('the own condition is marked in records, and hidden from archives', async () => {
  await publish(OVERLAP);
  const read = (conditionsOf: 'marked' | 'hidden') =>
    decodePool(poolRecord(pool(), conditionsOf), { kind: 'pool', name: 'a' });
  expect(read('marked')).toMatchObject({
    notAllocatable: 'overlaps pool "b"',
    condition: { isAllocatable: false, isOwn: true },
  });
  expect([read('hidden').notAllocatable, read('hidden').condition]).toEqual([undefined, undefined]);
});

test('a deleted pool keeps the finalizers that it has', async () => {
  server.put(POOLS, { ...pool(), metadata: { ...Object(pool().metadata), finalizers: ['other'] } });
  server.delete(`${POOLS}/a`);
  await publish({ ...OK, isAllocatable: false, reason: 'Terminating', message: 'is being deleted' });
  expect(Object(pool().metadata).finalizers).toEqual(['other']);
  expect(conditions()).toMatchObject([{ reason: 'Terminating' }]);
});

test('a pool that does not exist is skipped', async () => {
  await publish({ ...OK, name: 'b' });
  expect(server.requests).toEqual([]);
});

test('a patch has only the fields that a change of the pool gives another meaning', () => {
  const base = {
    metadata: { name: 'a', uid: 'u', resourceVersion: '7' },
    spec: { cidr: '10.0.0.0/16', vxlanMode: '', namespaceSelector: 'all()' },
  };
  const record = {
    spec: {
      cidr: '10.0.0.0/16',
      blockSize: 26,
      ipipMode: 'Never',
      vxlanMode: 'Always',
      nodeSelector: 'all()',
      allowedUses: ['Workload', 'Tunnel'],
      assignmentMode: 'Automatic',
      disabled: false,
    },
  };
  expect(poolPatch('a', record, base)).toEqual({
    metadata: { uid: 'u', resourceVersion: '7' },
    spec: { vxlanMode: 'Always', namespaceSelector: null },
  });
});

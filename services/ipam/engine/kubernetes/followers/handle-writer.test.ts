import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';

import type { JsonObject } from '../../../records/json/json.js';
import { RecordKeys } from '../../../records/json/keys.js';
import { encodeRecord, serialize } from '../../../records/json/registry.js';
import { CountingApi } from '../../../testing/counting-api.js';
import { ObjectServer } from '../../../testing/object-server.js';
import { MemoryStore } from '../../testing/memory-store.js';
import { BLOCK, forever, handle } from '../../testing/stores.js';
import { HandleWriter } from './handle-writer.js';

const HANDLES = '/apis/crd.projectcalico.org/v1/ipamhandles';
const MINUTE = 60_000;

const keys = new RecordKeys('/calico', { hasLock: true });
let server: ObjectServer;
let store: MemoryStore;
let clock: ManualClock;
let api: CountingApi;
let writer: HandleWriter | undefined;
let failures: string[];

beforeAll(async () => {
  server = await ObjectServer.start();
});
afterAll(() => server.stop());

beforeEach(() => {
  store = new MemoryStore();
  clock = new ManualClock();
  api = new CountingApi(server.options);
  failures = [];
  server.requests.length = 0;
});
afterEach(async () => {
  await writer?.stop();
  api.close();
  for (const name of names()) server.delete(`${HANDLES}/${name}`);
});

/** Starts the writer, which has read everything when this returns. */
async function start(): Promise<void> {
  const report = ({ code }: { readonly code: string }) => void failures.push(code);
  const group = 'crd.projectcalico.org/v1';
  writer = new HandleWriter({ api, group, store, keys, clock, random: () => 0, report });
  await pass(0);
}

const pass = (ms: number) => api.pass(clock, ms);

/** Jumps to shortly before a time that lies that far ahead, and passes it. */
async function jump(ms: number): Promise<void> {
  await pass(0);
  clock.advance(ms - 200);
  await pass(400);
}

const allocate = (id: string, count = 1) => {
  const value = serialize(encodeRecord({ kind: 'handle', value: handle(id, count) }, undefined));
  return store.commit({ comparisons: [], puts: [{ key: keys.handle(id), value }], deletes: [] }, forever);
};
const release = (id: string) => store.commit({ comparisons: [], puts: [], deletes: [keys.handle(id)] }, forever);
const lock = (isLocked: boolean) => {
  const value = Buffer.from(JSON.stringify({ spec: { datastoreReady: !isLocked } }));
  return store.commit({ comparisons: [], puts: [{ key: keys.clusterInformation, value }], deletes: [] }, forever);
};
const writes = () => server.requests.filter((line) => !line.startsWith('GET'));
const names = () => server.list(HANDLES).map(({ metadata }) => String(Object(metadata).name));
const specOf = (name: string) => server.get(`${HANDLES}/${name}`)?.spec;
const spec = (handleID: string, count = 1) => ({ handleID, block: { [BLOCK]: count }, deleted: false });
const putObject = (name: string, rest: { readonly spec: JsonObject; readonly isOwn?: boolean }) =>
  server.put(HANDLES, {
    metadata: { name, ...(rest.isOwn === true ? { annotations: { 'podwire.dev/handle': 'written' } } : {}) },
    spec: rest.spec,
  });

test('a handle is written when its allocation is a minute old, and deleted with it', async () => {
  await start();
  await allocate('net.Short');
  await allocate('net.Long');
  await jump(MINUTE / 2);
  await release('net.Short');
  await jump(MINUTE);
  expect(names()).toEqual(['net.long']);
  expect(specOf('net.long')).toEqual(spec('net.Long'));
  await release('net.Long');
  await pass(400);
  expect(names()).toEqual([]);
  expect(writes()).toHaveLength(2);
});

test('handles of leases and tunnels are written at once, and a changed count a minute later', async () => {
  await start();
  await allocate('podwire-lease.node-1', 8);
  await allocate('vxlan-tunnel-addr-node-1');
  await pass(600);
  expect(names().sort()).toEqual(['podwire-lease.node-1', 'vxlan-tunnel-addr-node-1']);
  for (const count of [7, 6, 5]) await allocate('podwire-lease.node-1', count);
  await pass(600);
  expect(specOf('podwire-lease.node-1')).toEqual(spec('podwire-lease.node-1', 8));
  await jump(MINUTE);
  expect(specOf('podwire-lease.node-1')).toEqual(spec('podwire-lease.node-1', 5));
  expect(writes()).toHaveLength(3);
});

test('at most five handles are written per second', async () => {
  for (let index = 0; index < 20; index++) await allocate(`podwire-lease.node-${index}`);
  await start();
  await pass(1000);
  expect(writes().length).toBeGreaterThan(1);
  expect(writes().length).toBeLessThanOrEqual(7);
  await pass(3000);
  expect(names()).toHaveLength(20);
});

test('a start corrects its own objects, and leaves Calico’s', async () => {
  for (const id of ['net.kept', 'net.wrong', 'net.calico']) await allocate(id);
  putObject('net.kept', { spec: spec('net.kept'), isOwn: true });
  putObject('net.wrong', { spec: spec('net.wrong', 3), isOwn: true });
  putObject('net.gone', { spec: spec('net.gone'), isOwn: true });
  // Calico counts before it writes the block.
  putObject('net.calico', { spec: spec('net.calico', 2) });
  putObject('net.calico-new', { spec: spec('net.calico-new') });
  await start();
  await pass(1000);
  await jump(2 * MINUTE);
  expect(names().sort()).toEqual(['net.calico', 'net.calico-new', 'net.kept', 'net.wrong']);
  expect(specOf('net.wrong')).toEqual(spec('net.wrong'));
  expect(specOf('net.calico')).toEqual(spec('net.calico', 2));
  expect(writes()).toHaveLength(2);
  await release('net.calico');
  await jump(3 * MINUTE);
  expect(names()).not.toContain('net.calico-new');
  await jump(3 * MINUTE);
  expect(names().sort()).toEqual(['net.kept', 'net.wrong']);
});

test('a lease’s handle without the mark, as Calico’s migration leaves it, is corrected', async () => {
  await allocate('podwire-lease.node-1', 5);
  putObject('podwire-lease.node-1', { spec: spec('podwire-lease.node-1', 8) });
  await start();
  await pass(600);
  expect(specOf('podwire-lease.node-1')).toEqual(spec('podwire-lease.node-1', 5));
});

test('an object that Calico wrote meanwhile is kept; one that Calico changes is not deleted', async () => {
  await start();
  await allocate('net.c1');
  await jump(MINUTE / 2);
  putObject('net.c1', { spec: spec('net.c1', 2) });
  await jump(MINUTE);
  expect(specOf('net.c1')).toEqual(spec('net.c1', 2));
  await release('net.c1');
  await jump(MINUTE);
  putObject('net.c1', { spec: spec('net.c1', 1) });
  await allocate('net.c1');
  await jump(10 * MINUTE);
  expect(names()).toEqual(['net.c1']);
  expect(failures).toEqual([]);
});

test('IDs that are no names, or whose name another handle has, stay without an object and are counted', async () => {
  const metrics = new ReadMetrics('podwire.ipam.kubernetes.');
  await start();
  for (const id of ['my_net.c1', 'net.a:b', 'net.same', 'net.Same']) await allocate(id);
  await pass(0);
  expect(await metrics.read()).toEqual(['handles state=pending 1', 'handles state=unnamed 2']);
  await jump(MINUTE);
  expect(names()).toEqual(['net.same']);
  expect(await metrics.read()).toEqual(['handles state=pending 0', 'handles state=unnamed 3']);
  const [first, second] = ['net.Same', 'net.same'].sort((a) => (Object(specOf('net.same')).handleID === a ? -1 : 1));
  for (const id of ['my_net.c1', 'net.a:b', first!]) await release(id);
  await pass(400);
  expect(specOf('net.same')).toEqual(spec(second!));
  expect(await metrics.read()).toEqual(['handles state=pending 0', 'handles state=unnamed 0']);
});

test('nothing is written while Calico’s tools have locked the datastore, and failures are retried', async () => {
  await lock(true);
  await start();
  await allocate('podwire-lease.node-1');
  await pass(1000);
  expect(writes()).toEqual([]);
  expect(failures).toContain('STORE_LOCKED');
  await lock(false);
  server.injectFault('POST', 500);
  await jump(20_000);
  await jump(20_000);
  expect(names()).toEqual(['podwire-lease.node-1']);
  expect(failures).toContain('UNREACHABLE');
});

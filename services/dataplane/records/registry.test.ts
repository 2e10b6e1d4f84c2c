import { FakeClock } from '@podwire/shared/testing/clock';
import { expect, test, vi } from 'vitest';

import { MemoryRecordStore } from '../testing/memory-record-store.js';
import { address, BOOT, podNetwork } from '../testing/pods.js';
import { AttachmentRegistry } from './registry.js';

const IDENTITY = { device: 4n, inode: 4_026_532_178n, cookie: 7n };
const a = podNetwork('a');

function scene() {
  const store = new MemoryRecordStore();
  const clock = new FakeClock(1000);
  const refused: unknown[] = [];
  const options = {
    store,
    bootId: BOOT.id,
    clock,
    onStoreFailure: (_: unknown, failure: unknown) => refused.push(failure),
  };
  return {
    store,
    clock,
    refused,
    registry: new AttachmentRegistry(options),
    restart: () => new AttachmentRegistry(options),
  };
}

test('a record is found by its attachment and its host interface, also by the next process', async () => {
  const { registry, restart } = scene();
  await registry.record(a, IDENTITY);
  const record = {
    network: a,
    identity: IDENTITY,
    bootId: BOOT.id,
    state: 'attached',
    createdAtMs: 1000,
    updatedAtMs: 1000,
  };
  const next = restart();
  await next.load();
  for (const each of [registry, next]) {
    expect([each.get(a.attachment), each.byHostInterface(a.hostInterfaceName)]).toEqual([record, record]);
  }
});

test('a host interface belongs to the attachment that was wired with it last, whatever happens to earlier ones', async () => {
  const { registry, clock, restart } = scene();
  const b = { ...podNetwork('b'), hostInterfaceName: a.hostInterfaceName };
  const holder = (of = registry) => of.byHostInterface(a.hostInterfaceName)?.network.attachment.containerId;
  await registry.record(a, IDENTITY);
  await clock.sleep(1000, new AbortController().signal);
  await registry.record(b, { ...IDENTITY, cookie: 8n });
  // Neither a later change of the earlier record nor the order of the files makes it the last one.
  await registry.record({ ...a, mtuBytes: 1400 }, IDENTITY);
  const next = restart();
  await next.load();
  expect([holder(), holder(next)]).toEqual(['b', 'b']);
  await registry.setState(b.attachment, 'detaching');
  expect(holder()).toBe('a');
  await registry.setState(a.attachment, 'dead');
  expect(holder()).toBeUndefined();
  await registry.remove(a.attachment);
  await registry.restore(b.attachment, next.get(b.attachment));
  expect(holder()).toBe('b');
});

test('an unchanged record is not stored again', async () => {
  const { registry, store, clock } = scene();
  await registry.record(a, IDENTITY);
  await clock.sleep(1000, new AbortController().signal);
  await registry.record(podNetwork('a'), { ...IDENTITY });
  expect([store.writes, registry.get(a.attachment)?.updatedAtMs]).toEqual([1, 1000]);
});

test('a wire in another namespace gets a new creation time; the same wire keeps its time', async () => {
  const { registry, clock } = scene();
  await registry.record(a, IDENTITY);
  await clock.sleep(1000, new AbortController().signal);
  await registry.record({ ...a, mtuBytes: 1400 }, IDENTITY);
  expect(registry.get(a.attachment)).toMatchObject({ createdAtMs: 1000, updatedAtMs: 2000 });
  await registry.record(a, { ...IDENTITY, cookie: 8n });
  expect(registry.get(a.attachment)).toMatchObject({ createdAtMs: 2000, identity: { cookie: 8n } });
});

test('another host interface replaces the earlier one', async () => {
  const { registry } = scene();
  await registry.record(a, IDENTITY);
  await registry.record({ ...a, hostInterfaceName: 'podwother' }, IDENTITY);
  expect(registry.byHostInterface(a.hostInterfaceName)).toBeUndefined();
  expect(registry.byHostInterface('podwother')).toBe(registry.get(a.attachment));
});

test('a refused record is kept in memory, reported, and stored later', async () => {
  const { registry, store, refused, restart } = scene();
  await registry.record(podNetwork('gone'), IDENTITY);
  store.isFull = true;
  await registry.record(a, IDENTITY);
  await registry.remove(podNetwork('gone').attachment);
  expect(registry.all().map(({ network }) => network)).toEqual([a]);
  expect(refused).toHaveLength(2);
  await registry.flush();
  expect(refused).toHaveLength(4);
  store.isFull = false;
  await registry.flush();
  await registry.flush();
  const next = restart();
  await next.load();
  expect(next.all().map(({ network }) => network)).toEqual([a]);
  expect(store.writes).toBe(3);
});

test('a record that was deleted from the store is stored again, unless it is being removed', async () => {
  const { registry, store } = scene();
  const b = podNetwork('b');
  for (const network of [a, b]) await registry.record(network, IDENTITY);
  const stored = new Map(store.texts);
  await registry.flush();
  expect(store.writes).toBe(2);
  store.texts.clear();
  await registry.flush();
  expect(store.texts).toEqual(stored);

  store.texts.clear();
  // The removal does not wait for a write in progress.
  const put = vi.spyOn(store, 'put').mockImplementation(async (record) => {
    put.mockRestore();
    await registry.remove(a.attachment);
    await store.put(record);
  });
  await registry.flush();
  expect([...store.texts.keys()]).toEqual(['net/b/eth0']);
});

test('restoring a record reverts a change', async () => {
  const { registry, store } = scene();
  await registry.restore(a.attachment, undefined);
  expect(store.writes).toBe(0);
  await registry.record(a, IDENTITY);
  const before = registry.get(a.attachment);
  await registry.setState(a.attachment, 'detaching');
  await registry.restore(a.attachment, before);
  expect(registry.get(a.attachment)).toBe(before);
  await registry.restore(a.attachment, undefined);
  expect([registry.all(), store.texts.size]).toEqual([[], 0]);
});

const ALLOCATION = {
  addresses: [{ address: '10.65.0.7', sequenceNumber: 5n }],
  nodeName: 'node-1',
  pod: undefined,
  isBound: false,
};

test('an allocation stays with its attachment, and is bound unless the record has another one since', async () => {
  const { registry, restart } = scene();
  await registry.record(a, IDENTITY, ALLOCATION);
  const unbound = registry.get(a.attachment)!;
  // A later wiring of the same addresses, as a repair has it, does not know the allocation.
  await registry.record({ ...a, mtuBytes: 1400 }, IDENTITY);
  expect(registry.get(a.attachment)?.allocation).toEqual(ALLOCATION);
  await registry.setBound(unbound, []);
  const next = restart();
  await next.load();
  for (const each of [registry, next]) expect(each.get(a.attachment)?.allocation?.isBound).toBe(true);
  const other = { ...ALLOCATION, addresses: [{ address: '10.65.0.8', sequenceNumber: 6n }] };
  await registry.record({ ...a, addresses: [address('10.65.0.8')] }, IDENTITY, other);
  await registry.setBound(unbound, []);
  expect(registry.get(a.attachment)?.allocation).toEqual(other);
  await registry.record(a, IDENTITY);
  expect(registry.get(a.attachment)?.allocation).toBeUndefined();
});

test('a dead record keeps its address, and says on disk that another pod may have it', async () => {
  const { registry, restart, store } = scene();
  await registry.record(a, IDENTITY, ALLOCATION);
  const dead = await registry.end(a.attachment);
  expect(registry.withAddress('10.65.0.7')).toEqual([dead]);
  expect(await registry.markReused(dead!)).toBe(true);
  const next = restart();
  await next.load();
  expect(next.withAddress('10.65.0.7')).toMatchObject([{ state: 'dead', isReused: true }]);
  await registry.remove(a.attachment);
  expect(registry.withAddress('10.65.0.7')).toEqual([]);

  await registry.record(a, IDENTITY, ALLOCATION);
  const full = await registry.end(a.attachment);
  store.isFull = true;
  expect(await registry.markReused(full!)).toBe(false);
});

test('an attached record can lose its binding, and takes over the sequence numbers of the next one', async () => {
  const { registry } = scene();
  await registry.record(a, IDENTITY, { ...ALLOCATION, isBound: true });
  const unbound = await registry.setUnbound(registry.get(a.attachment)!);
  expect(unbound?.allocation?.isBound).toBe(false);
  await registry.setBound(unbound!, [{ address: '10.65.0.7', sequenceNumber: 77n }]);
  const { allocation } = registry.get(a.attachment)!;
  expect([allocation?.isBound, allocation?.addresses]).toEqual([true, [{ address: '10.65.0.7', sequenceNumber: 77n }]]);
});

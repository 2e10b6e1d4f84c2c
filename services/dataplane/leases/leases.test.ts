import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { parseAddress } from '@podwire/shared/net/address';
import { recordingLog } from '@podwire/shared/testing/server';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, describe, expect, test } from 'vitest';

import type { ClusterView } from '../cluster/cluster.js';
import type { AttachedLink } from '../pods/kernel.js';
import { AttachmentRegistry } from '../records/registry.js';
import { hostLink, MemoryPool, recallView } from '../testing/lease-book.js';
import { MemoryRecordStore } from '../testing/memory-record-store.js';
import { podNetwork } from '../testing/pods.js';
import { LeaseEvents } from './lease-events.js';
import type { LeaseMarks } from './lease-keeper.js';
import { NO_LEASES, type StoredLeases } from './lease.js';
import { Leases } from './leases.js';

const IDENTITY = { device: 4n, inode: 4_026_532_178n, cookie: 7n };
const NEVER = new AbortController().signal;

const running: Leases[] = [];
afterEach(async () => {
  for (const leases of running.splice(0)) await leases.stop();
});

interface SceneOptions {
  readonly marks?: LeaseMarks;
  readonly addressCount?: number;
  readonly saved?: StoredLeases;
  readonly links?: readonly AttachedLink[];
  readonly store?: MemoryRecordStore;
  readonly pool?: MemoryPool;
}

async function scene(options: SceneOptions = {}) {
  const { marks = { lowCount: 2, highCount: 4 }, addressCount = 32, store = new MemoryRecordStore() } = options;
  const pool =
    options.pool ?? new MemoryPool(Array.from({ length: addressCount }, (_, index) => `10.65.0.${index + 1}`));
  const clock = new ManualClock();
  const { log, lines } = recordingLog();
  const file = { saved: options.saved ?? NO_LEASES };
  const registry = new AttachmentRegistry({ store, bootId: 'boot', clock, onStoreFailure: () => undefined });
  await registry.load();
  const leases = new Leases({
    registry,
    book: pool.book('node-1'),
    file: { load: () => file.saved, save: (saved) => void (file.saved = saved) },
    marks,
    events: new LeaseEvents(log),
    clock,
    random: () => 0.5,
  });
  running.push(leases);
  leases.load(options.links ?? []);
  leases.start();
  await turns();
  const take = (name: string) => leases.take(podNetwork(name).attachment, [4], NEVER);
  /** An answered ADD. */
  const add = async (name: string) => {
    const pending = take(name);
    await turns();
    const { leases: taken } = await pending;
    const [lease] = taken ?? [];
    if (!lease) throw new Error('no lease');
    const address = parseAddress(lease.address);
    if (!address) throw new Error(lease.address);
    const { address: text, sequenceNumber } = lease;
    const allocation = {
      addresses: [{ address: text, sequenceNumber }],
      nodeName: 'node-1',
      pod: undefined,
      isBound: false,
    };
    await registry.record({ ...podNetwork(name), addresses: [address] }, IDENTITY, allocation);
    const record = registry.get(podNetwork(name).attachment);
    if (record) leases.settle(record);
    return text;
  };
  const del = async (name: string) => {
    const dead = await registry.setState(podNetwork(name).attachment, 'dead');
    if (dead) leases.settle(dead);
  };
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= 100) {
      clock.advance(Math.min(100, left));
      await turns();
    }
  };
  const holder = (address: string) => pool.holdings.get(address)?.attachment;
  const recall = (count: bigint, pools?: ClusterView['cluster']['pools']) => {
    leases.follow(recallView('node-1', count, pools), { blocks: new Set(), hasOtherChanges: true });
  };
  return { leases, pool, clock, lines, file, registry, store, take, add, del, pass, holder, recall };
}

async function turns(): Promise<void> {
  for (let turn = 0; turn < 8; turn++) await new Promise((resolve) => setImmediate(resolve));
}

const leaseCount = (pool: MemoryPool) =>
  [...pool.holdings.values()].filter(({ attachment }) => attachment === undefined).length;

test('an ADD that is still wiring is not bound: it may fail, and give its lease back', async () => {
  const { take, registry, add, pass, holder, leases } = await scene();
  const pending = take('wiring');
  await turns();
  const [lease] = (await pending).leases ?? [];
  const { address = '', sequenceNumber = 0n } = lease ?? {};
  const network = { ...podNetwork('wiring'), addresses: [parseAddress(address)!] };
  const allocation = { addresses: [{ address, sequenceNumber }], nodeName: 'node-1', pod: undefined, isBound: false };
  await registry.record(network, IDENTITY, allocation);
  const other = await add('other');
  await pass(1000);
  expect(holder(other)).toContain('other');
  expect(holder(address)).toBeUndefined();
  await registry.remove(network.attachment);
  leases.giveBack([lease!]);
  await pass(1000);
  expect(holder(address)).toBeUndefined();
});

describe('take', () => {
  test('the first pod waits for its lease; the next ones find theirs', async () => {
    const { add, pool, pass } = await scene();
    expect(pool.holdings.size).toBe(0);
    expect(await add('a')).toBe('10.65.0.1');
    pool.isDown = true;
    expect(await add('b')).toBe('10.65.0.2');
    pool.isDown = false;
    await pass(1000);
    expect(leaseCount(pool)).toBeGreaterThan(2);
  });

  test('a pod gets no lease while podwire-ipam is down and none is left; the reason says so', async () => {
    const { add, take, pool, pass } = await scene();
    await add('a');
    pool.isDown = true;
    for (const name of ['b', 'c', 'd']) await add(name);
    await pass(1000);
    expect(await take('e')).toEqual({ reason: 'unavailable' });
  });

  test('a pod of a full pool gets no lease', async () => {
    const { add, take, pass } = await scene({ addressCount: 1 });
    await add('a');
    await pass(1000);
    expect(await take('b')).toEqual({ reason: 'unavailable' });
  });

  test('the high mark 0 turns leasing off, and returns what the former process leased', async () => {
    const former = await scene();
    await former.add('a');
    await former.pass(100);
    const { take, pool, pass } = await scene({
      marks: { lowCount: 0, highCount: 0 },
      saved: former.file.saved,
      store: former.store,
      pool: former.pool,
    });
    await pass(1000);
    expect(await take('b')).toEqual({ reason: 'off' });
    expect(leaseCount(pool)).toBe(0);
  });

  test('an attachment with a record gets no second address', async () => {
    const { add, take } = await scene();
    await add('a');
    expect(await take('a')).toEqual({ reason: 'known' });
  });

  test('a wait for leases ends when the caller gives up', async () => {
    const { leases } = await scene();
    const caller = new AbortController();
    const taken = leases.take(podNetwork('a').attachment, [6], caller.signal);
    caller.abort();
    await turns();
    expect(await taken).toEqual({ reason: 'exhausted' });
  });
});

describe('settlement', () => {
  test('waits until no pod came for 20 ms, at the latest for 200 ms', async () => {
    const { add, clock, holder } = await scene({ marks: { lowCount: 4, highCount: 64 }, addressCount: 128 });
    const passed = async (ms: number) => {
      clock.advance(ms);
      await turns();
    };
    const first = await add('first');
    for (let ms = 0; ms < 190; ms += 10) {
      await passed(10);
      expect(holder(first)).toBeUndefined();
      await add(`pod-${ms}`);
    }
    await passed(10);
    expect(holder(first)).toContain('first');

    const last = await add('last');
    await passed(19);
    expect(holder(last)).toBeUndefined();
    await passed(1);
    expect(holder(last)).toContain('last');
  });

  test('pods that start together are bound by one call', async () => {
    const { add, pool, pass, holder } = await scene({ marks: { lowCount: 1, highCount: 8 } });
    await add('a');
    await pass(100);
    const calls = pool.callsCount;
    const addresses = [await add('b'), await add('c'), await add('d')];
    await pass(100);
    expect(addresses.map(holder)).toEqual(['b', 'c', 'd'].map((name) => formatAttachment(podNetwork(name).attachment)));
    expect(pool.callsCount - calls).toBe(1);
  });

  test('deleted pods are returned, and their records go; a pod that was never bound too', async () => {
    const { add, del, pass, pool, registry } = await scene();
    const address = await add('a');
    await del('a');
    expect(registry.all()).toHaveLength(1);
    await pass(100);
    expect([pool.holdings.get(address), registry.all()]).toEqual([undefined, []]);
  });

  test('it continues after an outage, and reports it once', async () => {
    const { add, del, pass, pool, holder, lines, leases } = await scene();
    const kept = await add('a');
    const deleted = await add('b');
    pool.isDown = true;
    await del('b');
    await pass(20_000);
    pool.isDown = false;
    await pass(20_000);
    expect([holder(kept) !== undefined, pool.holdings.get(deleted)?.attachment]).toEqual([true, undefined]);
    expect(lines.filter(({ level }) => level === 'warn' || level === 40)).not.toHaveLength(0);
    expect(leases.conditions()).toEqual([]);
  });

  test('an attachment that is added again waits for its return', async () => {
    const { leases, add, del, registry, pass } = await scene();
    await add('a');
    await pass(100);
    await del('a');
    const returned = leases.returned(podNetwork('a').attachment, NEVER);
    await turns();
    await returned;
    expect(registry.get(podNetwork('a').attachment)).toBeUndefined();
  });

  test('an attachment whose return podwire-ipam does not take waits between its attempts', async () => {
    const { leases, add, del, pool, pass } = await scene();
    const address = await add('a');
    await pass(100);
    pool.unreadable.add(address);
    await del('a');
    const caller = new AbortController();
    const returned = leases.returned(podNetwork('a').attachment, caller.signal);
    const calls = pool.callsCount;
    for (let turn = 0; turn < 20; turn++) await turns();
    expect(pool.callsCount - calls).toBeLessThan(3);
    pool.unreadable.clear();
    await pass(1000);
    await returned;
  });

  test('the wait ends with the failure of its signal', async () => {
    const { leases, add, del, pool } = await scene();
    await add('a');
    pool.isDown = true;
    await del('a');
    const caller = new AbortController();
    const returned = expect(leases.returned(podNetwork('a').attachment, caller.signal)).rejects.toThrow('too late');
    caller.abort(new Failure('DEADLINE_EXCEEDED', 'too late'));
    await returned;
  });

  test('a refused binding is a condition, and is reported once', async () => {
    const { add, pass, pool, leases, lines } = await scene();
    const address = await add('a');
    pool.holdings.delete(address);
    await pass(200_000);
    expect(leases.conditions()).toEqual([
      {
        reason: 'AddressNotBound',
        message: `podwire-ipam does not record the address of ${formatAttachment(podNetwork('a').attachment)}: the lease has ended; delete the pod`,
      },
    ]);
    expect(lines.filter(({ msg }) => String(msg).includes('does not bind'))).toHaveLength(1);
  });

  test('a stopping process settles what is left', async () => {
    const { add, leases, holder } = await scene();
    const address = await add('a');
    const stopped = leases.stop();
    await turns();
    await stopped;
    expect(holder(address)).toBe(formatAttachment(podNetwork('a').attachment));
  });
});

describe('keeping leases', () => {
  test('a recall returns all of them, and the node leases none for a minute', async () => {
    const { add, pass, pool, recall } = await scene();
    await add('a');
    recall(0n);
    await pass(500);
    expect(leaseCount(pool)).toBeGreaterThan(0);
    recall(1n);
    await pass(30_000);
    expect(leaseCount(pool)).toBe(0);
    await pass(40_000);
    expect(leaseCount(pool)).toBe(4);
  });

  test('a recall also returns leases that the node never heard of, as the answer was lost', async () => {
    const { add, pass, pool, recall } = await scene();
    recall(0n);
    await add('a');
    pool.faults.push('lost');
    for (const name of ['b', 'c']) await add(name);
    await turns();
    recall(1n);
    await pass(1000);
    expect(leaseCount(pool)).toBe(0);
  });

  test('outdated leases are returned soon after a change of a pool', async () => {
    const { add, pass, pool, recall } = await scene();
    await add('a');
    recall(0n);
    await pass(6000);
    const [[address] = ['']] = [...pool.holdings].filter(([, { attachment }]) => attachment === undefined);
    pool.outdated.add(address);
    recall(0n, new Map());
    await pass(5000);
    expect(pool.holdings.get(address)).toBeUndefined();
  });

  test('a change of another node causes no call: a thousand nodes would make a thousand', async () => {
    const { add, leases, pass, pool } = await scene();
    await add('a');
    const change = { blocks: new Set<string>(), hasOtherChanges: true };
    const view = recallView('node-1', 0n);
    leases.follow(view, change);
    await pass(6000);
    const calls = pool.callsCount;
    const [own] = view.cluster.nodes.values();
    const nodes = new Map(view.cluster.nodes).set('node-2', { ...own!, name: 'node-2', leaseRecallCount: 7n });
    leases.follow({ ...view, cluster: { ...view.cluster, nodes } }, change);
    await pass(6000);
    expect(pool.callsCount).toBe(calls);
  });

  test('without leasing, leases that only podwire-ipam knows are returned too', async () => {
    const former = await scene();
    await former.add('a');
    await former.pass(500);
    expect(leaseCount(former.pool)).toBeGreaterThan(0);
    const { pass } = await scene({ marks: { lowCount: 0, highCount: 0 }, store: former.store, pool: former.pool });
    await pass(1000);
    expect(leaseCount(former.pool)).toBe(0);
  });

  test('a busy node keeps more leases; a quiet one returns to the mark', async () => {
    const { add, pass, pool } = await scene({ addressCount: 256 });
    for (let index = 0; index < 40; index++) {
      await add(`pod-${index}`);
      await turns();
    }
    expect(leaseCount(pool)).toBeGreaterThan(8);
    await pass(150_000);
    expect(leaseCount(pool)).toBe(4);
  });

  test('an address is used again only after every other address, while the node takes and returns leases', async () => {
    const { add, del, pass, pool } = await scene({ addressCount: 16 });
    // Bindings and returns overtake refills, and follow them.
    pool.delays.push(...Array.from({ length: 2000 }, (_, call) => (call * 7919) % 23));
    const addresses: string[] = [];
    for (let pod = 0; pod < 200; pod++) {
      addresses.push(await add(`pod-${pod}`));
      await del(`pod-${pod}`);
      // Pods come fast, then slowly.
      await pass(pod % 40 < 30 ? 100 : 2500);
    }
    for (let i = 0; i + 16 <= addresses.length; i++) expect(new Set(addresses.slice(i, i + 16)).size, `${i}`).toBe(16);
  });

  test('the next process continues with the leases, without podwire-ipam', async () => {
    const former = await scene();
    const taken = await former.add('a');
    await former.pass(500);
    former.pool.isDown = true;
    const second = await former.add('b');
    const next = await scene({ saved: former.file.saved, store: former.store, pool: former.pool });
    const third = await next.add('c');
    expect(new Set([taken, second, third]).size).toBe(3);
  });

  test('a pod without a record keeps its address: the kernel has its interface', async () => {
    const former = await scene();
    const address = await former.add('a');
    const { network } = former.registry.all()[0]!;
    const link: AttachedLink = {
      attachment: network.attachment,
      link: hostLink(network.hostInterfaceName),
      addresses: [`${address}/32`],
    };
    // Its binding was not sent yet, and someone emptied the directory.
    const { add, pass, holder } = await scene({ pool: former.pool, links: [link] });
    await pass(500);
    const later = [await add('b'), await add('c'), await add('d')];
    expect(later).not.toContain(address);
    expect(holder(address)).toBe(formatAttachment(network.attachment));
  });
});

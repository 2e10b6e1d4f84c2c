import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { parseAddress } from '@podwire/shared/net/address';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import type { ClusterView } from '@podwire/dataplane/cluster/cluster';
import type { AttachedLink } from '@podwire/dataplane/pods/kernel';
import { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { MemoryRecordStore } from '@podwire/dataplane/testing/memory-record-store';
import { podNetwork, recordingLog } from '@podwire/dataplane/testing/pods';
import type { AttachmentUsage } from '@podwire/plugin/clients/clients';
import { afterEach, describe, expect, test } from 'vitest';

import { AddressBook } from './address-book.js';
import { AddressEvents } from './events.js';
import { NOTHING_STORED, type StoredLeases } from './lease-file.js';
import type { LeaseMarks } from './lease.js';
import { MemoryIpam, turns } from './testing/memory-ipam.js';
import { hostLink, recallView } from './testing/views.js';

const NEVER = new AbortController().signal;
const IDENTITY = { device: 4n, inode: 4_026_532_178n, cookie: 7n };
const BOOT = { id: 'boot', startedAtMs: 0 };

const running: AddressBook[] = [];
afterEach(async () => {
  await Promise.all(running.splice(0).map((book) => book.stop()));
});

interface SceneOptions {
  readonly marks?: LeaseMarks;
  readonly addressCount?: number;
  readonly links?: readonly AttachedLink[];
  readonly saved?: StoredLeases;
  readonly store?: MemoryRecordStore;
  readonly ipam?: MemoryIpam;
  readonly clock?: ManualClock;
  readonly machineId?: string;
  /** Attachments without a record, as the plugin reports them. */
  readonly usage?: AttachmentUsage;
  /** Addresses of the plugin's pending releases. */
  readonly pending?: readonly string[];
}

async function scene(options: SceneOptions = {}) {
  const { marks = { lowCount: 2, highCount: 4 }, addressCount = 32, store = new MemoryRecordStore() } = options;
  const { clock = new ManualClock(), usage = 'wired', pending = [], machineId = 'machine' } = options;
  const addresses = Array.from({ length: addressCount }, (_, index) => `10.65.0.${index + 1}`);
  const ipam = options.ipam ?? new MemoryIpam(addresses, clock);
  const { log, lines } = recordingLog();
  const file = { saved: options.saved ?? NOTHING_STORED };
  const registry = new AttachmentRegistry({ store, bootId: BOOT.id, clock, onStoreFailure: () => undefined });
  await registry.load();
  const book = await AddressBook.open({
    registry,
    links: () => Promise.resolve(options.links ?? []),
    api: ipam.api(),
    file: { load: () => file.saved, save: (saved) => void (file.saved = saved) },
    marks,
    nodeName: 'node-1',
    machineId,
    boot: BOOT,
    events: new AddressEvents(log),
    clock,
    random: () => 0.5,
    bootMs: () => clock.monotonicMs(),
  });
  running.push(book);
  book.start({ runExclusive: (_, __, work) => work(), pendingAddresses: () => pending, usageOf: () => usage });
  await turns(16);
  const take = (name: string) => book.take(podNetwork(name).attachment, [4], NEVER);
  /** An answered ADD. */
  const add = async (name: string) => {
    const taking = take(name);
    await turns(16);
    const { leases: taken } = await taking;
    const [lease] = taken ?? [];
    if (!lease) throw new Error('no lease');
    const address = parseAddress(lease.address);
    if (!address) throw new Error(lease.address);
    const { address: text, sequenceNumber } = lease;
    const allocated = [{ address: text, sequenceNumber }];
    const allocation = { addresses: allocated, nodeName: 'node-1', pod: undefined, isBound: false };
    await registry.record({ ...podNetwork(name), addresses: [address] }, IDENTITY, allocation);
    const record = registry.get(podNetwork(name).attachment);
    if (record) book.settle(record);
    return text;
  };
  const del = async (name: string) => {
    const dead = await registry.setState(podNetwork(name).attachment, 'dead');
    if (dead) book.settle(dead);
  };
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= 100) {
      clock.advance(Math.min(100, left));
      await turns(10);
    }
  };
  const follow = (view: Partial<ClusterView>) =>
    book.follow({ ...recallView('node-1', 0n), ...view }, { blocks: new Set(), hasOtherChanges: true });
  const recall = (count: bigint, pools?: ClusterView['cluster']['pools']) => follow(recallView('node-1', count, pools));
  const holder = (address: string) => ipam.holderOf(address);
  return { book, ipam, clock, lines, file, registry, store, take, add, del, pass, holder, recall, follow };
}

test('an ADD that is still wiring is not bound: it may fail, and give its lease back', async () => {
  const { take, registry, add, pass, holder, book } = await scene();
  const pending = take('wiring');
  await turns(8);
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
  book.giveBack([lease!]);
  await pass(1000);
  expect(holder(address)).toBeUndefined();
});

describe('take', () => {
  test('the first pod waits for its lease; the next ones find theirs', async () => {
    const { add, ipam, pass } = await scene();
    expect(ipam.holdings.size).toBe(0);
    expect(await add('a')).toBe('10.65.0.1');
    ipam.isDown = true;
    expect(await add('b')).toBe('10.65.0.2');
    ipam.isDown = false;
    await pass(1000);
    expect(ipam.leaseCount).toBeGreaterThan(2);
  });

  test('a pod gets no lease while podwire-ipam is down and none is left; the reason says so', async () => {
    const { add, take, ipam, pass } = await scene();
    await add('a');
    ipam.isDown = true;
    for (const name of ['b', 'c', 'd']) await add(name);
    await pass(1000);
    expect(await take('e')).toEqual({ reason: 'unavailable' });
    // The next process does not wait for its leases.
    await (
      await scene({ ipam })
    ).book.listed;
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
    await former.pass(300);
    const { take, ipam, pass } = await scene({
      marks: { lowCount: 0, highCount: 0 },
      saved: former.file.saved,
      store: former.store,
      ipam: former.ipam,
    });
    await pass(1000);
    expect(await take('b')).toEqual({ reason: 'off' });
    expect(ipam.leaseCount).toBe(0);
  });

  test('an attachment with a record gets no second address', async () => {
    const { add, take } = await scene();
    await add('a');
    expect(await take('a')).toEqual({ reason: 'known' });
  });

  test('a wait for leases ends when the caller gives up', async () => {
    const { book } = await scene();
    const caller = new AbortController();
    const taken = book.take(podNetwork('a').attachment, [6], caller.signal);
    caller.abort();
    await turns(8);
    expect(await taken).toEqual({ reason: 'exhausted' });
  });
});

describe('settlement', () => {
  test('waits until no pod came for 250 ms, at the latest for 1 s', async () => {
    const { add, clock, holder } = await scene({ marks: { lowCount: 4, highCount: 64 }, addressCount: 128 });
    const passed = async (ms: number) => {
      clock.advance(ms);
      await turns(8);
    };
    const first = await add('first');
    for (let ms = 0; ms < 950; ms += 50) {
      await passed(50);
      expect(holder(first)).toBeUndefined();
      await add(`pod-${ms}`);
    }
    await passed(50);
    expect(holder(first)).toContain('first');

    const last = await add('last');
    await passed(249);
    expect(holder(last)).toBeUndefined();
    await passed(1);
    expect(holder(last)).toContain('last');
  });

  test('pods that start together are bound by one call', async () => {
    const { add, ipam, pass, holder } = await scene({ marks: { lowCount: 1, highCount: 8 } });
    await add('a');
    await pass(300);
    const calls = ipam.callsCount;
    const addresses = [await add('b'), await add('c'), await add('d')];
    await pass(300);
    expect(addresses.map(holder)).toEqual(['b', 'c', 'd'].map((name) => formatAttachment(podNetwork(name).attachment)));
    expect(ipam.callsCount - calls).toBe(1);
  });

  test('deleted pods are returned, and their records go; a pod that was never bound too', async () => {
    const { add, del, pass, ipam, registry } = await scene();
    const address = await add('a');
    await del('a');
    expect(registry.all()).toHaveLength(1);
    await pass(300);
    expect([ipam.holdings.get(address), registry.all()]).toEqual([undefined, []]);
  });

  test('it continues after an outage, and reports it once', async () => {
    const { add, del, pass, ipam, holder, lines, book } = await scene();
    const kept = await add('a');
    const deleted = await add('b');
    ipam.isDown = true;
    await del('b');
    await pass(20_000);
    ipam.isDown = false;
    await pass(20_000);
    expect([holder(kept) !== undefined, ipam.holdings.get(deleted)?.attachment]).toEqual([true, undefined]);
    expect(lines.filter(({ level }) => level === 'warn' || level === 40)).not.toHaveLength(0);
    expect(book.conditions()).toEqual([]);
  });

  test('an attachment that is added again waits for its return', async () => {
    const { book, add, del, registry, pass } = await scene();
    await add('a');
    await pass(300);
    await del('a');
    const returned = book.returned(podNetwork('a').attachment, [], NEVER);
    await turns(8);
    await returned;
    expect(registry.get(podNetwork('a').attachment)).toBeUndefined();
  });

  test('an attachment whose return podwire-ipam does not take waits between its attempts', async () => {
    const { book, add, del, ipam, pass } = await scene();
    const address = await add('a');
    await pass(300);
    ipam.unreadable.add(address);
    await del('a');
    const caller = new AbortController();
    const returned = book.returned(podNetwork('a').attachment, [], caller.signal);
    const calls = ipam.callsCount;
    for (let turn = 0; turn < 20; turn++) await turns(8);
    expect(ipam.callsCount - calls).toBeLessThan(3);
    ipam.unreadable.clear();
    await pass(1000);
    await returned;
  });

  test('the wait ends with the failure of its signal', async () => {
    const { book, add, del, ipam } = await scene();
    await add('a');
    ipam.isDown = true;
    await del('a');
    const caller = new AbortController();
    const returned = expect(book.returned(podNetwork('a').attachment, [], caller.signal)).rejects.toThrow('too late');
    caller.abort(new Failure('DEADLINE_EXCEEDED', 'too late'));
    await returned;
  });

  test('a refused binding is a condition that names both pods, and is reported once', async () => {
    const { add, pass, ipam, book, lines } = await scene();
    const address = await add('a');
    const taken = ipam.holdings.get(address)!;
    ipam.holdings.set(address, { ...taken, nodeName: 'node-2', attachment: podNetwork('other').attachment });
    await pass(200_000);
    const reasons = book.conditions().map(({ reason, message }) => `${reason}: ${message}`);
    expect(reasons).toEqual([
      `AddressNotBound: podwire-ipam does not record the address of net/a/eth0: ${address} is held by net/other/eth0; delete the pod`,
    ]);
    expect(lines.filter(({ msg }) => String(msg).includes('does not bind'))).toHaveLength(1);
  });

  test('the address of a pod that another tool released is allocated to it again', async () => {
    const { add, pass, ipam, registry, holder } = await scene();
    const address = await add('a');
    ipam.releaseByTool(address);
    await pass(1000);
    expect(holder(address)).toBe('net/a/eth0');
    const { sequenceNumber } = ipam.holdings.get(address)!;
    expect(registry.all()[0]?.allocation?.addresses).toEqual([{ address, sequenceNumber }]);
  });

  test('a stopping process settles the remaining addresses', async () => {
    const { add, book, holder } = await scene();
    const address = await add('a');
    const stopped = book.stop();
    await turns(8);
    await stopped;
    expect(holder(address)).toBe(formatAttachment(podNetwork('a').attachment));
  });
});

describe('keeping leases', () => {
  test('a recall returns all of them, and the node leases none for a minute', async () => {
    const { add, pass, ipam, recall } = await scene();
    await add('a');
    recall(0n);
    await pass(500);
    expect(ipam.leaseCount).toBeGreaterThan(0);
    recall(1n);
    await pass(30_000);
    expect(ipam.leaseCount).toBe(0);
    await pass(40_000);
    expect(ipam.leaseCount).toBe(4);
  });

  test('a recall also returns leases that the node never heard of, as the answer was lost', async () => {
    const { add, pass, ipam, recall } = await scene();
    recall(0n);
    await add('a');
    ipam.faults.push('lost');
    for (const name of ['b', 'c']) await add(name);
    await turns(8);
    recall(1n);
    await pass(1000);
    expect(ipam.leaseCount).toBe(0);
  });

  test('outdated leases are returned soon after a change of a pool', async () => {
    const { add, pass, ipam, recall } = await scene();
    await add('a');
    recall(0n);
    await pass(6000);
    const [[address] = ['']] = [...ipam.holdings].filter(([, { attachment }]) => attachment === undefined);
    ipam.outdated.add(address);
    recall(0n, new Map());
    await pass(5000);
    expect(ipam.holdings.get(address)).toBeUndefined();
  });

  test('a change of another node causes no call: a thousand nodes would make a thousand', async () => {
    const { add, book, pass, ipam } = await scene();
    await add('a');
    const change = { blocks: new Set<string>(), hasOtherChanges: true };
    const view = recallView('node-1', 0n);
    book.follow(view, change);
    await pass(6000);
    const calls = ipam.callsCount;
    const [own] = view.cluster.nodes.values();
    const nodes = new Map(view.cluster.nodes).set('node-2', { ...own!, name: 'node-2', leaseRecallCount: 7n });
    book.follow({ ...view, cluster: { ...view.cluster, nodes } }, change);
    await pass(6000);
    expect(ipam.callsCount).toBe(calls);
  });

  test('without leasing, leases that only podwire-ipam knows are returned too', async () => {
    const former = await scene();
    await former.add('a');
    await former.pass(500);
    expect(former.ipam.leaseCount).toBeGreaterThan(0);
    const { pass } = await scene({ marks: { lowCount: 0, highCount: 0 }, store: former.store, ipam: former.ipam });
    await pass(1000);
    expect(former.ipam.leaseCount).toBe(0);
  });

  test('a busy node keeps more leases; a quiet one returns to the mark', async () => {
    const { add, pass, ipam } = await scene({ addressCount: 256 });
    for (let index = 0; index < 40; index++) {
      await add(`pod-${index}`);
      await turns(8);
    }
    expect(ipam.leaseCount).toBeGreaterThan(8);
    await pass(150_000);
    expect(ipam.leaseCount).toBe(4);
  });

  test('an address is used again only after every other address, while the node takes and returns leases', async () => {
    const { add, del, pass, ipam } = await scene({ addressCount: 16 });
    // Bindings and returns overtake refills, and follow them.
    ipam.delays.push(...Array.from({ length: 2000 }, (_, call) => (call * 7919) % 23));
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
    former.ipam.isDown = true;
    const second = await former.add('b');
    const next = await scene({ saved: former.file.saved, store: former.store, ipam: former.ipam });
    const third = await next.add('c');
    expect(new Set([taken, second, third]).size).toBe(3);
  });

  test('a pod without a record keeps its address: the kernel has its interface', async () => {
    const former = await scene();
    const address = await former.add('a');
    const { attachment, hostInterfaceName } = former.registry.all()[0]!.network;
    const link: AttachedLink = { attachment, link: hostLink(hostInterfaceName), addresses: [`${address}/32`] };
    // Its binding was not sent yet, and someone emptied the directory.
    const { add, pass, holder } = await scene({ ipam: former.ipam, links: [link] });
    await pass(500);
    const later = [await add('b'), await add('c'), await add('d')];
    expect(later).not.toContain(address);
    expect(holder(address)).toBe(formatAttachment(attachment));
  });
});

describe('the session', () => {
  test('a node that gets registered has its leases at once', async () => {
    const ipam = Object.assign(new MemoryIpam(['10.65.0.1'], new ManualClock()), { isRegistered: false });
    const { book, take, add } = await scene({ ipam });
    expect(await Promise.race([book.listed, take('a')])).toEqual({ reason: 'unavailable' });
    ipam.isRegistered = true;
    expect(await book.claim('192.0.2.1', NEVER)).toBe(true);
    await book.listed;
    expect(await add('b')).toBe('10.65.0.1');
  });

  test('another machine of the name gets no lease, and the condition names both, until the first one is silent', async () => {
    const { ipam, clock, add, book: first } = await scene();
    await add('a');
    expect(await first.claim('192.0.2.1', NEVER)).toBe(true);
    const twin = await scene({ ipam, clock, machineId: 'twin' });
    await expect(twin.book.requireName(NEVER)).rejects.toMatchObject({ code: 'NODE_NAME_TAKEN' });
    await expect(twin.book.claim('192.0.2.2', NEVER)).rejects.toMatchObject({ code: 'NODE_NAME_TAKEN' });
    expect(await twin.take('b')).toEqual({ reason: 'unavailable' });
    expect(twin.book.refusal).toMatchObject({ code: 'NODE_NAME_TAKEN' });
    const message = 'machine and twin have the name node-1';
    expect(twin.book.conditions()).toEqual([{ reason: 'NodeNameTaken', message }]);
    ipam.isDown = true;
    await twin.pass(1000);
    expect(twin.book.refusal).toBeDefined();
    ipam.isDown = false;
    await first.stop();
    await twin.pass(300_000);
    expect(twin.book.refusal).toBeUndefined();
    await twin.add('b');
  });

  test('a displaced machine gives out no lease, also after a restart without podwire-ipam', async () => {
    const { ipam, clock, add, take, pass, file, store, book } = await scene();
    await add('a');
    await pass(1000);
    const [name = '', session] = [...ipam.sessions][0] ?? [];
    ipam.sessions.set(name, { ...session!, machineId: 'twin', generation: session!.generation + 1n });
    await pass(120_000);
    expect([book.refusal?.code, await take('b')]).toEqual(['NODE_NAME_TAKEN', { reason: 'unavailable' }]);
    ipam.isDown = true;
    const next = await scene({ ipam, clock, saved: file.saved, store });
    expect(await next.take('b')).toEqual({ reason: 'unavailable' });
  });

  test('a call whose answer was lost is not executed later', async () => {
    const { ipam, add, pass, holder } = await scene();
    const address = await add('a');
    ipam.faults.push('late');
    await pass(500);
    expect(ipam.executed.filter((method) => method === 'bind').length).toBeGreaterThan(1);
    expect(holder(address)).toBe('net/a/eth0');
  });
});

describe('addresses for a pod', () => {
  test('no lease under the lock', async () => {
    const { add, take, follow, book } = await scene();
    await add('a');
    follow({ isDatastoreLocked: true });
    expect([await take('b'), book.hasLeases([4])]).toEqual([{ reason: 'locked' }, false]);
    follow({ isDatastoreLocked: false });
    await add('b');
  });

  test('no address of a pending release', async () => {
    const { add } = await scene({ pending: ['10.65.0.1', '10.65.0.3'] });
    expect([await add('a'), await add('b')]).toEqual(['10.65.0.2', '10.65.0.4']);
  });

  test('no lease after its validity, while podwire-ipam is unreachable', async () => {
    const { add, take, ipam, pass, clock } = await scene();
    await add('a');
    await pass(1000);
    ipam.isDown = true;
    clock.advance(3_599_000 - 1000);
    await add('b');
    clock.advance(61_000);
    expect(await take('c')).toEqual({ reason: 'unavailable' });
  });

  test('no more leases than the limit: the rest is returned', async () => {
    const { add, ipam, pass } = await scene();
    await add('a');
    await pass(80_000);
    expect(ipam.leaseCount).toBe(3);
    ipam.limit = 2;
    await pass(80_000);
    expect(ipam.leaseCount).toBe(2);
  });

  test('the address of a deleted pod while podwire-ipam is unreachable: the oldest one, after the cool-down', async () => {
    const { book, add, del, take, ipam, pass, holder } = await scene({ addressCount: 2 });
    ipam.coolDownSeconds = 30n;
    const [a, b] = [await add('a'), await add('b')];
    await pass(61_000);
    ipam.isDown = true;
    await del('a');
    await pass(5000);
    await del('b');
    await pass(20_000);
    expect([book.hasLeases([4]), await take('c')]).toEqual([false, { reason: 'unavailable' }]);
    await pass(5000);
    expect(book.hasLeases([4])).toBe(true);
    expect(await add('c')).toBe(a);
    expect(await take('d')).toEqual({ reason: 'unavailable' });
    await pass(5000);
    expect(await add('d')).toBe(b);
    ipam.isDown = false;
    await pass(20_000);
    expect([holder(a), holder(b)]).toEqual(['net/c/eth0', 'net/d/eth0']);
  });

  test('no address whose return was sent without an answer: it may be another node’s', async () => {
    const { add, del, take, ipam, pass } = await scene({ addressCount: 1 });
    await add('a');
    await pass(1000);
    ipam.faults.push('lost', ...Array.from({ length: 20 }, () => 'refused' as const));
    await del('a');
    await pass(300);
    expect(await take('b')).toEqual({ reason: 'unavailable' });
    // A repeated DEL is no other end.
    await del('a');
    expect(await take('b')).toEqual({ reason: 'unavailable' });
  });
});

describe('the inventory', () => {
  const leftover = { bootId: 'earlier', inode: 7n };

  test('finds allocations without a record, and returns allocations of an earlier boot', async () => {
    const { ipam, pass } = await scene({ usage: 'unknown' });
    ipam.allocate('node-1', podNetwork('earlier').attachment, leftover);
    const pod = ipam.allocate('node-1', podNetwork('ipam-only').attachment, { bootId: BOOT.id, inode: 8n });
    await pass(120_000);
    expect([...ipam.holdings.keys()]).toEqual([pod?.address]);
    const reports = ipam.executed.filter((method) => method === 'report').length;
    await pass(400_000);
    // The digest has what the node keeps.
    expect(ipam.executed.filter((method) => method === 'report').length - reports).toBeLessThan(6);
  });

  test.each(['pending', 'gateway'] as const)('keeps an allocation whose attachment is %s', async (usage) => {
    const { ipam, pass } = await scene({ usage });
    ipam.allocate('node-1', podNetwork('a').attachment, leftover);
    await pass(120_000);
    expect(ipam.holdings.size).toBe(1);
  });

  test('is reported when podwire-ipam requests it', async () => {
    const { ipam, follow, pass } = await scene();
    const view = recallView('node-1', 0n);
    follow(view);
    await pass(1000);
    const before = ipam.executed.filter((method) => method === 'report').length;
    const node = { ...view.cluster.nodes.get('node-1')!, inventoryRequestCount: 1n };
    follow({ cluster: { ...view.cluster, nodes: new Map([['node-1', node]]) } });
    await pass(100);
    expect(ipam.executed.filter((method) => method === 'report').length).toBe(before + 1);
  });

  test('after a restore every pod keeps its address', async () => {
    const { add, ipam, pass, holder } = await scene();
    const backup = ipam.backup();
    const addresses = [await add('a'), await add('b')];
    await pass(1000);
    ipam.restore(backup);
    addresses.push(await add('c'));
    await pass(120_000);
    expect(addresses.map(holder)).toEqual(['net/a/eth0', 'net/b/eth0', 'net/c/eth0']);
    expect(ipam.awaited.size).toBe(0);
  });
});

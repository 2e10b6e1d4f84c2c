import { beforeEach, describe, expect, test } from 'vitest';

import type { Kernel } from '../../pods/kernel.js';
import type { RecordStore } from '../../records/record-store.js';
import type { AttachmentRecord } from '../../records/record.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { MemoryRecordStore } from '../memory-record-store.js';
import { BY_FAMILY, detachRequest, never, podNetwork, startNode } from '../pods.js';

/** A store to test, and changes to it from outside. */
interface RecordStoreFixture {
  /** Starts a process, with what the previous one stored. */
  open(): RecordStore;
  /** Overwrites every stored record with a text. */
  corrupt(text: string): void;
}

export function storedRecord(containerId: string, rest: Partial<AttachmentRecord> = {}): AttachmentRecord {
  return {
    network: podNetwork(containerId),
    identity: { device: 4n, inode: 4_026_532_178n, cookie: 7n },
    bootId: '0f8fad5b-d9cb-469f-a165-70867728950e',
    state: 'attached',
    createdAtMs: 1,
    updatedAtMs: 2,
    ...rest,
  };
}

/** The contract of every record store. */
export function recordStoreContract(setUp: () => RecordStoreFixture): void {
  let fixture: RecordStoreFixture;
  let store: RecordStore;

  beforeEach(() => {
    fixture = setUp();
    store = fixture.open();
  });

  const names = async (from: RecordStore) =>
    (await from.load()).records.map(({ network }) => network.attachment.containerId).sort();

  test('is empty at first', async () => {
    expect(await store.load()).toEqual({ records: [], unreadable: [] });
  });

  test('returns stored records, also to the next process', async () => {
    const [a, b] = [storedRecord('a'), storedRecord('b')];
    await store.put(a);
    await store.put(b);
    const { records, unreadable } = await fixture.open().load();
    expect(unreadable).toEqual([]);
    expect(records.toSorted((x, y) => (x.network.netns < y.network.netns ? -1 : 1))).toEqual([a, b]);
  });

  test('keeps the last record of each attachment', async () => {
    await store.put(storedRecord('a'));
    const last = storedRecord('a', { state: 'detaching', updatedAtMs: 9 });
    await store.put(last);
    expect(await fixture.open().load()).toEqual({ records: [last], unreadable: [] });
  });

  test('distinguishes attachments that differ in one part', async () => {
    const base = podNetwork('a');
    const attachments = [
      base.attachment,
      { ...base.attachment, network: 'net2' },
      { ...base.attachment, containerId: 'a2' },
      { ...base.attachment, interfaceName: 'eth1' },
    ];
    for (const attachment of attachments) await store.put(storedRecord('a', { network: { ...base, attachment } }));
    expect(await names(store)).toHaveLength(attachments.length);
  });

  test('reports whether an attachment has a record, readable or not', async () => {
    const { attachment } = podNetwork('a');
    expect(await store.has(attachment)).toBe(false);
    await store.put(storedRecord('a'));
    fixture.corrupt('{');
    expect([await store.has(attachment), await store.has(podNetwork('b').attachment)]).toEqual([true, false]);
    await store.remove(attachment);
    expect(await store.has(attachment)).toBe(false);
  });

  test('removes one record; removing a missing one succeeds', async () => {
    await store.put(storedRecord('a'));
    await store.put(storedRecord('b'));
    await store.remove(podNetwork('a').attachment);
    await store.remove(podNetwork('a').attachment);
    await store.remove(podNetwork('never').attachment);
    expect(await names(fixture.open())).toEqual(['b']);
  });

  test.each(['', '{', '{"version":2}', '\0\0\0'])(
    'moves unreadable records aside (%j), and reports them once',
    async (text) => {
      await store.put(storedRecord('a'));
      fixture.corrupt(text);
      const { records, unreadable } = await fixture.open().load();
      expect({ records, faults: unreadable.map(({ fault }) => fault !== '') }).toEqual({ records: [], faults: [true] });
      expect(await fixture.open().load()).toEqual({ records: [], unreadable: [] });
      await store.put(storedRecord('a'));
      expect(await names(fixture.open())).toEqual(['a']);
    },
  );

  test('concurrent puts and removals of many attachments do not interfere', async () => {
    const all = Array.from({ length: 50 }, (_, at) => `p${String(at).padStart(2, '0')}`);
    await Promise.all(all.map((name) => store.put(storedRecord(name))));
    const removed = all.filter((_, at) => at % 2 === 0);
    await Promise.all(removed.map((name) => store.remove(podNetwork(name).attachment)));
    expect(await names(fixture.open())).toEqual(all.filter((_, at) => at % 2 === 1));
  });
}

interface SharedAddressFixture {
  readonly kernel: Kernel;
  /** Makes a pod's namespace of that name. */
  readonly addPod: (name: string) => void;
  /** The kernel's state as text. */
  readonly print: () => string;
  /** The interface that the node routes an address to. */
  readonly deviceOf: (address: string) => string;
  /** Deletes a link of the node with everything on it. */
  readonly removeLink: (name: string) => void;
}

/** Two recorded pods of one node with the same addresses, as after IPAM lost the first one's record. */
export function describeSharedAddresses(open: () => Promise<SharedAddressFixture>): void {
  const ADDRESS = { IPv4: '10.65.0.7', IPv6: 'fd65::7' } as const;

  async function node(family: keyof typeof ADDRESS) {
    const lasting = { store: new MemoryRecordStore(), ...(await open()) };
    const started = await startNode(lasting);
    const pod = (name: string): PodNetwork => {
      lasting.addPod(name);
      return podNetwork(name, BY_FAMILY[family]);
    };
    const [first, second] = [pod('first'), pod('second')];
    await started.dataplane.attach(first, never());
    await started.dataplane.attach(second, never());
    const holder = () => lasting.deviceOf(ADDRESS[family]);
    return { ...lasting, ...started, first, second, holder, restart: () => startNode(lasting) };
  }

  const repairMessages = (lines: readonly Record<string, unknown>[]) =>
    lines.map(({ msg }) => String(msg)).filter((msg) => /repaired:|taken over/.test(msg));

  describe.each(['IPv4', 'IPv6'] as const)('addresses of %s that two pods have', (family) => {
    test('belong to the later one: repeated checks and a restart change nothing', async () => {
      const { reconciler, print, holder, second, restart, lines } = await node(family);
      const before = print();
      const earlierMessages = repairMessages(lines);
      for (let time = 0; time < 3; time++) await reconciler.check();
      expect([print(), holder(), repairMessages(lines)]).toEqual([before, second.hostInterfaceName, earlierMessages]);
      const next = await restart();
      await next.reconciler.recover();
      await next.reconciler.check();
      expect([print(), holder(), repairMessages(next.lines)]).toEqual([before, second.hostInterfaceName, []]);
    });

    test('move to the pod that is attached last, even when it was wired first', async () => {
      const { dataplane, reconciler, print, holder, first, restart } = await node(family);
      await dataplane.attach(first, never());
      const before = print();
      await reconciler.check();
      expect([print(), holder()]).toEqual([before, first.hostInterfaceName]);
      const next = await restart();
      await next.reconciler.check();
      expect([print(), holder()]).toEqual([before, first.hostInterfaceName]);
    });

    test('are reported by a check, and not taken by a repair', async () => {
      const { dataplane, reconciler, print, first, second } = await node(family);
      const before = print();
      expect(await dataplane.check(first, never())).toMatchObject([
        { object: expect.stringContaining('host route'), actual: expect.stringContaining(second.hostInterfaceName) },
      ]);
      await expect(dataplane.repair(first, never())).rejects.toMatchObject({ code: 'ROUTE_TAKEN' });
      await reconciler.check();
      expect(print()).toBe(before);
    });

    test('do not block other repairs of the earlier one, and return to it when the later one is gone', async () => {
      const { dataplane, reconciler, removeLink, holder, first, second } = await node(family);
      removeLink(first.hostInterfaceName);
      await reconciler.check();
      expect([holder(), await dataplane.check(first, never())]).toMatchObject([second.hostInterfaceName, [{}]]);
      await dataplane.detach(detachRequest(second), never());
      await reconciler.check();
      expect([holder(), await dataplane.check(first, never())]).toEqual([first.hostInterfaceName, []]);
    });
  });
}

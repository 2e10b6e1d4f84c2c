import { beforeEach, expect, test } from 'vitest';

import { podNetwork } from '../plan/pod-network.fixture.js';
import type { RecordStore } from '../pods/record-store.js';
import type { AttachmentRecord } from '../pods/record.js';

/** A store to test, and what happens to it from outside. */
interface RecordStoreFixture {
  /** A process that starts: on what the one before has left. */
  open(): RecordStore;
  /** Overwrites every stored record with a text. */
  spoil(text: string): void;
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

/** What every store of records has to do. */
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

  test('gives back what was put, also to the next process', async () => {
    const [a, b] = [storedRecord('a'), storedRecord('b')];
    await store.put(a);
    await store.put(b);
    const { records, unreadable } = await fixture.open().load();
    expect(unreadable).toEqual([]);
    expect(records.toSorted((x, y) => (x.network.netns < y.network.netns ? -1 : 1))).toEqual([a, b]);
  });

  test('keeps one record for each attachment: the last', async () => {
    await store.put(storedRecord('a'));
    const last = storedRecord('a', { state: 'detaching', updatedAtMs: 9 });
    await store.put(last);
    expect(await fixture.open().load()).toEqual({ records: [last], unreadable: [] });
  });

  test('tells apart what differs in one part of the attachment', async () => {
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

  test('tells of each attachment whether it has a record, readable or not', async () => {
    const { attachment } = podNetwork('a');
    expect(await store.has(attachment)).toBe(false);
    await store.put(storedRecord('a'));
    fixture.spoil('{');
    expect([await store.has(attachment), await store.has(podNetwork('b').attachment)]).toEqual([true, false]);
    await store.remove(attachment);
    expect(await store.has(attachment)).toBe(false);
  });

  test('removes one, and what is not there as well', async () => {
    await store.put(storedRecord('a'));
    await store.put(storedRecord('b'));
    await store.remove(podNetwork('a').attachment);
    await store.remove(podNetwork('a').attachment);
    await store.remove(podNetwork('never').attachment);
    expect(await names(fixture.open())).toEqual(['b']);
  });

  test.each(['', '{', '{"version":2}', '\0\0\0'])(
    'puts aside what cannot be read (%j), and tells it once',
    async (text) => {
      await store.put(storedRecord('a'));
      fixture.spoil(text);
      const { records, unreadable } = await fixture.open().load();
      expect({ records, faults: unreadable.map(({ fault }) => fault !== '') }).toEqual({ records: [], faults: [true] });
      expect(await fixture.open().load()).toEqual({ records: [], unreadable: [] });
      await store.put(storedRecord('a'));
      expect(await names(fixture.open())).toEqual(['a']);
    },
  );

  test('puts and removals of many attachments at once do not mix', async () => {
    const all = Array.from({ length: 50 }, (_, at) => `p${String(at).padStart(2, '0')}`);
    await Promise.all(all.map((name) => store.put(storedRecord(name))));
    const removed = all.filter((_, at) => at % 2 === 0);
    await Promise.all(removed.map((name) => store.remove(podNetwork(name).attachment)));
    expect(await names(fixture.open())).toEqual(all.filter((_, at) => at % 2 === 1));
  });
}

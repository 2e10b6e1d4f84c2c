import { beforeEach, expect, test } from 'vitest';

import { encodeEntry, type JournalEntry, type JournalStore } from '../journal/entry.js';

/** A store to test, and changes to it from outside. */
interface JournalStoreFixture {
  /** Starts a process, with what the previous one stored. */
  open(): JournalStore;
  /** Overwrites every stored entry, also set-aside ones, with a text. */
  spoil(text: string): void;
}

export function journalEntry(containerId: string, rest: Partial<JournalEntry> = {}): JournalEntry {
  return {
    attachment: { network: 'net', containerId, interfaceName: 'eth0' },
    action: 'detach-and-release',
    held: [{ address: '10.65.0.7', sequenceNumber: 2n ** 63n }],
    reason: 'podwire-ipam does not answer',
    order: 1,
    sinceMs: 1_700_000_000_000,
    ...rest,
  };
}

/** The contract of every store of the journal. */
export function journalStoreContract(setUp: () => JournalStoreFixture): void {
  let fixture: JournalStoreFixture;
  let store: JournalStore;

  beforeEach(() => {
    fixture = setUp();
    store = fixture.open();
  });

  const names = async (from: JournalStore) =>
    (await from.load()).entries.map(({ attachment }) => attachment.containerId).sort();

  test('is empty at first', async () => {
    expect(await store.load()).toEqual({ entries: [], unreadable: [] });
  });

  test('returns the stored entries, also to the next process', async () => {
    const [a, b] = [journalEntry('a'), journalEntry('b', { held: undefined, action: 'release', order: 2 })];
    await store.put(a);
    await store.put(b);
    const { entries, unreadable } = await fixture.open().load();
    expect(unreadable).toEqual([]);
    expect(entries.toSorted((x, y) => x.order - y.order)).toEqual([a, b]);
  });

  test('keeps one entry for each attachment: the latest', async () => {
    await store.put(journalEntry('a'));
    const last = journalEntry('a', { action: 'release-unless-attached', reason: 'other' });
    await store.put(last);
    expect(await fixture.open().load()).toEqual({ entries: [last], unreadable: [] });
  });

  test('distinguishes attachments that differ in one part', async () => {
    const { attachment } = journalEntry('a');
    const attachments = [
      attachment,
      { ...attachment, network: 'net2' },
      { ...attachment, containerId: 'a2' },
      { ...attachment, interfaceName: 'eth1' },
    ];
    for (const each of attachments) await store.put(journalEntry('a', { attachment: each }));
    expect(await names(store)).toHaveLength(attachments.length);
  });

  test('removes an entry, and ignores one that is absent', async () => {
    await store.put(journalEntry('a'));
    await store.put(journalEntry('b'));
    await store.remove(journalEntry('a').attachment);
    await store.remove(journalEntry('a').attachment);
    await store.remove(journalEntry('never').attachment);
    expect(await names(fixture.open())).toEqual(['b']);
  });

  test.each(['', '{', '{"version":2}', '\0\0\0'])(
    'sets aside an unreadable entry (%j), and reports it to each process until another is put',
    async (text) => {
      await store.put(journalEntry('a'));
      fixture.spoil(text);
      for (let process = 0; process < 2; process++) {
        store = fixture.open();
        const { entries, unreadable } = await store.load();
        expect(entries).toEqual([]);
        expect(unreadable).toEqual([{ path: expect.any(String), fault: expect.stringMatching(/./) }]);
        expect(store.unreadable()).toEqual(unreadable);
        const isSetAside = ['a', 'b'].map((name) => store.isSetAside(journalEntry(name).attachment));
        expect(isSetAside).toEqual([true, false]);
      }
      await store.put(journalEntry('a'));
      expect(await fixture.open().load()).toEqual({ entries: [journalEntry('a')], unreadable: [] });
    },
  );

  test('returns an entry set aside to a process that can read it', async () => {
    await store.put(journalEntry('a'));
    fixture.spoil('{');
    await fixture.open().load();
    fixture.spoil(encodeEntry(journalEntry('a')));
    for (let process = 0; process < 2; process++) {
      store = fixture.open();
      expect(await store.load()).toEqual({ entries: [journalEntry('a')], unreadable: [] });
    }
    await store.remove(journalEntry('a').attachment);
    expect(await fixture.open().load()).toEqual({ entries: [], unreadable: [] });
  });

  test('removes entries set aside as well', async () => {
    for (const name of ['a', 'b']) await store.put(journalEntry(name));
    fixture.spoil('{');
    store = fixture.open();
    await store.load();
    await store.remove(journalEntry('a').attachment);
    expect(store.isSetAside(journalEntry('a').attachment)).toBe(false);
    expect(store.unreadable()).toHaveLength(1);
    expect((await fixture.open().load()).unreadable).toHaveLength(1);
  });

  test('keeps concurrent puts and removals of many attachments apart', async () => {
    const all = Array.from({ length: 50 }, (_, at) => `p${String(at).padStart(2, '0')}`);
    await Promise.all(all.map((name) => store.put(journalEntry(name))));
    const removed = all.filter((_, at) => at % 2 === 0);
    await Promise.all(removed.map((name) => store.remove(journalEntry(name).attachment)));
    expect(await names(fixture.open())).toEqual(all.filter((_, at) => at % 2 === 1));
  });
}

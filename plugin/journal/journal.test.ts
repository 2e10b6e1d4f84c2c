import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { beforeEach, describe, expect, test } from 'vitest';

import { journalEntry } from '../testing/journal-store-contract.js';
import { MemoryJournalStore } from '../testing/journal-store.js';
import { recordingLog } from '../testing/plugin.js';
import { encodeEntry } from './entry.js';
import { JournalEvents } from './events.js';
import { Journal } from './journal.js';

let clock: ManualClock;
let store: MemoryJournalStore;
let journal: Journal;
let record: ReturnType<typeof recordingLog>;

/** Starts the process, with what the previous one stored. */
async function open({ maxEntriesCount = 3 } = {}): Promise<Journal> {
  record = recordingLog();
  const opened = new Journal({ store, maxEntriesCount, clock, events: new JournalEvents(record.log) });
  await opened.load();
  return opened;
}

beforeEach(async () => {
  clock = new ManualClock();
  store = new MemoryJournalStore();
  journal = await open();
});

const attachment = (name: string) => journalEntry(name).attachment;
const add = (...names: string[]) => Promise.all(names.map((name) => journal.add(journalEntry(name))));
const names = (of = journal) => of.entries().map((entry) => entry.attachment.containerId);

describe('entries', () => {
  test('keep their order, also over restarts', async () => {
    await add('c');
    await add('a');
    await journal.add({ ...journalEntry('c'), reason: 'again' });
    expect(names()).toEqual(['c', 'a']);
    journal = await open();
    await add('b');
    expect(names()).toEqual(['c', 'a', 'b']);
    expect(journal.get(attachment('c'))).toMatchObject({ reason: 'again', sinceMs: 1_000_000 });
  });

  test('that replaced a discarded one stay', async () => {
    await add('a');
    const before = journal.get(attachment('a'))!;
    await add('a');
    await journal.discard(before, []);
    expect(names()).toEqual(['a']);
  });

  test('that are discarded are logged once, with the unreleased addresses', async () => {
    await add('a');
    const [entry] = journal.entries();
    await journal.discard(entry!, ['host-local', 'podwire-ipam']);
    await journal.discard(entry!, ['host-local']);
    expect(record.lines().slice(1)).toEqual([
      expect.objectContaining({
        level: 'warn',
        msg: 'journal: release of net/a/eth0 is discarded: its wire is not removed, and its addresses of host-local and podwire-ipam may stay allocated',
        addresses: ['10.65.0.7'],
        providers: ['host-local', 'podwire-ipam'],
      }),
    ]);
  });

  test('have an age', async () => {
    expect(journal.level()).toEqual({ entries: 0, volatileEntries: 0, unreadableEntries: 0, oldestAgeMs: 0 });
    await add('a');
    clock.advance(500);
    await add('b');
    clock.advance(1_000);
    expect(journal.level()).toEqual({ entries: 2, volatileEntries: 0, unreadableEntries: 0, oldestAgeMs: 1_500 });
  });

  test('are logged once when they are written and once when they are done', async () => {
    await add('a');
    await journal.done(attachment('a'));
    expect(record.lines().map(({ msg }) => msg)).toEqual([
      expect.stringMatching(/release of net\/a\/eth0 is pending: podwire-ipam/),
      expect.stringMatching(/net\/a\/eth0 is done/),
    ]);
  });
});

describe('a store', () => {
  test('that has no room for one entry accepts another, which it had refused', async () => {
    await add('a', 'b', 'c', 'd');
    await journal.done(attachment('a'));
    await add('e');
    store.broken = 'full';
    await add('e');
    expect(journal.level().volatileEntries).toBe(2);
    store.broken = 'no';
    await journal.retryStorage();
    expect(journal.level().volatileEntries).toBe(1);
    await journal.done(attachment('b'));
    await journal.retryStorage();
    expect(journal.fault).toBeUndefined();
  });

  test('that holds the maximum accepts no more, and accepts them when there is room', async () => {
    await add('a', 'b', 'c', 'd', 'e');
    expect(store.texts.size).toBe(3);
    expect(names()).toHaveLength(5);
    expect(journal.fault).toMatch(
      /^2 entries.*maximum of 3 stored entries; raise PODWIRE_NODE_JOURNAL_MAX_ENTRIES_COUNT/,
    );
    await journal.done(attachment('a'));
    await journal.done(attachment('b'));
    await journal.retryStorage();
    expect(journal.fault).toBeUndefined();
    expect([...store.texts.keys()].sort()).toEqual(['net/c/eth0', 'net/d/eth0', 'net/e/eth0']);
  });

  test('that does not remove an entry is tried again, and a later entry of the attachment stays', async () => {
    await add('a', 'b');
    store.broken = 'gone';
    await journal.done(attachment('a'));
    await journal.done(attachment('b'));
    expect(journal.fault).toContain('cannot be removed');
    expect([names(), journal.isIdle]).toEqual([[], false]);
    store.broken = 'no';
    await add('b');
    await journal.retryStorage();
    expect([...store.texts.keys()]).toEqual(['net/b/eth0']);
    expect(journal.fault).toBeUndefined();
  });

  test('that cannot be read at the start is read later, and newer entries win', async () => {
    await add('a', 'b');
    store.broken = 'gone';
    journal = await open();
    expect([names(), journal.isIdle]).toEqual([[], false]);
    expect(journal.fault).toContain('cannot be read');
    await journal.add({ ...journalEntry('a'), reason: 'later' });
    store.broken = 'no';
    await journal.retryStorage();
    expect(names().sort()).toEqual(['a', 'b']);
    expect(journal.get(attachment('a'))?.reason).toBe('later');
    expect(JSON.parse(store.texts.get('net/a/eth0')!)).toMatchObject({ reason: 'later' });
  });

  test('that does not remove a discarded entry is tried again', async () => {
    await add('a');
    store.broken = 'gone';
    await journal.discard(journal.get(attachment('a'))!, []);
    expect([names(), journal.isIdle, journal.fault]).toEqual([[], false, expect.stringContaining('cannot be removed')]);
    store.broken = 'no';
    await journal.retryStorage();
    expect([names(), store.texts.size, journal.isIdle]).toEqual([[], 0, true]);
  });

  test('that cannot be read has no entry discarded, as the entry would return', async () => {
    await add('a');
    store.broken = 'gone';
    journal = await open();
    await add('a');
    const entry = journal.get(attachment('a'))!;
    await expect(journal.discard(entry, [])).rejects.toMatchObject({ code: 'STATE_IO' });
    expect(names()).toEqual(['a']);
    store.broken = 'no';
    await journal.retryStorage();
    await journal.discard(entry, []);
    expect([names(), names(await open())]).toEqual([[], []]);
  });

  test('that cannot be read keeps no entry of an attachment that was added, or completely deleted, meanwhile', async () => {
    await add('a', 'b', 'c');
    for (const name of ['a', 'b', 'c']) store.texts.set(`net/${name}/eth0`, '{');
    journal = await open();
    expect([names(), journal.level()]).toEqual([[], expect.objectContaining({ unreadableEntries: 3 })]);
    await journal.added(attachment('a'));
    await journal.done(attachment('b'));
    expect(journal.unreadable()).toEqual([{ path: 'net/c/eth0', fault: expect.stringContaining('file') }]);
    journal = await open();
    expect(journal.unreadable()).toHaveLength(1);
    store.aside.set('net/c/eth0', encodeEntry(journalEntry('c')));
    expect(names(await open())).toEqual(['c']);
  });

  test('with unreadable entries keeps them', async () => {
    await add('a', 'b');
    store.texts.set('net/a/eth0', '{');
    journal = await open();
    expect(names()).toEqual(['b']);
    expect(record.lines().map(({ msg }) => msg)).toContainEqual(expect.stringContaining('cannot be read'));
  });
});

import { metrics } from '@opentelemetry/api';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { journalEntry } from '../testing/journal-store-contract.js';
import { MemoryJournalStore } from '../testing/journal-store.js';
import { recordingLog } from '../testing/plugin.js';
import { JournalEvents } from './events.js';
import { Journal } from './journal.js';

/** The journal's gauges by name. */
async function readJournal(): Promise<Readonly<Record<string, number>>> {
  const lines = (await read.read()).map((line) => line.split(' '));
  return Object.fromEntries(lines.map(([name, value]) => [name, Number(value)]));
}

let read: ReadMetrics;
let clock: ManualClock;
let store: MemoryJournalStore;

beforeEach(() => {
  read = new ReadMetrics('podwire.plugin.journal.');
  clock = new ManualClock();
  store = new MemoryJournalStore();
});

afterEach(() => metrics.disable());

function open(): Journal {
  return new Journal({ store, maxEntriesCount: 2, clock, events: new JournalEvents(recordingLog().log) });
}

const attachment = (name: string) => journalEntry(name).attachment;

test('metrics report the pending releases, their age, and the releases that a restart would lose', async () => {
  const journal = open();
  await journal.load();
  expect(await readJournal()).toEqual({ entries: 0, volatile_entries: 0, unreadable_entries: 0, oldest_age: 0 });
  await journal.add(journalEntry('a'));
  clock.advance(1_500);
  await journal.add(journalEntry('b'));
  clock.advance(500);
  expect(await readJournal()).toEqual({ entries: 2, volatile_entries: 0, unreadable_entries: 0, oldest_age: 2 });
  // One more than the store accepts.
  await journal.add(journalEntry('c'));
  expect(await readJournal()).toMatchObject({ entries: 3, volatile_entries: 1 });
  await journal.done(attachment('a'));
  await journal.done(attachment('a'));
  await journal.discard(journal.get(attachment('c'))!, ['host-local']);
  await journal.retryStorage();
  expect(await readJournal()).toMatchObject({
    entries: 1,
    volatile_entries: 0,
    oldest_age: 0.5,
  });
});

test('an entry that is lost with the process stays volatile; one that is stored at the end does not', async () => {
  const journal = open();
  store.broken = 'full';
  await journal.add(journalEntry('a'));
  store.broken = 'no';
  await journal.close();
  expect(await readJournal()).toMatchObject({ volatile_entries: 0 });
  store.broken = 'full';
  await journal.add(journalEntry('b'));
  await journal.close();
  expect(await readJournal()).toMatchObject({ volatile_entries: 1 });
});

test('metrics report unreadable entries for as long as they exist', async () => {
  const journal = open();
  for (const name of ['a', 'b']) store.texts.set(`net/${name}/eth0`, '{');
  await journal.load();
  expect(await readJournal()).toMatchObject({ entries: 0, unreadable_entries: 2 });
  await journal.done(attachment('a'));
  expect(await readJournal()).toMatchObject({ unreadable_entries: 1 });
});

import {
  createNoopMeter,
  metrics,
  type Attributes,
  type BatchObservableCallback,
  type Counter,
  type Meter,
  type Observable,
} from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { journalEntry } from '../testing/journal-store-contract.js';
import { MemoryJournalStore } from '../testing/journal-store.js';
import { recordingLog } from '../testing/plugin.js';
import { JournalEvents } from './events.js';
import { Journal } from './journal.js';

/** A meter whose values can be read, as an exporter reads them. */
class ReadMeter {
  readonly #counts = new Map<string, number>();
  readonly #gauges = new Map<Observable, string>();
  readonly #callbacks = new Set<BatchObservableCallback>();
  readonly meter: Meter = Object.assign(createNoopMeter(), {
    createCounter: (name: string): Counter => ({ add: (value, attributes) => this.#count(name, value, attributes) }),
    createObservableGauge: (name: string): Observable => {
      const gauge: Observable = { addCallback: () => undefined, removeCallback: () => undefined };
      this.#gauges.set(gauge, name);
      return gauge;
    },
    addBatchObservableCallback: (callback: BatchObservableCallback) => void this.#callbacks.add(callback),
  });

  #count(name: string, value: number, attributes: Attributes = {}): void {
    const key = [name, ...Object.values(attributes)].join(' ');
    this.#counts.set(key, (this.#counts.get(key) ?? 0) + value);
  }

  async read(): Promise<Readonly<Record<string, number>>> {
    const levels = new Map<string, number>();
    const observe = (gauge: Observable, value: number) => void levels.set(this.#gauges.get(gauge) ?? '', value);
    for (const callback of this.#callbacks) await callback({ observe });
    const all = [...this.#counts, ...levels].map(([name, value]) => [
      name.replace('podwire.plugin.journal.', ''),
      value,
    ]);
    return Object.fromEntries(all);
  }
}

let read: ReadMeter;
let clock: ManualClock;
let store: MemoryJournalStore;

beforeEach(() => {
  read = new ReadMeter();
  metrics.setGlobalMeterProvider({ getMeter: () => read.meter });
  clock = new ManualClock();
  store = new MemoryJournalStore();
});

afterEach(() => metrics.disable());

function open(): Journal {
  return new Journal({ store, maxEntriesCount: 2, clock, events: new JournalEvents(recordingLog().log) });
}

const attachment = (name: string) => journalEntry(name).attachment;

test('metrics report the pending releases, their age, and those that a restart would lose', async () => {
  const journal = open();
  await journal.load();
  expect(await read.read()).toEqual({ entries: 0, volatile_entries: 0, unreadable_entries: 0, oldest_age: 0 });
  await journal.add(journalEntry('a'));
  clock.advance(1_500);
  await journal.add(journalEntry('b'));
  clock.advance(500);
  expect(await read.read()).toEqual({
    entries: 2,
    volatile_entries: 0,
    unreadable_entries: 0,
    oldest_age: 2,
    [`written ${journalEntry('a').action}`]: 2,
  });
  // One more than the store accepts.
  await journal.add(journalEntry('c'));
  expect(await read.read()).toMatchObject({ entries: 3, volatile_entries: 1, 'faults write': 1 });
  await journal.done(attachment('a'));
  await journal.done(attachment('a'));
  await journal.discard(journal.get(attachment('c'))!, ['host-local']);
  await journal.retryStorage();
  expect(await read.read()).toMatchObject({
    entries: 1,
    volatile_entries: 0,
    oldest_age: 0.5,
    [`discarded ${journalEntry('c').action}`]: 1,
    [`done ${journalEntry('a').action}`]: 1,
  });
});

test('an entry that is lost with the process counts as a fault; one that is stored at the end does not', async () => {
  const journal = open();
  store.broken = 'full';
  await journal.add(journalEntry('a'));
  store.broken = 'no';
  await journal.close();
  expect(await read.read()).toMatchObject({ volatile_entries: 0, 'faults write': 1 });
  store.broken = 'full';
  await journal.add(journalEntry('b'));
  await journal.close();
  expect(await read.read()).toMatchObject({ volatile_entries: 1, 'faults write': 3 });
});

test('metrics count failures of the storage, by operation', async () => {
  const journal = open();
  await journal.add(journalEntry('a'));
  store.broken = 'gone';
  await journal.add(journalEntry('b'));
  await journal.done(attachment('a'));
  await open().load();
  expect(await read.read()).toMatchObject({ 'faults write': 1, 'faults remove': 1, 'faults load': 1 });
});

test('metrics report unreadable entries for as long as they exist', async () => {
  const journal = open();
  for (const name of ['a', 'b']) store.texts.set(`net/${name}/eth0`, '{');
  await journal.load();
  expect(await read.read()).toMatchObject({ entries: 0, unreadable_entries: 2, 'faults read': 2 });
  await journal.done(attachment('a'));
  expect(await read.read()).toMatchObject({ unreadable_entries: 1 });
});

test('an entry that cannot be read is a fault', async () => {
  new JournalEvents(recordingLog().log).unreadable({ path: '/state/a.json.unreadable', fault: 'is no JSON' });
  new JournalEvents(recordingLog().log).notRemoved('net/a/eth0', new Failure('STATE_IO', 'EROFS'));
  expect(await read.read()).toEqual({ 'faults read': 1, 'faults remove': 1 });
});

import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { journalEntry } from '../testing/journal-store-contract.js';
import { MemoryJournalStore } from '../testing/journal-store.js';
import { recordingLog } from '../testing/plugin.js';
import type { JournalEntry } from './entry.js';
import { JournalEvents } from './events.js';
import { Journal } from './journal.js';
import { Replay, type UnavailableService } from './replay.js';

let clock: ManualClock;
let journal: Journal;
let replay: Replay;
let record: ReturnType<typeof recordingLog>;
/** Attempts, in order; and the outcome for each container that is not released. */
let tried: string[];
let outcomes: Map<string, UnavailableService | Failure>;

const UNAVAILABLE: UnavailableService = { service: 'podwire-ipam', reason: 'podwire-ipam: no answer' };

beforeEach(async () => {
  clock = new ManualClock();
  record = recordingLog();
  const events = new JournalEvents(record.log);
  journal = new Journal({ store: new MemoryJournalStore(), maxEntriesCount: 10, clock, events });
  await journal.load();
  [tried, outcomes] = [[], new Map()];
  const execute = async ({ attachment }: JournalEntry, skip: ReadonlySet<string>) => {
    const outcome = outcomes.get(attachment.containerId);
    if (outcome instanceof Failure) {
      tried.push(attachment.containerId);
      throw outcome;
    }
    if (skip.has('podwire-ipam')) return { service: 'podwire-ipam', reason: 'left out' };
    tried.push(attachment.containerId);
    if (outcome === undefined) await journal.done(attachment);
    return outcome;
  };
  replay = new Replay({ journal, clock, random: () => 0.5, events, execute });
});
afterEach(() => replay.stop());

const add = async (...names: string[]) => {
  for (const name of names) await journal.add(journalEntry(name));
};
const resting = () => vi.waitFor(() => expect(clock.sleeping).toBe(1), { interval: 1, timeout: 20_000 });
const idle = () => vi.waitFor(() => expect(journal.isIdle).toBe(true), { interval: 1, timeout: 20_000 });

test('entries are executed in their order, as soon as they are written', async () => {
  await add('c', 'a', 'b');
  await idle();
  expect(tried).toEqual(['c', 'a', 'b']);
});

test('a service that is down is called once a round, for each entry in turn, with growing pauses', async () => {
  for (const name of ['a', 'b', 'c']) outcomes.set(name, UNAVAILABLE);
  await add('a', 'b', 'c');
  await resting();
  tried.length = 0;
  const pauses: number[] = [];
  for (let round = 0; round < 9; round++) {
    pauses.push(clock.nextMs ?? 0);
    clock.advance(clock.nextMs ?? 0);
    await resting();
  }
  expect(tried.toSorted()).toEqual(['a', 'a', 'a', 'b', 'b', 'b', 'c', 'c', 'c']);
  expect(pauses).toEqual(pauses.toSorted((x, y) => x - y));
  expect(Math.max(...pauses)).toBe(15_000);
  outcomes.clear();
  void replay.runNow();
  await idle();
  expect(tried.slice(9).toSorted()).toEqual(['a', 'b', 'c']);
});

test('an entry without an answer does not block further entries of that service', async () => {
  outcomes.set('a', UNAVAILABLE);
  await add('a', 'b', 'c');
  await vi.waitFor(
    () => {
      clock.advance(clock.nextMs ?? 0);
      expect(journal.entries().map(({ attachment }) => attachment.containerId)).toEqual(['a']);
    },
    { interval: 1, timeout: 20_000 },
  );
  expect(tried.filter((name) => name !== 'a')).toEqual(['b', 'c']);
});

test('an entry that was skipped for a silent service has that service’s error', async () => {
  outcomes.set('a', UNAVAILABLE);
  outcomes.set('b', UNAVAILABLE);
  await add('a', 'b');
  await replay.runNow();
  expect(journal.entries().map((entry) => replay.faultOf(entry))).toEqual([UNAVAILABLE.reason, UNAVAILABLE.reason]);
});

test('a rejected entry does not block further ones, and each reason is logged once', async () => {
  outcomes.set('a', new Failure('KERNEL_REFUSED', 'EBUSY'));
  await add('a', 'b', 'c');
  await resting();
  void replay.runNow();
  await vi.waitFor(() => expect(journal.entries()).toHaveLength(1), { interval: 1, timeout: 20_000 });
  for (let round = 0; round < 3; round++) {
    await resting();
    clock.advance(clock.nextMs ?? 0);
  }
  await resting();
  const lines = () => record.lines().filter(({ msg }) => String(msg).includes('release of net/a/eth0 failed'));
  expect(lines()).toHaveLength(1);
  outcomes.set('a', new Failure('KERNEL_REFUSED', 'EPERM'));
  void replay.runNow();
  await vi.waitFor(() => expect(lines()).toHaveLength(2), { interval: 1, timeout: 20_000 });
});

test('an entry that an IPAM plugin refuses permanently is tried once, and again on request', async () => {
  const refused = (text: string) => new Failure('INVALID_CONFIG', text, { details: { delegate: 'own', code: '7' } });
  outcomes.set('a', refused('no subnet')).set('b', UNAVAILABLE);
  await add('a', 'b');
  await resting();
  outcomes.delete('b');
  clock.advance(clock.nextMs ?? 0);
  await vi.waitFor(() => expect(journal.entries()).toHaveLength(1), { interval: 1, timeout: 20_000 });
  await add('c');
  await vi.waitFor(() => expect(journal.entries()).toHaveLength(1), { interval: 1, timeout: 20_000 });
  expect(tried.filter((name) => name === 'a')).toEqual(['a']);
  expect(clock.sleeping).toBe(0);
  expect(journal.entries().map((entry) => replay.faultOf(entry))).toEqual(['no subnet']);
  await replay.runNow();
  expect(tried.filter((name) => name === 'a')).toEqual(['a', 'a']);
  // A later DEL has changed it.
  await add('a');
  await vi.waitFor(() => expect(tried.filter((name) => name === 'a')).toHaveLength(3), {
    interval: 1,
    timeout: 20_000,
  });
  outcomes.delete('a');
  await replay.runNow();
  expect(journal.isIdle).toBe(true);
});

test('runNow waits for a new round, and each entry has its error', async () => {
  await replay.runNow();
  outcomes.set('a', UNAVAILABLE).set('b', new Failure('KERNEL_REFUSED', 'EBUSY'));
  await add('a', 'b');
  await replay.runNow();
  const [a, b] = journal.entries();
  expect([a, b].map((entry) => entry && replay.faultOf(entry))).toEqual(['podwire-ipam: no answer', 'EBUSY']);
  tried.length = 0;
  await replay.runNow();
  expect(tried.toSorted()).toEqual(['a', 'b']);
  expect(journal.entries()).toHaveLength(2);
  outcomes.clear();
  await replay.runNow();
  expect(journal.entries()).toEqual([]);
});

test('a run requested while it stops is answered too', async () => {
  outcomes.set('a', UNAVAILABLE);
  await add('a');
  await resting();
  const hurried = replay.runNow();
  await replay.stop();
  await hurried;
  await replay.runNow();
});

test('entries that are not done when it stops stay', async () => {
  outcomes.set('a', UNAVAILABLE);
  await add('a');
  await resting();
  await replay.stop();
  replay.start();
  expect(clock.sleeping).toBe(0);
  expect(journal.entries()).toHaveLength(1);
});

test('a stop while an entry is in flight is not logged as a defect', async () => {
  let reason: unknown;
  const execute = (_: JournalEntry, __: ReadonlySet<string>, signal: AbortSignal) =>
    new Promise<UnavailableService>((resolve) => {
      signal.addEventListener('abort', () => {
        reason = signal.reason;
        resolve(UNAVAILABLE);
      });
    });
  const events = new JournalEvents(record.log);
  const other = new Journal({ store: new MemoryJournalStore(), maxEntriesCount: 10, clock, events });
  await other.load();
  const stopping = new Replay({ journal: other, clock, random: () => 0.5, events, execute });
  await other.add(journalEntry('a'));
  await new Promise((resolve) => setImmediate(resolve));
  await stopping.stop();
  expect(reason).toMatchObject({ name: 'Failure', code: 'CANCELLED' });
  expect(other.entries()).toHaveLength(1);
});

import { parseAddress } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, instantClock, keys } from '../engine/testing/stores.js';
import { encodeHistoryEntry } from '../records/json/history.js';
import { dayOf, dayStartMs, historyDay } from '../records/json/keys.js';
import { serialize } from '../records/json/registry.js';
import { NOW_MS, prefix } from '../testing/records.js';
import { HistoryExpiry } from './expiry-operations.js';
import { HistoryLog, type SegmentedHistory } from './history-log.js';

const TODAY = dayOf(NOW_MS);
const KEPT_DAYS = 7;
/** A run each half minute. */
const RUNS_PER_DAY = 2880;
const RUNS_PER_HOUR = 120;

/** A history with an entry in each of these days, counted from now. */
async function start(days: readonly number[], entriesPerDay = 1): Promise<MemoryStore> {
  const store = new MemoryStore();
  for (const day of days) await release(store, day, entriesPerDay);
  return store;
}

async function release(store: MemoryStore, day: number, entries = 1): Promise<void> {
  const address = hostPrefix(parseAddress('10.0.0.1') ?? { family: 4, value: 0n });
  for (let index = 0; index < entries; index++) {
    const releasedAtMs = dayStartMs(TODAY + day) + index;
    const entry = {
      ...{ address, block: prefix('10.0.0.0/26'), handleId: 'net.c1', owner: {}, allocatedAtMs: undefined },
      ...{ releasedAtMs, sequenceNumber: BigInt(releasedAtMs) },
    };
    const puts = [{ key: keys.historyEntry(entry), value: serialize(encodeHistoryEntry(entry)) }];
    await store.commit({ comparisons: [], puts, deletes: [] }, forever);
  }
}

interface ExpirySetup {
  readonly aheadDays?: number;
  readonly keptDays?: number;
  readonly maxRemovedCount?: number;
  readonly isNew?: boolean;
  readonly segments?: SegmentedHistory;
}

/** Expiry on a replica that has run for nearly an hour, unless it is new. */
function expiryOn(
  store: MemoryStore,
  { aheadDays = 0, keptDays = KEPT_DAYS, maxRemovedCount = 10_000, isNew = false, segments }: ExpirySetup = {},
) {
  const removed: number[] = [];
  let runsBefore = isNew ? 0 : RUNS_PER_HOUR - 1;
  const clock = { ...instantClock, nowMs: () => NOW_MS + dayStartMs(aheadDays) };
  const events = {
    historyExpired: (_: Date, entries: number) => void removed.push(entries),
  };
  const log = new HistoryLog(store, keys, { maxRemovedCount, segments });
  const expiry = new HistoryExpiry({ log, retentionHours: 24 * keptDays, events, clock });
  const run = async (runs: number) => {
    for (let index = 0; index < runsBefore + runs; index++) await expiry.run(forever);
    runsBefore = 0;
  };
  return { run, removed, log };
}

async function daysIn(store: MemoryStore): Promise<number[]> {
  const { records } = await store.list(keys.history, forever);
  const days = records.map(({ key }) => Number(key.slice(keys.history.length).split('/')[0]) - TODAY);
  return [...new Set(days)];
}

test('removes entries past their retention, the oldest first, a day in 720 runs', async () => {
  const store = await start([-40, -10, -9, -8, -7, -6, -1, 0], 250);
  const { run, removed } = expiryOn(store);
  await run(1);
  expect(await daysIn(store)).toEqual([-10, -9, -8, -7, -6, -1, 0]);
  await run(719);
  expect(removed).toEqual([250]);
  await run(1);
  expect(await daysIn(store)).toEqual([-9, -8, -7, -6, -1, 0]);
  await run(RUNS_PER_DAY);
  expect(await daysIn(store)).toEqual([-7, -6, -1, 0]);
  expect(removed).toEqual([250, 250, 250, 250]);
});

test('keeps pace with the expiring days, and removes no more than four in a day', async () => {
  const store = await start(Array.from({ length: 50 }, (_, index) => -100 + index).concat(0));
  const { run } = expiryOn(store);
  await run(RUNS_PER_DAY);
  expect(await daysIn(store)).toHaveLength(51 - 4);
});

test('of a large day continues in the next run, without a pause', async () => {
  const store = await start([-20, -19, 0], 250);
  const { run, removed } = expiryOn(store, { maxRemovedCount: 200 });
  await run(1);
  expect(await daysIn(store)).toEqual([-20, -19, 0]);
  await run(1);
  expect(await daysIn(store)).toEqual([-19, 0]);
  await run(1);
  expect(removed).toEqual([200, 50]);
});

test('of several replicas at once is harmless', async () => {
  const store = await start([-40, -30, -20, -5, 0], 150);
  const replicas = [1, 2, 3].map(() => expiryOn(store));
  await Promise.all(replicas.map(({ run }) => run(1)));
  await Promise.all(replicas.map(({ run }) => run(RUNS_PER_DAY)));
  expect(await daysIn(store)).toEqual([-5, 0]);
});

test('by a clock that is years ahead removes nothing newer than the newest entry less the retention', async () => {
  const days = Array.from({ length: KEPT_DAYS }, (_, index) => index - KEPT_DAYS + 1);
  const store = await start(days);
  await expiryOn(store, { aheadDays: 20_000 }).run(2 * RUNS_PER_DAY);
  expect(await daysIn(store)).toEqual(days);
});

test('by a clock that is years ahead, with its own entries, removes four days of the history in a day', async () => {
  const days = Array.from({ length: KEPT_DAYS }, (_, index) => index - KEPT_DAYS + 1);
  const store = await start([...days, 20_000]);
  await expiryOn(store, { aheadDays: 20_000 }).run(RUNS_PER_DAY);
  expect(await daysIn(store)).toEqual([...days.slice(4), 20_000]);
});

test('by a clock that is behind removes too little', async () => {
  const store = await start([-34, -20, 0]);
  await expiryOn(store, { aheadDays: -30 }).run(RUNS_PER_DAY);
  expect(await daysIn(store)).toEqual([-34, -20, 0]);
});

test('removes everything, at its pace, when the retention is zero', async () => {
  const store = await start([-3, -2, -1, 0, 5]);
  await expiryOn(store, { keptDays: 0 }).run(2 * RUNS_PER_DAY);
  expect(await daysIn(store)).toEqual([]);
});

test('by replicas that restart repeatedly removes nothing', async () => {
  const store = await start([-40, 0]);
  for (let started = 0; started < 5; started++) await expiryOn(store, { isNew: true }).run(RUNS_PER_HOUR - 1);
  expect(await daysIn(store)).toEqual([-40, 0]);
});

test('records the start of the complete history, also after a longer retention or a disabled history', async () => {
  const store = await start([-40, -10, -9, -1, 0, 5]);
  const keptFrom = async () => dayOf(await new HistoryLog(store, keys).keptFromMs(forever)) - TODAY;
  expect(await keptFrom()).toBe(-TODAY);
  const { run, log } = expiryOn(store);
  await run(1);
  expect(await keptFrom()).toBe(-39);
  await run(RUNS_PER_DAY);
  expect(await keptFrom()).toBe(-8);
  await log.recordKeptFrom(TODAY - 20, forever);
  expect(await keptFrom()).toBe(-8);
  await expiryOn(store, { keptDays: 0, isNew: true }).run(1);
  expect(await daysIn(store)).toEqual([-1, 0, 5]);
  expect(await keptFrom()).toBe(1);
  await expiryOn(store, { keptDays: 0 }).run(RUNS_PER_DAY);
  expect(await keptFrom()).toBe(1);
});

test('records the later day when two replicas remove different days concurrently', async () => {
  const store = await start([]);
  const log = new HistoryLog(store, keys);
  await Promise.all([7, 9, 8].map((day) => log.recordKeptFrom(day, forever)));
  expect(await log.keptFromMs(forever)).toBe(dayStartMs(9));
});

test('of segments is left to the datastore; a day without them is recorded', async () => {
  const store = await start([-40]);
  const retentions: number[] = [];
  const segments = { isKept: true, removeOld: (retentionMs: number) => Promise.resolve(retentions.push(retentionMs)) };
  const { run, log } = expiryOn(store, { segments, isNew: true });
  await run(2);
  expect(retentions).toEqual(Array(2).fill(KEPT_DAYS * dayStartMs(1)));
  expect([await daysIn(store), await log.keptFromMs(forever)]).toEqual([[-40], 0]);
  segments.isKept = false;
  await run(1);
  expect(await log.keptFromMs(forever)).toBe(dayStartMs(TODAY + 1));
});

test('of an empty history does nothing', async () => {
  const store = await start([]);
  await expiryOn(store).run(RUNS_PER_DAY);
  expect(store.toString()).toBe(new MemoryStore().toString());
});

test('leaves everything that is not history', async () => {
  const store = await start([-40]);
  const other = [keys.pool('p'), `${keys.releases}net.c1`].map((key) => ({ key, value: Buffer.from('{}') }));
  await store.commit({ comparisons: [], puts: other, deletes: [] }, forever);
  await expiryOn(store, { keptDays: 0 }).run(RUNS_PER_DAY);
  expect((await store.list('/', forever)).records.map(({ key }) => key).sort()).toEqual(
    [...other.map(({ key }) => key), `${keys.historyBegins}${historyDay(TODAY + 1)}`].sort(),
  );
});

import { parseAddress } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import { NOW_MS, prefix } from '../allocator/records.fixture.js';
import { HistoryLog, HOUR_MS } from '../store/history-log.js';
import { MemoryStore } from '../store/memory/memory-store.js';
import { encodeHistoryEntry } from '../store/record/history.js';
import { serialize } from '../store/record/record.js';
import { forever, instantClock, keys } from '../store/store.fixture.js';
import { HistoryExpiry } from './history-expiry.js';
import { hourOf } from './history.js';

const NOW_HOUR = hourOf(NOW_MS);
const KEPT_HOURS = 168;
/** A run each half minute. */
const RUNS_PER_HOUR = 120;

/** A history with an entry in each of these hours, counted from now. */
async function start(hours: readonly number[], entriesPerHour = 1): Promise<MemoryStore> {
  const store = new MemoryStore();
  for (const hour of hours) await release(store, hour, entriesPerHour);
  return store;
}

async function release(store: MemoryStore, hour: number, entries = 1): Promise<void> {
  const address = hostPrefix(parseAddress('10.0.0.1') ?? { family: 4, value: 0n });
  for (let index = 0; index < entries; index++) {
    const releasedAtMs = (NOW_HOUR + hour) * HOUR_MS + index;
    const entry = {
      ...{ address, block: prefix('10.0.0.0/26'), handleId: 'net.c1', owner: {}, allocatedAtMs: undefined },
      ...{ releasedAtMs, sequenceNumber: BigInt(releasedAtMs) },
    };
    const puts = [{ key: keys.historyEntry(entry), value: serialize(encodeHistoryEntry(entry)) }];
    await store.commit({ comparisons: [], puts, deletes: [] }, forever);
  }
}

function expiryOn(store: MemoryStore, { aheadHours = 0, keptHoursCount = KEPT_HOURS } = {}) {
  const removed: number[] = [];
  const clock = { ...instantClock, nowMs: () => NOW_MS + aheadHours * HOUR_MS };
  const events = { historyExpired: (_: Date, entries: number) => void removed.push(entries) };
  const expiry = new HistoryExpiry({ log: new HistoryLog(store, keys), keptHoursCount, events, clock });
  const run = async (runs: number) => {
    for (let index = 0; index < runs; index++) await expiry.run(forever);
  };
  return { run, removed };
}

async function hoursIn(store: MemoryStore): Promise<number[]> {
  const { records } = await store.list(keys.history, forever);
  const hours = records.map(({ key }) => Number(key.slice(keys.history.length).split('/')[0]) - NOW_HOUR);
  return [...new Set(hours)];
}

test('removes what is older than it is kept, the oldest first, an hour in thirty runs', async () => {
  const store = await start([-400, -170, -169, -168, -167, -1, 0], 250);
  const { run, removed } = expiryOn(store);
  await run(1);
  expect(await hoursIn(store)).toEqual([-170, -169, -168, -167, -1, 0]);
  await run(29);
  expect(removed).toEqual([250]);
  await run(1);
  expect(await hoursIn(store)).toEqual([-169, -168, -167, -1, 0]);
  await run(RUNS_PER_HOUR);
  expect(await hoursIn(store)).toEqual([-168, -167, -1, 0]);
  expect(removed).toEqual([250, 250, 250]);
});

test('keeps pace with the hours that fall due, and takes no more than four in an hour', async () => {
  const store = await start(Array.from({ length: 50 }, (_, index) => -300 + index).concat(0));
  const { run } = expiryOn(store);
  await run(RUNS_PER_HOUR);
  expect(await hoursIn(store)).toHaveLength(51 - 4);
});

test('of several replicas at once is harmless', async () => {
  const store = await start([-400, -300, -200, -100, 0], 150);
  const replicas = [1, 2, 3].map(() => expiryOn(store));
  await Promise.all(replicas.map(({ run }) => run(1)));
  await Promise.all(replicas.map(({ run }) => run(RUNS_PER_HOUR)));
  expect(await hoursIn(store)).toEqual([-100, 0]);
});

test('by a clock that is years ahead takes nothing newer than the newest entry less the time to keep', async () => {
  const hours = Array.from({ length: KEPT_HOURS }, (_, index) => index - KEPT_HOURS + 1);
  const store = await start(hours);
  await expiryOn(store, { aheadHours: 20_000 }).run(2 * RUNS_PER_HOUR);
  expect(await hoursIn(store)).toEqual(hours);
});

test('by a clock that is years ahead, whose own releases are entries, takes four hours of the history in an hour', async () => {
  const hours = Array.from({ length: KEPT_HOURS }, (_, index) => index - KEPT_HOURS + 1);
  const store = await start([...hours, 20_000]);
  await expiryOn(store, { aheadHours: 20_000 }).run(RUNS_PER_HOUR);
  expect(await hoursIn(store)).toEqual([...hours.slice(4), 20_000]);
});

test('by a clock that is behind takes too little', async () => {
  const store = await start([-400, -200, 0]);
  await expiryOn(store, { aheadHours: -300 }).run(RUNS_PER_HOUR);
  expect(await hoursIn(store)).toEqual([-400, -200, 0]);
});

test('takes everything, at its pace, where none is kept any more', async () => {
  const store = await start([-3, -2, -1, 0, 5]);
  await expiryOn(store, { keptHoursCount: 0 }).run(2 * RUNS_PER_HOUR);
  expect(await hoursIn(store)).toEqual([]);
});

test('of an empty history does nothing', async () => {
  const store = await start([]);
  await expiryOn(store).run(RUNS_PER_HOUR);
  expect(store.toString()).toBe(new MemoryStore().toString());
});

test('leaves everything that is not history', async () => {
  const store = await start([-400]);
  const other = [keys.pool('p'), `${keys.releases}net.c1`].map((key) => ({ key, value: Buffer.from('{}') }));
  await store.commit({ comparisons: [], puts: other, deletes: [] }, forever);
  await expiryOn(store, { keptHoursCount: 0 }).run(RUNS_PER_HOUR);
  expect((await store.list('/', forever)).records.map(({ key }) => key).sort()).toEqual(
    other.map(({ key }) => key).sort(),
  );
});

import { Writable } from 'node:stream';

import { createLogger } from '@podwire/shared/runtime/log';
import { expect, test } from 'vitest';

import { Events } from '../engine/events.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, instantClock, keys, startReplica } from '../engine/testing/stores.js';
import { encodeRecord, serialize } from '../records/json/registry.js';
import type { RecordValue } from '../records/view.js';
import { affinity, NOW_MS } from '../testing/records.js';
import { Audits } from './audit-operations.js';

const GARBAGE: readonly RecordValue[] = [
  { kind: 'handle', value: { id: 'net.a', blocks: new Map([['10.0.0.0/26', 1]]) } },
  { kind: 'handle', value: { id: 'net.b', blocks: new Map() } },
  { kind: 'affinity', value: affinity('10.0.0.0/26', 'n1', 'pending') },
];

async function start() {
  const store = new MemoryStore();
  const puts = GARBAGE.map((record) => ({ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }));
  await store.commit({ comparisons: [], puts, deletes: [] }, forever);
  const { updater } = await startReplica(store);
  const clock = { ...instantClock, now: NOW_MS, nowMs: () => clock.now, monotonicMs: () => clock.now };
  const lines: string[] = [];
  const write = (chunk: Buffer, _: unknown, done: () => void): void => {
    lines.push(chunk.toString());
    done();
  };
  const log = createLogger({ service: 'test', level: 'info', destination: new Writable({ write }) });
  const audits = new Audits({
    updates: updater,
    events: new Events(log),
    clock,
    newUid: () => 'uid',
    unknownNodes: 'register',
  });
  const left = async () => (await store.list('/calico/', forever)).records.length;
  return { audits, clock, left, lines };
}

test('garbage is removed once it was seen a minute before, and reported', async () => {
  const { audits, clock, left, lines } = await start();
  expect((await audits.collectGarbage(10, forever)).results).toEqual([]);
  clock.now += 59_000;
  expect((await audits.collectGarbage(10, forever)).results).toEqual([]);
  expect(await left()).toBe(3);
  clock.now += 1000;
  const { results, more } = await audits.collectGarbage(10, forever);
  expect(results.map(({ result }) => result.state)).toEqual(['repaired', 'repaired', 'repaired']);
  expect([more, await left(), lines.length]).toEqual([false, 0, 3]);
});

test('a run respects its limit, and reports that there is more', async () => {
  const { audits, clock, left } = await start();
  await audits.collectGarbage(2, forever);
  clock.now += 60_000;
  expect(await audits.collectGarbage(2, forever)).toMatchObject({ more: true });
  expect(await left()).toBe(1);
  expect(await audits.collectGarbage(2, forever)).toMatchObject({ more: false });
  expect(await left()).toBe(0);
});

test('a dry run changes nothing and reports no event', async () => {
  const { audits, left, lines } = await start();
  const order = { kinds: [], dryRun: true, releases: true, graceMs: 0, limit: 10 };
  const { results } = await audits.repair(order, forever);
  expect(results.map(({ result }) => result.state)).toEqual(['possible', 'possible', 'possible']);
  expect([await left(), lines]).toEqual([3, []]);
});

test('a caller that cancels ends the audit', async () => {
  const { audits } = await start();
  const query = { after: '', limit: 10, kinds: [], information: false, nodesLimit: 0 };
  await expect(audits.audit(query, AbortSignal.abort())).rejects.toMatchObject({ code: 'CANCELLED' });
});

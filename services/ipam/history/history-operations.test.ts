import { Writable } from 'node:stream';

import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';
import { createLogger } from '@podwire/shared/runtime/log';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { Events } from '../engine/events.js';
import { MemoryStore, type Operation } from '../engine/testing/memory-store.js';
import { forever, instantClock, keys, startReplica } from '../engine/testing/stores.js';
import { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import type { HistoryEntry } from '../records/history.js';
import { encodeHistoryEntry } from '../records/json/history.js';
import { dayOf, dayStartMs } from '../records/json/keys.js';
import { serialize } from '../records/json/registry.js';
import { attachment, NOW_MS, prefix, request } from '../testing/records.js';
import { HistoryLog } from './history-log.js';
import { HOUR_MS } from './history-operations.js';
import type { HistoryPosition, Tenure, TenureSubject } from './tenures.js';

const KEPT_HOURS = 168;
const DAY_MS = 24 * HOUR_MS;
const EVER = { fromMs: 0, untilMs: Number.MAX_SAFE_INTEGER };

function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} is no address`);
  return parsed;
}

const ofAddress = (text: string): TenureSubject => ({ kind: 'address', address: address(text) });

async function start(retentionHours = KEPT_HOURS) {
  const scans: string[] = [];
  const before = (operation: Operation) => {
    if (operation === 'scan') scans.push(operation);
    return Promise.resolve();
  };
  const store = new MemoryStore({ before });
  const { updater } = await startReplica(store, { keepsHistory: retentionHours > 0 });
  const time = { nowMs: NOW_MS };
  const clock = { ...instantClock, nowMs: () => time.nowMs };
  let uids = 0;
  const ipam = new Ipam({
    updates: updater,
    events: new Events(
      createLogger({
        service: 'test',
        level: 'fatal',
        destination: new Writable({ write: (_chunk, _encoding, done) => done() }),
      }),
    ),
    clock,
    newUid: () => `uid-${uids++}`,
    history: { log: new HistoryLog(store, keys), retentionHours },
    unknownNodes: 'register',
  });
  return { store, ipam, time, scans };
}

type Started = Awaited<ReturnType<typeof start>>;

async function withPool(cidr: string, retentionHours = KEPT_HOURS): Promise<Started> {
  const started = await start(retentionHours);
  const checked = checkPool({ name: 'p', cidr, blockSizeBits: cidr.endsWith('/32') ? 32 : 0, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await started.ipam.pools.create(checked.spec, forever);
  return started;
}

/** Every page's tenures, one after another. */
async function allOf({ ipam }: Started, subject: TenureSubject, rest: { span?: typeof EVER; limit?: number } = {}) {
  const { span = EVER, limit = 100 } = rest;
  const tenures: Tenure[] = [];
  for (let after: HistoryPosition | undefined; ;) {
    const page = await ipam.history.query({ subject, span, limit, after }, forever);
    expect(page.tenures.length).toBeLessThanOrEqual(limit);
    tenures.push(...page.tenures);
    if (!page.next) return tenures;
    after = page.next;
  }
}

function entry(text: string, releasedAtMs: number, rest: Partial<HistoryEntry> = {}): HistoryEntry {
  return {
    address: hostPrefix(address(text)),
    block: prefix('10.0.0.0/26'),
    handleId: 'net.c1',
    owner: { node: 'n1', namespace: 'default', pod: 'web' },
    allocatedAtMs: releasedAtMs - 1000,
    releasedAtMs,
    sequenceNumber: BigInt(releasedAtMs),
    ...rest,
  };
}

async function write(store: MemoryStore, entries: readonly HistoryEntry[]): Promise<void> {
  const puts = entries.map((each) => ({ key: keys.historyEntry(each), value: serialize(encodeHistoryEntry(each)) }));
  for (let start = 0; start < puts.length; start += 100)
    await store.commit({ comparisons: [], puts: puts.slice(start, start + 100), deletes: [] }, forever);
}

describe('the holders of an address', () => {
  test('are listed with all tenures, newest first, with handle, attributes and times', async () => {
    const started = await withPool('10.0.0.0/32');
    const { ipam, time } = started;
    for (const id of ['c1', 'c2', 'c3']) {
      await ipam.addresses.allocate(request(id), forever);
      time.nowMs += HOUR_MS;
      if (id !== 'c3') await ipam.addresses.release(attachment(id), forever);
    }
    const tenures = await allOf(started, ofAddress('10.0.0.0'));
    expect(tenures.map(({ handleId, allocatedAtMs, releasedAtMs }) => [handleId, allocatedAtMs, releasedAtMs])).toEqual(
      [
        ['net.c3', NOW_MS + 2 * HOUR_MS, undefined],
        ['net.c2', NOW_MS + HOUR_MS, NOW_MS + 2 * HOUR_MS],
        ['net.c1', NOW_MS, NOW_MS + HOUR_MS],
      ],
    );
    expect(tenures[2]).toMatchObject({ owner: { node: 'n1', namespace: 'default', pod: 'pod-c1', interface: 'eth0' } });
  });

  test('are listed by handle and by pod', async () => {
    const started = await withPool('10.0.0.0/26');
    const { ipam, time } = started;
    const pod = { namespace: 'shop', name: 'web', uid: '' };
    await ipam.addresses.allocate(request('old', { pod }), forever);
    await ipam.addresses.allocate(request('new', { pod }), forever);
    await ipam.addresses.allocate(request('other'), forever);
    time.nowMs += 5000;
    for (const id of ['old', 'other']) await ipam.addresses.release(attachment(id), forever);
    const handles = async (subject: TenureSubject) => (await allOf(started, subject)).map(({ handleId }) => handleId);
    expect(await handles({ kind: 'pod', pod })).toEqual(['net.new', 'net.old']);
    expect(await handles({ kind: 'handle', handleId: 'net.old' })).toEqual(['net.old']);
    expect(await handles({ kind: 'handle', handleId: 'net.new' })).toEqual(['net.new']);
    expect(await handles({ kind: 'pod', pod: { namespace: 'default', name: 'web' } })).toEqual([]);
  });

  test('are limited to the requested span', async () => {
    const started = await withPool('10.0.0.0/26');
    const releases = [1, 2, 3, 4].map((hours) => NOW_MS - hours * HOUR_MS);
    await write(
      started.store,
      releases.map((atMs) => entry('10.0.0.1', atMs)),
    );
    const within = async (fromMs: number, untilMs: number) =>
      (await allOf(started, ofAddress('10.0.0.1'), { span: { fromMs, untilMs } })).map(
        ({ releasedAtMs = 0 }) => (NOW_MS - releasedAtMs) / HOUR_MS,
      );
    expect(await within(0, NOW_MS)).toEqual([1, 2, 3, 4]);
    expect(await within(releases[2]!, NOW_MS)).toEqual([1, 2]);
    expect(await within(releases[2]! - 1, releases[1]! - 1000)).toEqual([3]);
    expect(await within(releases[2]! - 1, releases[1]! - 999)).toEqual([2, 3]);
  });

  test('include a holder that releases during the query', async () => {
    const started = await withPool('10.0.0.0/32');
    const { ipam, store, time } = started;
    await ipam.addresses.allocate(request('c1'), forever);
    time.nowMs += 1000;
    const scan = store.scan.bind(store);
    let isReleased = false;
    store.scan = async (...args: Parameters<MemoryStore['scan']>) => {
      if (!isReleased) {
        isReleased = true;
        await ipam.addresses.release(attachment('c1'), forever);
      }
      return scan(...args);
    };
    const tenures = await allOf(started, ofAddress('10.0.0.0'));
    expect(isReleased).toBe(true);
    expect(tenures.map(({ handleId, releasedAtMs }) => [handleId, releasedAtMs])).toEqual([['net.c1', NOW_MS + 1000]]);
  });

  test('leave out unreadable entries and return the rest', async () => {
    const started = await withPool('10.0.0.0/26');
    await write(started.store, [entry('10.0.0.1', NOW_MS - 2000), entry('10.0.0.1', NOW_MS - 1000)]);
    for (const text of ['{', '[]', '{"address":"10.0.0.1"}', '{"address":"10.0.0.1","block":"x","releasedAt":"y"}']) {
      const key = `${keys.historyEntry(entry('10.0.0.1', NOW_MS - 2000))}${text.length}`;
      const puts = [{ key, value: Buffer.from(text) }];
      await started.store.commit({ comparisons: [], puts, deletes: [] }, forever);
    }
    expect(await allOf(started, ofAddress('10.0.0.1'))).toHaveLength(2);
    expect(await allOf(started, { kind: 'handle', handleId: 'net.c1' })).toHaveLength(2);
  });

  test('are refused where no history is kept, and then none is written', async () => {
    const started = await withPool('10.0.0.0/26', 0);
    const { ipam, store } = started;
    await ipam.addresses.allocate(request('c1'), forever);
    await ipam.addresses.release(attachment('c1'), forever);
    expect((await store.list(keys.history, forever)).records).toEqual([]);
    await expect(allOf(started, ofAddress('10.0.0.1'))).rejects.toMatchObject({ code: 'HISTORY_NOT_KEPT' });
    await expect(ipam.history.at(address('10.0.0.1'), 0, forever)).rejects.toMatchObject({ code: 'HISTORY_NOT_KEPT' });
  });
});

describe('pages', () => {
  const releasedAt = fc.integer({ min: NOW_MS - 12 * DAY_MS, max: NOW_MS + 3 * DAY_MS });
  const held = fc.record({ host: fc.integer({ min: 0, max: 3 }), releasedAtMs: releasedAt, ofWeb: fc.boolean() });
  const histories = fc.uniqueArray(held, { maxLength: 60, selector: ({ releasedAtMs }) => releasedAtMs });
  const subjects = fc.constantFrom<TenureSubject>(
    ofAddress('10.0.0.1'),
    { kind: 'handle', handleId: 'net.c2' },
    { kind: 'pod', pod: { namespace: 'default', name: 'web' } },
  );

  test('property: of any size hold everything once, an address’s newest first', async () => {
    await fc.assert(
      fc.asyncProperty(histories, subjects, fc.integer({ min: 1, max: 7 }), async (history, subject, limit) => {
        const started = await start();
        const entries = history.map(({ host, releasedAtMs, ofWeb }) =>
          entry(`10.0.0.${host}`, releasedAtMs, {
            handleId: `net.c${host}`,
            owner: ofWeb ? { namespace: 'default', pod: 'web' } : {},
          }),
        );
        await write(started.store, entries);
        const isAsked = ({ address: each, handleId, owner }: HistoryEntry) =>
          subject.kind === 'address'
            ? formatAddress(each) === '10.0.0.1'
            : subject.kind === 'handle'
              ? handleId === 'net.c2'
              : owner.pod === 'web';
        const expected = entries.filter(isAsked).map(({ releasedAtMs }) => releasedAtMs);
        const told = (await allOf(started, subject, { limit })).map(({ releasedAtMs = 0 }) => releasedAtMs);
        const newestFirst = (a: number, b: number) => b - a;
        if (subject.kind !== 'address') told.sort(newestFirst);
        expect(told).toEqual(expected.sort(newestFirst));
      }),
      { numRuns: 60, verbose: fc.VerbosityLevel.Verbose },
    );
  });

  test('of current holders end at their limit, and continue with the past', async () => {
    const started = await withPool('10.0.0.0/26');
    const { ipam } = started;
    const pod = { namespace: 'shop', name: 'web', uid: '' };
    for (const id of ['a', 'b', 'c', 'd', 'e']) await ipam.addresses.allocate(request(id, { pod }), forever);
    for (const id of ['a', 'c']) await ipam.addresses.release(attachment(id), forever);
    for (const limit of [1, 2, 3, 4, 5]) {
      const tenures = await allOf(started, { kind: 'pod', pod }, { limit });
      const told = tenures.map(({ handleId, releasedAtMs }) => `${handleId} ${releasedAtMs === undefined}`);
      expect(told.slice(0, 3)).toEqual(['net.b true', 'net.d true', 'net.e true']);
      expect(told.slice(3).sort()).toEqual(['net.a false', 'net.c false']);
    }
  });

  test('of an address read each kept day once, and no more than 512', async () => {
    const { ipam, scans } = await start(87_600);
    scans.length = 0;
    const page = await ipam.history.query(
      { subject: ofAddress('10.0.0.1'), span: EVER, limit: 100, after: undefined },
      forever,
    );
    expect(page).toMatchObject({ tenures: [], next: { kind: 'day' } });
    expect(scans.length).toBeLessThanOrEqual(512 + 2);
  });

  test('of a week take ten reads at most, with any number of releases, and one moment eight', async () => {
    const { ipam, scans, store } = await start();
    const releases = Array.from({ length: KEPT_HOURS }, (_, hour) => NOW_MS - hour * HOUR_MS);
    for (const text of ['10.0.0.1', '10.0.0.2'])
      await write(
        store,
        releases.map((atMs) => entry(text, atMs)),
      );
    scans.length = 0;
    const query = { subject: ofAddress('10.0.0.1'), span: EVER, limit: KEPT_HOURS, after: undefined };
    const { tenures } = await ipam.history.query(query, forever);
    expect(tenures).toHaveLength(KEPT_HOURS);
    expect(scans.length).toBeLessThanOrEqual(10);
    scans.length = 0;
    const { tenure } = await ipam.history.at(address('10.0.0.1'), NOW_MS - (KEPT_HOURS - 1) * HOUR_MS - 500, forever);
    expect(tenure?.releasedAtMs).toBe(NOW_MS - (KEPT_HOURS - 1) * HOUR_MS);
    expect(scans.length).toBeLessThanOrEqual(8);
  });
});

describe('the holder of an address at a moment', () => {
  test('property: is the one that a list of all tenures names', async () => {
    const steps = fc.array(
      fc.record({ gapMs: fc.integer({ min: 0, max: 5 * HOUR_MS }), id: fc.constantFrom('c1', 'c2') }),
      {
        maxLength: 10,
      },
    );
    await fc.assert(
      fc.asyncProperty(steps, fc.boolean(), fc.double({ min: 0, max: 1, noNaN: true }), async (gaps, isHeld, part) => {
        const { ipam, time } = await withPool('10.0.0.0/32');
        const tenures: { id: string; fromMs: number; untilMs: number }[] = [];
        for (const [index, { gapMs, id }] of gaps.entries()) {
          time.nowMs += gapMs;
          const fromMs = time.nowMs;
          await ipam.addresses.allocate(request(id), forever);
          time.nowMs += gapMs + 1;
          const staysHeld = isHeld && index === gaps.length - 1;
          if (!staysHeld) await ipam.addresses.release(attachment(id), forever);
          tenures.push({ id, fromMs, untilMs: staysHeld ? Number.POSITIVE_INFINITY : time.nowMs });
        }
        const atMs = Math.round(NOW_MS + (time.nowMs - NOW_MS) * part);
        const expected = tenures.find(({ fromMs, untilMs }) => fromMs <= atMs && atMs < untilMs);
        const { tenure, isCovered } = await ipam.history.at(address('10.0.0.0'), atMs, forever);
        expect(tenure?.handleId).toBe(expected && `net.${expected.id}`);
        expect(isCovered).toBe(true);
      }),
      { numRuns: 60, verbose: fc.VerbosityLevel.Verbose },
    );
  });

  test('is unknown for removed days, even if the retention is longer since', async () => {
    const { ipam, store } = await withPool('10.0.0.0/26');
    const day = dayOf(NOW_MS) - 1;
    await new HistoryLog(store, keys).recordKeptFrom(day, forever);
    const at = (atMs: number) => ipam.history.at(address('10.0.0.1'), atMs, forever);
    expect(await at(dayStartMs(day) - 1)).toEqual({ tenure: undefined, isCovered: false });
    expect(await at(dayStartMs(day))).toEqual({ tenure: undefined, isCovered: true });
  });

  test('is unknown beyond the retention, and for the future', async () => {
    const { ipam } = await withPool('10.0.0.0/26');
    const old = await ipam.history.at(address('10.0.0.1'), NOW_MS - (KEPT_HOURS + 1) * HOUR_MS, forever);
    expect(old).toEqual({ tenure: undefined, isCovered: false });
    await expect(ipam.history.at(address('10.0.0.1'), NOW_MS + 1, forever)).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
    });
  });
});

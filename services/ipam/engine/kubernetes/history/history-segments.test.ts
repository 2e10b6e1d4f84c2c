import { randomBytes } from 'node:crypto';

import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { KubernetesApi } from '../../../api-server/api.js';
import { dayStartMs } from '../../../records/json/keys.js';
import { ObjectServer } from '../../../testing/object-server.js';
import { forever, keys } from '../../testing/stores.js';
import { HistorySegments } from './history-segments.js';
import { packAll, segmentObject, type HistoryRecord, type TimedRecord } from './segment-form.js';

const SEGMENTS = '/apis/podwire.dev/v1alpha1/historysegments';
const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;

let server: ObjectServer;
let api: KubernetesApi;
let clock: ManualClock;
/** Reports so far. */
let reported: string[];
let opened: HistorySegments[];

beforeEach(async () => {
  server = await ObjectServer.start();
  api = new KubernetesApi(server.options);
  clock = new ManualClock();
  reported = [];
  opened = [];
});

afterEach(async () => {
  for (const segments of opened) await segments.close(AbortSignal.abort()).catch(() => undefined);
  api.close();
  await server.stop();
});

async function tryOpen(client = api) {
  const started = await HistorySegments.open(
    {
      ...{ api: client, keys, clock, random: Math.random },
      reports: {
        unavailable: ({ message }) => void reported.push(message),
        unreadable: (id, { message }) => void reported.push(`${id}: ${message}`),
        writeFailed: (error) => void reported.push(error instanceof Failure ? error.code : String(error)),
      },
    },
    forever,
  );
  if (started) opened.push(started.segments);
  return started;
}

async function open() {
  const started = await tryOpen();
  if (!started) throw new Error('there are no segments');
  return started;
}

const record = (name: string, bytes = 0): HistoryRecord => ({
  key: `${keys.history}00020687/10.0.0.1/${name}`,
  value: Buffer.from(JSON.stringify({ name, filler: 'x'.repeat(bytes) })),
});

const count = (): number => server.list(SEGMENTS).length;

const posts = (): number => server.requests.filter((line) => line === `POST ${SEGMENTS}`).length;

const namesOf = (records: ReadonlyMap<string, Uint8Array>): string[] =>
  [...records.keys()].map((key) => key.split('/').at(-1) ?? '').sort();

/** Stores a segment as a leader before this one did. */
async function store(name: string, untilMs: number, { sinceMs, bytes = 0 }: { sinceMs?: number; bytes?: number } = {}) {
  const packed = await packAll([record(name, bytes)], keys.history);
  server.put(SEGMENTS, segmentObject(name, { sinceMs, untilMs }, packed));
}

async function remove(segments: HistorySegments, retentionMs: number): Promise<string[]> {
  const removed: string[] = [];
  for await (const each of segments.removeOld(retentionMs, forever))
    removed.push(...each.map((key) => key.split('/').at(-1) ?? ''));
  return removed;
}

describe('records', () => {
  test('of a minute are one object, which the next leader reads', async () => {
    const { segments } = await open();
    segments.append([record('a')]);
    clock.advance(MINUTE_MS - 1);
    segments.append([record('b'), record('c')]);
    expect(posts()).toBe(0);
    clock.advance(1);
    await expect.poll(count).toBe(1);
    clock.advance(HOUR_MS);
    segments.append([record('d')]);
    clock.advance(MINUTE_MS);
    await expect.poll(count).toBe(2);
    expect(posts()).toBe(2);
    expect(server.list(SEGMENTS).map(({ spec }) => Object(spec).entries)).toEqual([3, 1]);
    expect(namesOf((await open()).records)).toEqual(['a', 'b', 'c', 'd']);
  });

  test('of changed objects are written within a second, with the waiting ones', async () => {
    const { segments } = await open();
    const change = { key: keys.changes(0, '0'), value: Buffer.from('{}') };
    segments.append([record('a')]);
    segments.append([change]);
    segments.append([record('b')]);
    clock.advance(1000);
    await expect.poll(count).toBe(1);
    expect((await open()).records.size).toBe(3);
  });

  test('that are many are written at once', async () => {
    const { segments } = await open();
    segments.append(Array.from({ length: 30 }, (_, index) => record(String(index), 100_000)));
    await expect.poll(count).toBe(1);
    expect((await open()).records.size).toBe(30);
  });

  test('wait for the minute when the process is killed, and are written when it ends', async () => {
    const { segments } = await open();
    segments.append([record('a')]);
    expect((await open()).records.size).toBe(0);
    await segments.close(forever);
    expect(namesOf((await open()).records)).toEqual(['a']);
    expect(reported).toEqual([]);
  });

  test('of a page each are read', async () => {
    for (let index = 0; index < 120; index++) await store(`s${index}`, index * MINUTE_MS);
    expect((await open()).records.size).toBe(120);
    expect(server.largestPage).toBe(50);
  });
});

describe('a write', () => {
  test.each(['cut after', 'cut before', 429, 500] as const)(
    'that ends with the fault %s is repeated, with the same name',
    async (fault) => {
      const { segments } = await open();
      segments.append([record('a')]);
      server.injectFault('POST', fault);
      clock.advance(MINUTE_MS);
      await expect.poll(() => reported).toEqual(['UNREACHABLE']);
      segments.append([record('b')]);
      clock.advance(2 * MINUTE_MS);
      await expect.poll(count).toBe(2);
      expect(server.list(SEGMENTS).map(({ spec }) => Object(spec).entries)).toEqual([1, 1]);
      expect(namesOf((await open()).records)).toEqual(['a', 'b']);
    },
  );

  test('is repeated while the process ends, for as long as it may', async () => {
    const { segments } = await open();
    segments.append([record('a')]);
    server.injectFault('POST', 'cut after');
    const closing = segments.close(forever);
    await expect.poll(() => clock.sleeping).toBe(1);
    clock.advance(MINUTE_MS);
    await closing;
    expect(namesOf((await open()).records)).toEqual(['a']);
    const { segments: denied } = await open();
    denied.append([record('b')]);
    for (let index = 0; index < 3; index++) server.injectFault('POST', 403);
    const stop = new AbortController();
    const failing = denied.close(stop.signal);
    await expect.poll(() => clock.sleeping).toBe(1);
    stop.abort();
    await expect(failing).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  });

  test('without the definition, which an operator has deleted, is repeated until it is there again', async () => {
    const { segments } = await open();
    segments.append([record('a')]);
    server.undefinedCollections.add(SEGMENTS);
    clock.advance(MINUTE_MS);
    await expect.poll(() => reported).toEqual(['HISTORY_NOT_KEPT']);
    server.undefinedCollections.clear();
    clock.advance(MINUTE_MS);
    await expect.poll(count).toBe(1);
  });

  test('that the definition refuses is not repeated, and delays no other', async () => {
    const { segments } = await open();
    segments.append([record('a')]);
    server.injectFault('POST', 422);
    clock.advance(MINUTE_MS);
    await expect.poll(() => reported).toEqual(['INVALID_REQUEST']);
    segments.append([record('b')]);
    clock.advance(MINUTE_MS);
    await expect.poll(count).toBe(1);
    expect(namesOf((await open()).records)).toEqual(['b']);
  });
});

describe('old segments', () => {
  test('are removed, the oldest first, two in a run, and the newest one stays', async () => {
    for (let index = 1; index <= 6; index++) await store(`s${index}`, index * MINUTE_MS);
    const { segments } = await open();
    expect(await remove(segments, HOUR_MS)).toEqual([]);
    clock.advance(HOUR_MS);
    // The clock began after 16 minutes.
    expect(await remove(segments, HOUR_MS)).toEqual(['s1', 's2']);
    expect(await remove(segments, HOUR_MS)).toEqual(['s3', 's4']);
    expect(await remove(segments, HOUR_MS)).toEqual(['s5']);
    expect(await remove(segments, HOUR_MS)).toEqual([]);
    expect(namesOf((await open()).records)).toEqual(['s6']);
  });

  test('of a clock that was years ahead do not keep later ones', async () => {
    const yearMs = 365 * 24 * HOUR_MS;
    await store('ahead', clock.nowMs() + yearMs, { sinceMs: clock.nowMs() + yearMs - MINUTE_MS });
    const { segments } = await open();
    for (const name of ['a', 'b']) {
      segments.append([record(name)]);
      clock.advance(MINUTE_MS);
      await expect.poll(count).toBe(name === 'a' ? 2 : 3);
    }
    clock.advance(24 * HOUR_MS);
    expect(await remove(segments, HOUR_MS)).toEqual(['ahead', 'a']);
  });

  test('that another program has deleted are removed too', async () => {
    for (const name of ['s1', 's2']) await store(name, MINUTE_MS);
    const { segments } = await open();
    server.delete(`${SEGMENTS}/s1`);
    clock.advance(HOUR_MS);
    expect(await remove(segments, MINUTE_MS)).toEqual(['s1']);
  });

  test('beyond 32 MiB are removed at once', async () => {
    const data = 'A'.repeat(256 * 1024);
    for (let index = 1; index <= 135; index++) {
      const until = new Date(index * MINUTE_MS).toISOString();
      server.put(SEGMENTS, { metadata: { name: `s${index}` }, spec: { until, entries: 1, data } });
    }
    const { segments } = await open();
    await remove(segments, 24 * HOUR_MS);
    expect(server.list(SEGMENTS).map(({ metadata }) => Object(metadata).name)).toEqual(
      Array.from({ length: 128 }, (_, index) => `s${index + 8}`),
    );
  });

  test('are all removed when no history is kept', async () => {
    for (const name of ['s1', 's2', 's3', 's4']) await store(name, MINUTE_MS);
    const { segments } = await open();
    expect(await remove(segments, 0)).toHaveLength(4);
    expect(count()).toBe(0);
  });

  test('stay when their removal fails, until the next run', async () => {
    for (const name of ['s1', 's2']) await store(name, MINUTE_MS);
    const { segments } = await open();
    clock.advance(HOUR_MS);
    server.injectFault('DELETE', 500);
    await expect(remove(segments, MINUTE_MS)).rejects.toMatchObject({ code: 'UNREACHABLE' });
    expect(await remove(segments, MINUTE_MS)).toEqual(['s1']);
  });
});

describe('the begin of the history', () => {
  const beginMs = async (): Promise<number> => {
    const { beginKey = `${keys.historyBegins}0/0` } = (await open()).segments;
    const [day, rest] = beginKey.slice(keys.historyBegins.length).split('/');
    return dayStartMs(Number(day)) + Number(rest);
  };

  test('is unlimited until a segment is removed, and then the end of the removed one', async () => {
    const { segments } = await open();
    for (const name of ['a', 'b', 'c']) {
      segments.append([record(name)]);
      clock.advance(MINUTE_MS);
      await expect.poll(count).toBe({ a: 1, b: 2, c: 3 }[name]);
    }
    const begun = clock.nowMs();
    expect(segments.beginKey).toBeUndefined();
    expect(await beginMs()).toBe(0);
    clock.advance(HOUR_MS);
    expect(await remove(segments, HOUR_MS)).toEqual(['a', 'b']);
    expect(await beginMs()).toBe(begun - MINUTE_MS);
  });

  test('is after a segment that is missing or unreadable', async () => {
    await store('s1', MINUTE_MS);
    await store('s2', 2 * MINUTE_MS, { sinceMs: MINUTE_MS });
    // The leader before wrote its last segment late.
    await store('s3', 3 * MINUTE_MS, { sinceMs: MINUTE_MS });
    expect(await beginMs()).toBe(0);
    await store('s5', 5 * MINUTE_MS, { sinceMs: 4 * MINUTE_MS });
    expect(await beginMs()).toBe(4 * MINUTE_MS);
    const until = new Date(6 * MINUTE_MS).toISOString();
    server.put(SEGMENTS, { metadata: { name: 's6' }, spec: { until, entries: 1, data: 'no gzip' } });
    expect(await beginMs()).toBe(6 * MINUTE_MS);
  });

  test('continues with the next leader, also if its clock is behind', async () => {
    await store('s1', HOUR_MS);
    const { segments } = await open();
    segments.append([record('a')]);
    await segments.close(forever);
    expect(await beginMs()).toBe(0);
    expect(server.list(SEGMENTS).map(({ spec }) => Object(spec).since)).toEqual([
      undefined,
      '1970-01-01T01:00:00.000Z',
    ]);
  });
});

test('a leader that lost its lease writes its last segment late: no record is there twice, and all are removed in turn', async () => {
  await store('s1', MINUTE_MS);
  const { segments: former } = await open();
  former.append([record('a'), record('both')]);
  const { segments: leader } = await open();
  leader.append([record('b'), record('both')]);
  clock.advance(MINUTE_MS);
  // The former leader was paused until then.
  await expect.poll(count).toBe(3);
  clock.advance(MINUTE_MS);
  former.append([record('c')]);
  await former.close(forever);
  leader.append([record('d')]);
  await leader.close(forever);
  const { segments, records } = await open();
  expect(namesOf(records)).toEqual(['a', 'b', 'both', 'c', 'd', 's1']);
  expect(segments.beginKey).toBeUndefined();
  clock.advance(HOUR_MS);
  segments.append([record('e')]);
  await segments.close(forever);
  const removed = [
    ...(await remove(segments, MINUTE_MS)),
    ...(await remove(segments, MINUTE_MS)),
    ...(await remove(segments, MINUTE_MS)),
  ];
  expect([...new Set(removed)].sort()).toEqual(['a', 'b', 'both', 'c', 'd', 's1']);
  expect(count()).toBe(1);
});

describe('an import', () => {
  /** Incompressible records, one a second. */
  const timed = (names: readonly string[], bytes = 0) =>
    names.map((name, index) => ({
      key: record(name).key,
      value: Buffer.from(randomBytes(bytes).toString('hex')),
      releasedAtMs: index * 1000,
    }));

  const spans = () =>
    server
      .list(SEGMENTS)
      .map(({ spec }) => Object(spec))
      .map(({ since, until, entries }) =>
        [since, until].map((each) => each && Date.parse(each) / 1000).concat(entries),
      );

  const importing = async (records: readonly TimedRecord[], beginMs = 0, dryRun = false) => {
    const { segments } = await open();
    const leftOut = await segments.import({ records, beginMs, dryRun }, forever);
    return { segments, leftOut: leftOut.map(({ key }) => key.split('/').at(-1)) };
  };

  test('is few segments, the newest first, whose times follow each other', async () => {
    const { segments, leftOut } = await importing(timed(['a', 'b', 'c', 'd', 'e', 'f', 'g'], 100_000));
    expect(leftOut).toEqual([]);
    expect(spans()).toEqual([
      [4, 6, 2],
      [2, 4, 2],
      [0, 2, 2],
      [undefined, 0, 1],
    ]);
    segments.append([record('h')]);
    await segments.close(forever);
    expect(spans().at(-1)).toEqual([6, clock.nowMs() / 1000, 1]);
    expect((await open()).segments.beginKey).toBeUndefined();
    expect((await open()).records.size).toBe(8);
  });

  test('of a clock that was ahead ends now', async () => {
    await importing(timed(['a', 'b']).map((each) => ({ ...each, releasedAtMs: each.releasedAtMs + HOUR_MS })));
    expect(spans()).toEqual([[undefined, clock.nowMs() / 1000, 2]]);
  });

  test.each([HOUR_MS, 1e20])('that begins in the future by a clock that was ahead begins now', async (aheadMs) => {
    const { segments } = await importing(timed(['a']), clock.nowMs() + aheadMs);
    expect(segments.beginKey).toBe(keys.historyBegin(clock.nowMs()));
    expect((await open()).segments.beginKey).toBe(keys.historyBegin(clock.nowMs()));
  });

  test('beyond 32 MiB is without its oldest records, after which the history begins', async () => {
    const data = 'A'.repeat(256 * 1024);
    for (let index = 1; index <= 126; index++)
      server.put(SEGMENTS, {
        metadata: { name: `s${index}` },
        spec: { until: new Date(0).toISOString(), entries: 1, data },
      });
    const { segments, leftOut } = await importing(timed(['a', 'b', 'c', 'd', 'e'], 100_000));
    expect(leftOut).toEqual(['a', 'b', 'c']);
    expect(segments.beginKey).toBe(keys.historyBegin(2001));
    expect(count()).toBe(127);
  });

  test.each([
    ['records', timed(['a', 'b'])],
    ['no record', []],
  ])('of %s has the begin of the history, also beside segments of a longer time', async (_, records) => {
    const { segments } = await importing(records, 500);
    expect(segments.beginKey).toBe(keys.historyBegin(500));
    expect((await open()).segments.beginKey).toBe(keys.historyBegin(500));
    await store('older', MINUTE_MS);
    expect((await importing(timed(['c']), MINUTE_MS / 2)).segments.beginKey).toBe(keys.historyBegin(MINUTE_MS / 2));
    const last = await importing([], 2 * MINUTE_MS);
    expect(last.segments.beginKey).toBe(keys.historyBegin(2 * MINUTE_MS));
    expect(spans().at(-1)).toEqual([120, 120, 0]);
    expect((await open()).segments.beginKey).toBe(keys.historyBegin(2 * MINUTE_MS));
    last.segments.append([record('d')]);
    await last.segments.close(forever);
    expect((await open()).segments.beginKey).toBe(keys.historyBegin(2 * MINUTE_MS));
  });

  test('that is checked only writes nothing', async () => {
    expect((await importing(timed(['a']), 500, true)).leftOut).toEqual([]);
    expect(count()).toBe(0);
  });

  test('repeats a request whose answer was lost, and fails when the definition refuses one', async () => {
    server.injectFault('POST', 'cut after');
    const repeated = importing(timed(['a']));
    await expect.poll(() => clock.sleeping).toBe(1);
    clock.advance(MINUTE_MS);
    await repeated;
    expect(count()).toBe(1);
    server.injectFault('POST', 422);
    await expect(importing(timed(['b']))).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
    const { segments } = await open();
    server.undefinedCollections.add(SEGMENTS);
    const history = { records: timed(['b']), beginMs: 0, dryRun: false };
    await expect(segments.import(history, forever)).rejects.toMatchObject({ code: 'HISTORY_NOT_KEPT' });
  });
});

/** An API server whose role for podwire-ipam is of a release without history. */
class RefusingApi extends KubernetesApi {
  override send(): Promise<never> {
    return Promise.reject(new Failure('ACCESS_DENIED', 'apply the role'));
  }
}

describe('an API server', () => {
  test('that refuses the segments keeps no history', async () => {
    expect(await tryOpen(new RefusingApi(server.options))).toBeUndefined();
    expect(reported).toEqual(['apply the role']);
  });

  test('with an unreadable segment gives the rest, and the segment is named', async () => {
    await store('good', MINUTE_MS);
    server.put(SEGMENTS, { metadata: { name: 'bad' }, spec: { until: '1970-01-01T00:02:00Z', data: 'AAAA' } });
    server.put(SEGMENTS, { metadata: { name: 'worse' }, spec: {} });
    const { segments, records } = await open();
    expect(namesOf(records)).toEqual(['good']);
    expect(reported.sort()).toEqual([
      expect.stringContaining('historysegments/bad: historysegments bad cannot be read:'),
      expect.stringMatching(/historysegments worse cannot be read: a field is missing; .*kubectl delete/),
    ]);
    segments.append([record('next')]);
    await segments.close(forever);
    expect(count()).toBe(4);
  });

  test('without the definition keeps no history, and the command is named', async () => {
    server.undefinedCollections.add(SEGMENTS);
    expect(await tryOpen()).toBeUndefined();
    expect(reported).toEqual([expect.stringContaining('helm upgrade --install podwire-crds')]);
  });
});

import { setTimeout as sleep } from 'node:timers/promises';

import type { IWatchResponse } from 'etcd3';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { RevisionCompacted, type RevisionChanges } from '../store.js';
import { commit, HoldingProxy, never, put, EtcdFixture, untilAnswered } from '../testing/etcd-faults.js';
import { RevisionSorter } from './watch.js';

let scene: EtcdFixture;
beforeEach(() => {
  scene = new EtcdFixture();
});
afterEach(() => scene.end());

interface Piece {
  readonly events?: readonly [revision: number, key: string][];
  readonly revision?: number;
  readonly fragment?: boolean;
  readonly created?: boolean;
}

function response({ events = [], revision = 0, fragment = false, created = false }: Piece): IWatchResponse {
  const header = { cluster_id: '1', member_id: '1', revision: String(revision), raft_term: '1' };
  const kv = (modRevision: number, key: string) => ({
    key: Buffer.from(key),
    value: Buffer.from(String(modRevision)),
    create_revision: '1',
    mod_revision: String(modRevision),
    version: '1',
    lease: '0',
  });
  return {
    header,
    watch_id: '0',
    created,
    canceled: false,
    compact_revision: '0',
    cancel_reason: '',
    fragment,
    events: events.map(([at, key]) => ({ type: 'Put', kv: kv(at, key), prev_kv: kv(at, key) })),
  };
}

function shown(items: Iterable<RevisionChanges>): [number, string][] {
  return [...items].map(({ revision, changes }) => [revision, changes.map(({ key }) => key).join('')]);
}

describe('responses are sorted', () => {
  const sort = (position: number, pieces: readonly Piece[]): [number, string][] => {
    const sorter = new RevisionSorter(position);
    return pieces.flatMap((piece) => shown(sorter.take(response(piece))));
  };

  it('into one item per revision', () => {
    const events: [number, string][] = [[2, 'a'], [2, 'b'], [5, 'a']]; // prettier-ignore
    expect(
      sort(1, [
        { created: true, revision: 9 },
        { events, revision: 9 },
      ]),
    ).toEqual([
      [2, 'ab'],
      [5, 'a'],
    ]);
  });

  it('with the parts of a revision put together', () => {
    const pieces: Piece[] = [
      { events: [[2, 'a'], [3, 'b']], fragment: true, revision: 3 }, // prettier-ignore
      { events: [[3, 'c']], fragment: true, revision: 3 },
      { events: [[3, 'd'], [4, 'e']], revision: 4 }, // prettier-ignore
    ];
    expect(sort(1, pieces)).toEqual([
      [2, 'a'],
      [3, 'bcd'],
      [4, 'e'],
    ]);
  });

  it('without changes that were delivered before', () => {
    expect(sort(3, [{ events: [[2, 'a'], [3, 'b'], [4, 'c']] }])).toEqual([[4, 'c']]); // prettier-ignore
  });

  it('with progress where there were no changes, but not from the response that a watch begins with', () => {
    const pieces = [{ created: true, revision: 8 }, { revision: 8 }, { revision: 8 }, { revision: 7 }];
    expect(sort(3, pieces)).toEqual([[8, '']]);
  });

  it('alike, however they are cut into fragments', () => {
    const revisions = fc.array(fc.array(fc.constantFrom('a', 'b', 'c'), { minLength: 1, maxLength: 4 }), {
      minLength: 1,
    });
    fc.assert(
      fc.property(revisions, fc.array(fc.nat(3)), (history, cuts) => {
        const events = history.flatMap((keys, index) => keys.map((key): [number, string] => [index + 1, key]));
        const pieces: Piece[] = [];
        for (let rest = events, turn = 0; rest.length > 0; turn++) {
          const size = 1 + (cuts[turn % cuts.length] ?? rest.length);
          pieces.push({ events: rest.slice(0, size), fragment: size < rest.length });
          rest = rest.slice(size);
        }
        expect(sort(0, pieces)).toEqual(history.map((keys, index) => [index + 1, keys.join('')]));
      }),
    );
  });
});

describe('a watch on a real server', () => {
  it('continues without a gap when its connection is cut repeatedly', async () => {
    const server = await scene.start();
    const writer = await scene.open([server]);
    const [first, port] = await cuttable(server.ports.client);
    let proxy = first;
    const watcher = await scene.open([{ url: proxy.url }]);
    const watching = scene.watch(watcher, '/w/', await writer.revision(never));
    const written: [number, string][] = [];
    for (let number = 0; number < 120; number++) {
      // It is to be connected when it is cut.
      if (number % 20 === 5) await watching.waitForRevision(written.at(-1)![0]);
      if (number % 20 === 10) {
        await proxy.close();
        proxy = await HoldingProxy.start(server.ports.client, port);
      }
      const key = `/w/${number}`;
      written.push([await commit(writer, put(key)), key]);
    }
    await watching.waitForRevision(written.at(-1)![0]);
    await proxy.close();
    expect(watching.seen).toEqual(written);
    expect(scene.events.filter(({ type }) => type === 'endpointLost').length).toBeGreaterThan(3);
  });

  it('delivers large transactions whole, also old ones', async () => {
    const server = await scene.start();
    const store = await scene.open([server]);
    const start = await store.revision(never);
    const large = Array.from({ length: 100 }, (_, index) => ({
      key: `/w/${index}`,
      value: Buffer.alloc(14_000, index),
    }));
    for (let count = 0; count < 8; count++) await store.commit({ comparisons: [], puts: large, deletes: [] }, never);
    const revision = await commit(store, { comparisons: [], puts: [], deletes: large.map(({ key }) => key) });
    const watching = scene.watch(store, '/w/', start);
    await watching.waitForRevision(revision);
    expect(watching.items.map(({ changes }) => changes.length)).toEqual(Array.from({ length: 9 }, () => 100));
    expect(new Set(watching.items.at(-1)!.changes.map(({ type }) => type))).toEqual(new Set(['delete']));
    expect(watching.failures).toEqual([]);
  });

  it('reports revisions without changes under its prefix', async () => {
    const server = await scene.start({ flags: ['--experimental-watch-progress-notify-interval=100ms'] });
    const store = await scene.open([server]);
    const watching = scene.watch(store, '/w/', await store.revision(never));
    const elsewhere = await commit(store, put('/other'));
    await watching.waitForRevision(elsewhere);
    expect(watching.seen).toEqual([]);
    const here = await commit(store, put('/w/1'));
    await watching.waitForRevision(here);
    expect(watching.seen).toEqual([[here, '/w/1']]);
  });

  it('says that changes are no longer kept when they were compacted while it was cut off', async () => {
    const server = await scene.start();
    const store = await scene.open([server]);
    const watching = scene.watch(store, '/w/', await store.revision(never));
    await watching.waitForRevision(await commit(store, put('/w/1')));
    await server.stop();
    await server.restart();
    server.ctl('put', '/w/1', '2');
    server.ctl('put', '/w/1', '3');
    server.compact();
    // The watch may have been taken up before the compaction; then it has seen all.
    const missed = () => watching.failures.some((failure) => failure instanceof RevisionCompacted);
    await expect.poll(() => missed() || watching.seen.length >= 3).toBe(true);
  });

  it.each([
    ['the revision before is kept', 0, true],
    ['the history ends at the very revision it begins with', 1, false],
    ['the history ends behind that', 2, false],
  ])('begins if %s', async (_, ahead, begins) => {
    const server = await scene.start();
    const store = await scene.open([server]);
    const start = await commit(store, put('/w/1'));
    // The next revision is a deletion, of which compaction to that revision leaves no trace.
    await commit(store, { comparisons: [], puts: [], deletes: ['/w/1'] });
    await commit(store, put('/w/2'));
    await commit(store, put('/w/3'));
    server.compact(start + ahead);
    const watching = scene.watch(store, '/w/', start);
    await expect.poll(() => watching.items.length + watching.failures.length).toBeGreaterThan(0);
    if (begins) await watching.waitForRevision(start + 3);
    expect(watching.failures.map((failure) => failure instanceof RevisionCompacted)).toEqual(begins ? [] : [true]);
    expect(watching.seen.map(([, key]) => key)).toEqual(begins ? ['/w/1', '/w/2', '/w/3'] : []);
  });

  it('lets many watch at the same time, and end on their own', async () => {
    const server = await scene.start();
    const store = await scene.open([server]);
    const start = await store.revision(never);
    const all = Array.from({ length: 20 }, (_, index) => scene.watch(store, `/w/${index % 4}/`, start));
    for (const watching of all.slice(10)) await watching.end();
    const revisions: number[] = [];
    for (const part of [0, 1, 2, 3]) revisions.push(await untilAnswered(() => commit(store, put(`/w/${part}/x`))));
    await Promise.all(all.slice(0, 10).map((watching, index) => watching.waitForRevision(revisions[index % 4]!)));
    await sleep(50);
    expect(all.slice(10).every(({ items }) => items.length === 0)).toBe(true);
  });
});

/** A way to a server that can be cut, and the port under which it comes back. */
async function cuttable(target: number): Promise<[HoldingProxy, number]> {
  const proxy = await HoldingProxy.start(target);
  return [proxy, Number(/:(\d+)$/.exec(proxy.url)?.[1])];
}

import { setTimeout as sleep } from 'node:timers/promises';

import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { commit, never, put, EtcdFixture, UNAVAILABLE, untilAnswered } from '../testing/etcd-faults.js';
import { EtcdEndpoint } from './connection.js';

/** Servers that end, stand still, or are cut off, while they are used. */

/** Timeouts short enough to give up a hung server during a test. */
const HASTY = { requestTimeoutMs: 300, dialTimeoutMs: 300 };

let scene: EtcdFixture;
beforeEach(() => {
  scene = new EtcdFixture();
});
afterEach(() => scene.end());

/** A store that gives up soon, which may be before a busy machine has answered it: then it is opened once more. */
const openHastily = (...args: Parameters<EtcdFixture['open']>) => untilAnswered(() => scene.open(...args));

describe('a server that is killed and started again', () => {
  it('loses no acknowledged transaction and halves none, in the middle of many', async () => {
    const server = await scene.start();
    const store = await scene.open([server]);
    const acknowledged = new Set<string>();
    const write = async (writer: number): Promise<void> => {
      for (let number = 0; number < 200; number++) {
        const keys = [`/w/${writer}/${number}/a`, `/w/${writer}/${number}/b`];
        const puts = keys.map((key) => ({ key, value: Buffer.from('1') }));
        const result = await store.commit({ comparisons: [], puts, deletes: [] }, never).catch(() => undefined);
        if (result?.committed) for (const key of keys) acknowledged.add(key);
        else await sleep(20);
      }
    };
    const writing = Promise.all(Array.from({ length: 8 }, (_, writer) => write(writer)));
    await expect.poll(() => acknowledged.size, { interval: 5 }).toBeGreaterThan(100);
    for (let kill = 0; kill < 3; kill++) {
      await sleep(150);
      await server.kill();
      await server.restart();
    }
    await writing;
    const { records } = await untilAnswered(() => store.list('/w/', never));
    const stored = new Set(records.map(({ key }) => key));
    expect([...acknowledged].filter((key) => !stored.has(key))).toEqual([]);
    expect(stored.size % 2).toBe(0);
    for (const key of stored)
      expect(stored).toContain(key.endsWith('a') ? `${key.slice(0, -1)}b` : `${key.slice(0, -1)}a`);
    expect(acknowledged.size).toBeGreaterThan(100);
    expect(acknowledged.size).toBeLessThan(8 * 200 * 2);
  }, 120_000);

  it('does not make a watch miss or repeat a change', async () => {
    const server = await scene.start();
    const store = await scene.open([server]);
    const other = await scene.open([server]);
    const watching = scene.watch(store, '/w/', await store.revision(never));
    const written: [number, string][] = [];
    for (let number = 0; number < 60; number++) {
      if (number % 15 === 7) {
        await server.kill();
        await server.restart();
      }
      const key = `/w/${number}`;
      written.push([await untilAnswered(() => commit(other, put(key))), key]);
    }
    await watching.waitForRevision(written.at(-1)![0]);
    // A repeated put of a lost answer is another revision of the same key.
    const seen = watching.seen;
    expect(written.filter((item) => !seen.some((other) => other[0] === item[0] && other[1] === item[1]))).toEqual([]);
    const revisions = seen.map(([revision]) => revision);
    expect(revisions).toEqual([...new Set(revisions)].sort((a, b) => a - b));
    expect(scene.events.some(({ type }) => type === 'endpointLost')).toBe(true);
  });

  it('is waited for as long as a connection may take', async () => {
    const server = await scene.start();
    const store = await scene.open([server], { dialTimeoutMs: 40_000 });
    await server.stop();
    const committed = store.commit(put('/a'), never).catch(() => undefined);
    await committed;
    const answered = store.read(['/a'], never);
    await sleep(300);
    await server.restart();
    await answered;
    expect(await commit(store, put('/b'))).toBeGreaterThan(1);
  });
});

describe('a server that stands still', () => {
  it('fails requests after their timeout, and serves when it resumes', async () => {
    const server = await scene.start();
    const store = await openHastily([server], HASTY);
    const patient = await scene.open([server]);
    const revision = await commit(patient, put('/a', 'before'));
    server.pause();
    let isWaiting = true;
    const waited = patient.revision(never).finally(() => (isWaiting = false));
    await expect(store.commit(put('/a', 'during', revision), never)).rejects.toMatchObject(UNAVAILABLE);
    await expect(store.list('/', never)).rejects.toMatchObject(UNAVAILABLE);
    expect(isWaiting).toBe(true);
    server.resume();
    expect(await waited).toBeGreaterThanOrEqual(revision);
    const { records } = await untilAnswered(() => store.read(['/a'], never));
    expect(['before', 'during']).toContain(Buffer.from(records[0]!.value).toString());
    await untilAnswered(() => commit(store, put('/b')));
  });

  it('makes a watch go on where it was', async () => {
    const server = await scene.start();
    const store = await openHastily([server], HASTY);
    const patient = await scene.open([server]);
    const watching = scene.watch(store, '/w/', await patient.revision(never));
    const first = await commit(patient, put('/w/1'));
    await watching.waitForRevision(first);
    server.pause();
    await expect(store.revision(never)).rejects.toMatchObject(UNAVAILABLE);
    await sleep(500);
    server.resume();
    const second = await commit(patient, put('/w/2'));
    await watching.waitForRevision(second);
    expect(watching.seen.map(([, key]) => key)).toEqual(['/w/1', '/w/2']);
  });

  it('ends a request when its caller aborts earlier', async () => {
    const server = await scene.start();
    const store = await scene.open([server], { requestTimeoutMs: 600_000 });
    server.pause();
    await expect(store.revision(AbortSignal.timeout(100))).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    const failure = store.commit(put('/a'), AbortSignal.timeout(100));
    await expect(failure).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    server.resume();
  });
});

describe('a cluster', () => {
  it('is served by another member when the one in use ends, stands still, or was never there', async () => {
    const servers = await scene.startCluster(3);
    const dead = { url: 'http://127.0.0.1:1' };
    const store = await openHastily([dead, ...servers], { requestTimeoutMs: 1000, dialTimeoutMs: 5000 });
    const watching = scene.watch(store, '/w/', await untilAnswered(() => store.revision(never)));
    const latest = () => scene.events.findLast((event) => 'endpoint' in event);
    const inUse = () => servers.find(({ url }) => url === latest()?.endpoint)!;
    const revisions = [await untilAnswered(() => commit(store, put('/w/0')))];
    await watching.waitForRevision(revisions[0]!);

    const killed = inUse();
    await killed.kill();
    revisions.push(await untilAnswered(() => commit(store, put('/w/1'))));
    await watching.waitForRevision(revisions[1]!);
    expect(inUse()).not.toBe(killed);
    await killed.restart();

    const paused = inUse();
    paused.pause();
    revisions.push(await untilAnswered(() => commit(store, put('/w/2'))));
    await watching.waitForRevision(revisions[2]!);
    expect(inUse()).not.toBe(paused);
    paused.resume();
    // A repeated put of a lost answer is another revision of the same key.
    expect([...new Set(watching.seen.map(([, key]) => key))]).toEqual(['/w/0', '/w/1', '/w/2']);
    expect(new Set(watching.seen.map(([revision]) => revision)).size).toBe(watching.seen.length);
  }, 180_000);

  it('without a majority answers nothing, and everything once it has one', async () => {
    const servers = await scene.startCluster(3);
    const store = await openHastily(servers, { requestTimeoutMs: 1000, dialTimeoutMs: 1000 });
    await untilAnswered(() => commit(store, put('/a')));
    await Promise.all(servers.slice(1).map((server) => server.kill()));
    await expect(store.read(['/a'], never)).rejects.toMatchObject(UNAVAILABLE);
    await expect(store.commit(put('/b'), never)).rejects.toMatchObject(UNAVAILABLE);
    await Promise.all(servers.slice(1).map((server) => server.restart()));
    const { records } = await untilAnswered(() => store.list('/', never));
    expect(records.map(({ key }) => key)).toContain('/a');
  }, 180_000);
});

describe('a datastore that is not the one that was read', () => {
  it('is refused permanently, as the known records are invalid there', async () => {
    const server = await scene.start();
    const store = await scene.open([server]);
    for (const value of ['1', '2', '3']) await commit(store, put('/a', value));
    await server.stop();
    server.wipe();
    await server.restart();
    const corrupt = { code: 'STORE_CORRUPT', message: /restored from a copy, or is another one.*restart podwire-ipam/ };
    await expect(untilAnswered(() => store.read(['/a'], never))).rejects.toMatchObject({
      code: corrupt.code,
      message: expect.stringMatching(corrupt.message),
    });
    await expect(store.commit(put('/a', '9', 0), never)).rejects.toMatchObject({ code: corrupt.code });
    expect(server.dump('/a').size).toBe(0);
  });

  it('is refused permanently by its first older record, after other writers have raised its revision', async () => {
    const server = await scene.start();
    const store = await scene.open([server]);
    await commit(store, put('/a', 'old'));
    const copy = await scene.start();
    await Promise.all([server.stop(), copy.stop()]);
    copy.takeDataOf(server);
    await server.restart();
    const known = await untilAnswered(() => commit(store, put('/a', 'new')));
    await server.stop();
    await copy.restart();
    while (copy.revision() <= known) copy.ctl('put', '/other', 'x');
    await copy.stop();
    server.takeDataOf(copy);
    await server.restart();
    await untilAnswered(() => store.read(['/other'], never));
    const watch = store.watch({ prefix: '/w', afterRevision: server.revision() }, never);
    const first = watch.next();
    server.ctl('put', '/w', 'x');
    await first;
    const refusal = {
      code: 'STORE_CORRUPT',
      message: expect.stringMatching(/\/a of revision \d+ after \d+\): it was restored from a copy/),
    };
    const ended = expect(watch.next()).rejects.toMatchObject(refusal);
    await expect(store.commit(put('/a', 'newer', known), never)).rejects.toMatchObject(refusal);
    await ended;
    await expect(store.read(['/other'], never)).rejects.toMatchObject(refusal);
    expect(scene.events.filter(({ type }) => type === 'replaced')).toHaveLength(1);
    expect(server.dump('/a')).toEqual(new Map([['/a', 'old']]));
  });
});

describe('requests that have nothing to do with a fault', () => {
  it('are not disturbed by another that is given up before there is a connection', async () => {
    const server = await scene.start();
    const endpoint = new EtcdEndpoint(server.url, {
      credentials: { tls: { ca: undefined, identity: undefined }, user: undefined },
      clock: systemClock,
    });
    scene.onEnd(() => endpoint.close());
    const ask = (signal: AbortSignal) =>
      endpoint.call(({ kv }, options) => kv.range({ key: Buffer.from('/a'), count_only: true }, options), {
        signal,
        timeoutMs: 20_000,
      });
    server.pause();
    const waiting = ask(never);
    waiting.catch(() => undefined);
    await expect(ask(AbortSignal.timeout(50))).rejects.toMatchObject({ code: 'DEADLINE_EXCEEDED' });
    // etcd3 gave a connection that is not there yet one second more.
    await sleep(1500);
    server.resume();
    await expect(waiting).resolves.toHaveProperty('header.revision');
  });

  it('are not disturbed by other requests that are given up, nor by watches that end', async () => {
    const server = await scene.start();
    const store = await scene.open([server], { requestTimeoutMs: 45_000 });
    const revision = await store.revision(never);
    const disturbing = Array.from({ length: 100 }, async (_, index) => {
      const abort = new AbortController();
      const watching = scene.watch(store, '/w/', revision);
      const read = store.list('/w/', abort.signal).catch(() => undefined);
      await sleep(index);
      abort.abort();
      await Promise.all([read, watching.end()]);
    });
    const committing = Array.from({ length: 300 }, async (_, index) => {
      await sleep(index % 100);
      return store.commit(put(`/w/${index}`), never);
    });
    const results = await Promise.all(committing);
    await Promise.all(disturbing);
    expect(results.every(({ committed }) => committed)).toBe(true);
    expect(scene.events.map(({ type }) => type)).toEqual(['endpointChosen']);
  });
});

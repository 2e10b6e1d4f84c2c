import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { ObjectServer } from '../testing/object-server.js';
import { KubernetesApi } from './api.js';
import { ObjectFeed } from './object-feed.js';
import { readName } from './objects.js';

const NODES = '/api/v1/nodes';

let server: ObjectServer;
let api: KubernetesApi;
let clock: ManualClock;
let feed: ObjectFeed<string>;
let seen: string[];

beforeEach(async () => {
  server = await ObjectServer.start();
  api = new KubernetesApi({ ...server.options, watchIdleMs: 100 });
  clock = new ManualClock();
  seen = [];
  for (const name of ['a', 'b']) server.put(NODES, { metadata: { name } });
  feed = new ObjectFeed({
    ...{ api, clock, path: NODES, random: () => 0.5 },
    read: (object) => readName(object)?.name,
    listed: (items) => void seen.push(`listed ${items.length}`),
    changed: (type) => seen.push(type),
    restored: () => seen.push('restored'),
    report: () => undefined,
  });
});

afterEach(async () => {
  await feed.stop();
  api.close();
  await server.stop();
});

test('a silent watch is opened again, and after minutes the list is read', async () => {
  await expect.poll(() => seen).toEqual(['listed 2']);
  await expect.poll(() => feed.isCurrent).toBe(true);
  clock.advance(60_000);
  expect(feed.ageMs).toBeGreaterThanOrEqual(60_000);
  server.put(NODES, { metadata: { name: 'c' } });
  await expect.poll(() => seen.at(-1)).toBe('ADDED');
  expect(feed.ageMs).toBe(0);
  clock.advance(180_000);
  await expect
    .poll(() => {
      clock.advance(1000);
      return seen.at(-1);
    })
    .toBe('listed 3');
  expect(seen).not.toContain('restored');
});

test('a restored API server is detected, although its watches report nothing', async () => {
  await expect.poll(() => feed.isCurrent).toBe(true);
  server.restore();
  await expect
    .poll(() => {
      clock.advance(200_000);
      return seen.slice(-2);
    })
    .toEqual(['restored', 'listed 0']);
});

test('a kind without a definition has an empty list, and is looked up again', async () => {
  const path = '/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies';
  server.undefinedCollections.add(path);
  const lists: string[][] = [];
  const failures: unknown[] = [];
  const optional = new ObjectFeed({
    ...{ api, clock, path, random: () => 0.5, isOptional: true },
    read: (object) => readName(object)?.name,
    listed: (names) => void lists.push([...names]),
    changed: () => undefined,
    report: (failure) => failures.push(failure),
  });
  await expect.poll(() => lists).toEqual([[]]);
  expect(optional.isCurrent).toBe(true);
  server.undefinedCollections.delete(path);
  server.put(path, { metadata: { name: 'a' } });
  await expect
    .poll(() => {
      clock.advance(60_000);
      return lists.at(-1);
    })
    .toEqual(['a']);
  expect(failures.filter((failure) => failure !== undefined)).toEqual([]);
  await optional.stop();
});

test('a burst of events leaves a turn of the event loop to other work every two milliseconds', async () => {
  let turn = 0;
  const turns: number[] = [];
  const busy = new ObjectFeed({
    ...{ api: new KubernetesApi(server.options), clock, path: NODES, random: () => 0.5, report: () => undefined },
    read: (object) => readName(object)?.name,
    listed: () => undefined,
    changed: () => {
      turns.push(turn);
      clock.advance(1);
    },
  });
  await expect.poll(() => busy.isCurrent).toBe(true);
  const next = (): void => {
    turn++;
    if (turns.length < 500) setImmediate(next);
  };
  for (let index = 0; index < 500; index++) server.put(NODES, { metadata: { name: `node-${index}` } });
  next();
  await expect.poll(() => turns.length).toBe(500);
  const counts = Array.from({ length: turn + 1 }, (_, index) => turns.filter((each) => each === index).length);
  expect(Math.max(...counts)).toBe(2);
  await busy.stop();
});

import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { FakeApiServer, nodeObject, nodePod, NODES, OWN_PODS } from '../testing/api-server.js';
import { KubernetesApi } from './api.js';
import { ObjectCache, type CacheChange } from './object-cache.js';
import { readNode, readNodePod, type ClusterNode } from './objects.js';

const WAIT = { timeout: 30_000, interval: 5 };

/** Pauses take a turn of the event loop. */
const clock = { ...systemClock, sleep: (_: number, signal: AbortSignal) => systemClock.sleep(1, signal) };

let server: FakeApiServer;
let api: KubernetesApi;
let cache: ObjectCache<ClusterNode> | undefined;
let changes: CacheChange[];
let reports: string[];

beforeEach(async () => {
  server = await FakeApiServer.start();
  api = new KubernetesApi(server.options);
  changes = [];
  reports = [];
});

afterEach(async () => {
  await cache?.stop();
  cache = undefined;
  api.close();
  await server.stop();
});

const changed = (change: CacheChange): number => changes.push(change);
const report = (failure: unknown): number =>
  reports.push(failure === undefined ? 'answers' : failure instanceof Error ? failure.message : 'no error');

function start(): ObjectCache<ClusterNode> {
  cache = new ObjectCache({ api, path: NODES, read: readNode, clock, random: () => 0.5, changed, report });
  return cache;
}

const names = (): string[] => [...(cache?.objects.keys() ?? [])];
const until = (check: () => unknown): Promise<unknown> => vi.waitFor(() => expect(check()).toBe(true), WAIT);
const shows = (...expected: string[]): Promise<unknown> => until(() => names().join() === expected.join());
const lists = (): number => server.requests.filter((line) => !line.includes('watch=')).length;
const watches = (): string[] => server.requests.filter((line) => line.includes('watch='));

describe('the copy', () => {
  test('begins with a list in pages, and follows the watch', async () => {
    server.pageSize = 2;
    for (const name of ['a', 'b', 'c', 'd', 'e']) server.put(NODES, nodeObject(name));
    start();
    expect(cache!.isCurrent).toBe(false);
    await shows('a', 'b', 'c', 'd', 'e');
    expect(lists()).toBe(3);
    await until(() => cache!.isCurrent);
    server.put(NODES, nodeObject('f'));
    server.put(NODES, nodeObject('a', { status: { conditions: [] } }));
    server.delete(NODES, 'b');
    await shows('a', 'c', 'd', 'e', 'f');
    expect(cache!.objects.get('a')!.isReady).toBe(false);
    expect(changes).toEqual([
      { type: 'listed' },
      { type: 'changed', name: 'f' },
      { type: 'changed', name: 'a' },
      { type: 'deleted', name: 'b' },
    ]);
    expect(reports).toEqual(['answers']);
  });

  test('continues where a watch ended, and misses nothing', async () => {
    start();
    await until(() => server.watchersCount === 1);
    server.put(NODES, nodeObject('a'));
    await shows('a');
    server.disconnect();
    server.put(NODES, nodeObject('b'));
    server.delete(NODES, 'a');
    await shows('b');
    server.endWatches();
    server.put(NODES, nodeObject('c'));
    await shows('b', 'c');
    expect(lists()).toBe(1);
    expect(changes.map(({ type }) => type)).toEqual(['listed', 'changed', 'changed', 'deleted', 'changed']);
  });

  test('continues from a bookmark', async () => {
    start();
    await until(() => server.watchersCount === 1);
    server.bookmark();
    server.endWatches();
    await until(() => watches().length > 1);
    expect(watches()[1]).not.toContain('resourceVersion=100&');
    expect(changes).toEqual([{ type: 'listed' }]);
  });

  test('is read again when its version has expired', async () => {
    server.put(NODES, nodeObject('a'));
    server.put(NODES, nodeObject('b'));
    start();
    await until(() => server.watchersCount === 1);
    server.lose(NODES, ['a']);
    await shows('b');
    await until(() => cache!.isCurrent);
    expect(lists()).toBeGreaterThanOrEqual(2);
  });

  test('is not current while the API server refuses, and recovers', async () => {
    server.put(NODES, nodeObject('a'));
    start();
    await until(() => cache!.isCurrent);
    server.refusal = 503;
    server.disconnect();
    await until(() => !cache!.isCurrent);
    await until(() => reports.filter((text) => text.includes('503')).length >= 4);
    expect(names()).toEqual(['a']);
    server.refusal = undefined;
    await until(() => cache!.isCurrent);
    // The list is read again after several failed watches.
    expect(changes.filter(({ type }) => type === 'listed').length).toBeGreaterThanOrEqual(2);
  });

  test('has objects with its label only', async () => {
    server.put(OWN_PODS, nodePod('n1'));
    server.put(OWN_PODS, { metadata: { name: 'other', namespace: 'podwire-system', labels: { app: 'x' } } });
    const pods = new ObjectCache({
      ...{ api, path: OWN_PODS, labelSelector: 'app.kubernetes.io/name=podwire-node', read: readNodePod },
      ...{ clock, random: () => 0.5, changed, report },
    });
    await until(() => pods.isCurrent);
    server.put(OWN_PODS, { metadata: { name: 'third', namespace: 'podwire-system' } });
    server.put(OWN_PODS, nodePod('n2', false));
    await until(() => pods.objects.size === 2);
    expect([...pods.objects.values()]).toEqual([
      { name: 'podwire-node-n1', nodeName: 'n1', isReady: true },
      { name: 'podwire-node-n2', nodeName: 'n2', isReady: false },
    ]);
    await pods.stop();
  });

  test('begins again when a list expires between two pages', async () => {
    server.pageSize = 1;
    for (const name of ['a', 'b', 'c']) server.put(NODES, nodeObject(name));
    let isCompacted = false;
    server.onRequest = (line) => {
      if (isCompacted || !line.includes('continue=')) return;
      isCompacted = true;
      server.compact();
    };
    start();
    await shows('a', 'b', 'c');
    expect(reports[0]).toContain('answered 410');
  });

  test('ends at once when it is stopped, also while it waits for an answer', async () => {
    server.gate = new Promise(() => undefined);
    start();
    await until(() => server.requests.length === 1);
    await cache!.stop();
    await cache!.stop();
    expect(reports).toEqual([]);
  });
});

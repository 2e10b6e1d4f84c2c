import { randomBytes } from 'node:crypto';

import { systemClock } from '@podwire/shared/runtime/clock';
import { afterAll, beforeAll, expect, test } from 'vitest';

import type { KubernetesApi } from '@podwire/ipam/api-server/api';
import { HistorySegments } from '@podwire/ipam/engine/kubernetes/history/history-segments';
import { forever, keys } from '@podwire/ipam/engine/testing/stores';

import { KubeApiServer } from './kube-apiserver.js';

/** Podwire's own objects on a real API server, with its validation of definitions. */

let server: KubeApiServer;
let api: KubernetesApi;
beforeAll(async () => {
  server = await KubeApiServer.start(['n1']);
  api = server.connect();
});
afterAll(async () => {
  api.close();
  await server.stop();
});

function fail(error: unknown): never {
  throw error;
}

async function openHistory() {
  const reports = { unavailable: fail, unreadable: (_: string, error: unknown) => fail(error), writeFailed: fail };
  const opened = await HistorySegments.open({ api, keys, clock: systemClock, random: Math.random, reports }, forever);
  return opened ?? fail(new Error('the API server has no segments'));
}

test('an imported history is full segments, which the definition accepts, and a later begin', async () => {
  const records = Array.from({ length: 40 }, (_, index) => ({
    key: `${keys.history}00020687/10.0.0.${index}/1`,
    value: Buffer.from(randomBytes(index === 0 ? 1000 : 20_000).toString('hex')),
    releasedAtMs: index * 1000,
  }));
  const { segments } = await openHistory();
  await segments.import({ records, beginMs: 0, dryRun: false }, forever);
  await segments.import({ records: [], beginMs: 1_000_000, dryRun: false }, forever);
  const found = await openHistory();
  expect([...found.records].map(([key, value]) => [key, String(value)]).sort()).toEqual(
    records.map(({ key, value }) => [key, String(value)]).sort(),
  );
  expect(found.segments.beginKey).toBe(keys.historyBegin(1_000_000));
  expect(server.kubectl('get', 'historysegments', '-o', 'name').trim().split('\n')).toHaveLength(5);
});

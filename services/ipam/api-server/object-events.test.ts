import { Writable } from 'node:stream';

import { createLogger } from '@podwire/shared/runtime/log';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { ObjectServer } from '../testing/object-server.js';
import { KubernetesApi } from './api.js';
import { ObjectEvents, type ObjectEvent } from './object-events.js';

const MINUTE_MS = 60_000;
const APPS = '/apis/events.k8s.io/v1/namespaces/apps/events';

let server: ObjectServer;
let api: KubernetesApi;
let clock: ManualClock;
let events: ObjectEvents;
let lines: string[];
beforeEach(async () => {
  server = await ObjectServer.start();
  api = new KubernetesApi(server.options);
  clock = new ManualClock();
  lines = [];
  const write = (line: Buffer, _encoding: string, done: () => void): void => {
    lines.push(line.toString());
    done();
  };
  const log = createLogger({ service: 'test', level: 'info', destination: new Writable({ write }) });
  events = new ObjectEvents({ api, clock, log, instance: 'podwire-ipam-0' });
});
afterEach(async () => {
  api.close();
  await server.stop();
});

const refusal = (name: string, rest: Partial<ObjectEvent> = {}): ObjectEvent => ({
  ...{ kind: 'Pod', name, namespace: 'apps', uid: `uid-${name}`, type: 'Warning' },
  ...{ reason: 'PoolsExhausted', action: 'Allocate', note: 'no free address' },
  ...rest,
});

const seriesIn = (collection = APPS) => server.list(collection).map(({ series }) => Object(series).count);

test('a refused pod has one Event for each reason, with the fields that kubectl shows', async () => {
  await events.report(refusal('web-0', { note: 'x'.repeat(2000) }));
  await events.report(refusal('web-0', { reason: 'RequestDenied' }));
  await events.report(refusal('web-0'));
  const [first, second, ...rest] = server.list(APPS);
  expect(first).toMatchObject({
    ...{ apiVersion: 'events.k8s.io/v1', kind: 'Event', metadata: { namespace: 'apps' } },
    ...{ reportingController: 'podwire.dev/ipam', reportingInstance: 'podwire-ipam-0', type: 'Warning' },
    ...{ reason: 'PoolsExhausted', action: 'Allocate', note: 'x'.repeat(1000) },
    regarding: { apiVersion: 'v1', kind: 'Pod', namespace: 'apps', name: 'web-0', uid: 'uid-web-0' },
    eventTime: expect.stringMatching(/\.\d{6}Z$/),
  });
  expect([second?.reason, rest]).toEqual(['RequestDenied', []]);
});

test('repetitions are counted, and the count is written every 5 minutes', async () => {
  for (let minute = 0; minute < 12; minute++) {
    await events.report(refusal('web-0'));
    clock.advance(MINUTE_MS);
  }
  expect(seriesIn()).toEqual([11]);
  expect(server.requests.map((line) => line.split(' ')[0])).toEqual(['POST', 'PATCH', 'PATCH']);
  // The API server removes Events of an age.
  for (const { metadata } of server.list(APPS)) server.delete(`${APPS}/${String(Object(metadata).name)}`);
  clock.advance(5 * MINUTE_MS);
  for (let count = 0; count < 2; count++) await events.report(refusal('web-0'));
  expect(seriesIn()).toEqual([undefined]);
});

test('failures that a node has counted are one Event with their number', async () => {
  await events.report(refusal('web-0', { action: 'Attach' }), 3);
  expect(server.list(APPS)).toMatchObject([{ action: 'Attach' }]);
  clock.advance(5 * MINUTE_MS);
  await events.report(refusal('web-0', { action: 'Attach' }), 2);
  expect(seriesIn()).toEqual([5]);
});

test('thousands of refused pods write 25 Events at once and one each second, and each later retry is another chance', async () => {
  const retryAll = () => Promise.all(Array.from({ length: 3000 }, (_, index) => events.report(refusal(`p-${index}`))));
  await retryAll();
  expect(server.list(APPS)).toHaveLength(25);
  clock.advance(10_000);
  await retryAll();
  expect(server.list(APPS)).toHaveLength(35);
});

test('an API server that refuses is reported once, until it answers', async () => {
  for (const fault of [403, 403] as const) {
    server.injectFault('POST', fault);
    await events.report(refusal('web-0'));
  }
  expect(lines).toHaveLength(1);
  await events.report(refusal('web-0'));
  expect(server.list(APPS)).toHaveLength(1);
  server.injectFault('POST', 500);
  await events.report(refusal('web-1'));
  expect(lines).toHaveLength(2);
});

test('the condition of a node is an Event of its Node, as is its end', async () => {
  events.conditionChanged('node-1', 'BirdDown', { isActive: true, note: 'BIRD does not answer' });
  events.conditionChanged('node-1', 'BirdDown', { isActive: false, note: 'BIRD answers' });
  const collection = '/apis/events.k8s.io/v1/namespaces/default/events';
  await expect.poll(() => server.list(collection)).toHaveLength(2);
  const node = { apiVersion: 'v1', kind: 'Node', name: 'node-1', uid: 'node-1' };
  expect(server.list(collection).map(({ type, reason, regarding }) => [type, reason, regarding])).toEqual([
    ['Warning', 'BirdDown', node],
    ['Normal', 'BirdDownEnded', node],
  ]);
});

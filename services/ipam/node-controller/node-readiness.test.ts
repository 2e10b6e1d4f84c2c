import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { MemoryStore } from '../engine/testing/memory-store.js';
import { instantClock, settleEvents } from '../engine/testing/stores.js';
import type { ApiAnswer, ApiRequest } from '../api-server/api.js';
import type { ClusterNode } from '../api-server/objects.js';
import { startIpam } from '../testing/ipam.js';
import { ControllerEvents } from './controller-events.js';
import { NodeReadiness } from './node-readiness.js';
import { STARTUP_TAINT } from './readiness.js';

let nodes: Map<string, ClusterNode>;
let serving: Set<string>;
let isCurrent: boolean;
let sent: string[];
let interrupted: string[];
let answer: (request: ApiRequest) => Promise<ApiAnswer>;
let lines: string[];
let readiness: NodeReadiness;

beforeEach(async () => {
  const started = await startIpam(new MemoryStore());
  ({ lines } = started);
  nodes = new Map();
  [serving, isCurrent] = [new Set(), true];
  [sent, interrupted] = [[], []];
  answer = () => Promise.resolve({ status: 200, body: {} });
  readiness = new NodeReadiness({
    api: {
      send: (request) => {
        sent.push(request.path);
        return answer(request);
      },
    },
    cluster: () => ({ nodes, isCurrent, servingNodes: () => serving }),
    events: new ControllerEvents(started.events),
    clock: { ...instantClock, sleep: () => new Promise((resolve) => setImmediate(() => resolve('elapsed'))) },
    random: () => 0.5,
    notServing: (name) => interrupted.push(name),
  });
});

afterEach(() => readiness.stop());

/** A new copy of a Node, as after each of its changes. */
function show(name: string, rest: Partial<ClusterNode> = {}): void {
  nodes.set(name, {
    ...{ name, resourceVersion: '1', isReady: true, networkUnavailable: 'False', taints: [{ key: STARTUP_TAINT }] },
    ...rest,
  });
}

async function change(): Promise<void> {
  readiness.changed();
  for (let turn = 0; turn < 5; turn++) await settleEvents();
}

const logged = (text: string): number => lines.filter((line) => line.includes(text)).length;

test('a Node that serves is patched once, also if its copy shows that later', async () => {
  show('n1', { networkUnavailable: 'True' });
  show('n2');
  serving.add('n1');
  await change();
  await change();
  expect(sent).toEqual(['/api/v1/nodes/n1', '/api/v1/nodes/n1/status']);
  expect(logged('node n1: removed the taint')).toBe(1);
  expect(new Set(interrupted)).toEqual(new Set(['n2']));
  show('n1', { taints: [] });
  await change();
  expect(sent).toHaveLength(2);
});

test.each([404, 409])('after the status %d its next copy is patched', async (status) => {
  answer = () => Promise.resolve({ status, body: {} });
  show('n1');
  serving.add('n1');
  await change();
  await change();
  expect([sent.length, logged('removed the taint')]).toEqual([1, 0]);
  answer = () => Promise.resolve({ status: 200, body: {} });
  show('n1');
  await change();
  expect([sent.length, logged('removed the taint')]).toEqual([2, 1]);
});

test('a failure is retried without a change, and does not hold up the next Node', async () => {
  let isFailing = true;
  answer = ({ path }) =>
    isFailing && path.endsWith('n1')
      ? Promise.reject(new Failure('UNREACHABLE', 'the API server is down'))
      : Promise.resolve({ status: 200, body: {} });
  for (const name of ['n1', 'n2']) {
    show(name);
    serving.add(name);
  }
  await change();
  expect(logged('node n2: removed the taint')).toBe(1);
  expect(logged('the node controller cannot change Nodes')).toBe(1);
  isFailing = false;
  for (let turn = 0; turn < 10; turn++) await settleEvents();
  expect(logged('node n1: removed the taint')).toBe(1);
  expect(logged('node n2: removed the taint')).toBe(1);
  expect(logged('the API server answers the node controller again')).toBe(1);
});

test('a failure ends with its Node', async () => {
  answer = () => Promise.reject(new Failure('ACCESS_DENIED', 'a webhook refuses'));
  show('n1');
  serving.add('n1');
  await change();
  nodes.clear();
  for (let turn = 0; turn < 10; turn++) await settleEvents();
  expect(logged('the node controller cannot change Nodes')).toBe(1);
  expect(logged('the API server answers the node controller again')).toBe(1);
});

test('an old copy changes nothing', async () => {
  isCurrent = false;
  show('n1');
  serving.add('n1');
  await change();
  expect(sent).toEqual([]);
});

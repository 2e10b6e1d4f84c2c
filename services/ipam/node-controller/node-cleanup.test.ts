import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { beforeEach, describe, expect, test } from 'vitest';

import { readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys, startReplica } from '../engine/testing/stores.js';
import { checkPool } from '../pools/rules.js';
import { ALIVE_MS } from '../records/session.js';
import { startIpam, type StartedIpam } from '../testing/ipam.js';
import { NOW_MS, request, session } from '../testing/records.js';
import { ControllerEvents } from './controller-events.js';
import { NodeCleanup, type NodeCleanupOptions } from './node-cleanup.js';

const GRACE_MS = 900_000;
const ROUND_MS = 30_000;
const REGISTRATION = { ipv4: undefined, ipv6: undefined, labels: {}, interfaces: [] };

/** Nodes in the API server: its copy and its lists are the same unless a test says otherwise. */
class FakeCluster {
  readonly nodes = new Map<string, { readonly name: string }>();
  /** The names of a list; undefined for the names of `nodes`. */
  listed: ReadonlySet<string> | undefined | 'no answer';
  isCurrent = true;
  uid: string | undefined = 'cluster-1';
  listsCount = 0;
  /** Called in the middle of a list. */
  listing: () => void = () => undefined;

  clusterUid(): Promise<string | undefined> {
    return Promise.resolve(this.uid);
  }

  nodeNames(): Promise<ReadonlySet<string> | undefined> {
    this.listsCount++;
    this.listing();
    if (this.listed === 'no answer') return Promise.resolve(undefined);
    return Promise.resolve(this.listed ?? new Set(this.nodes.keys()));
  }
}

let started: StartedIpam;
let store: MemoryStore;
let cluster: FakeCluster;
let clock: ManualClock;
let cleanup: NodeCleanup;

beforeEach(async () => {
  store = new MemoryStore();
  started = await startIpam(store);
  cluster = new FakeCluster();
  clock = new ManualClock();
  clock.advance(NOW_MS - clock.nowMs());
  cleanup = makeCleanup();
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/24', blockSizeBits: 30, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await started.ipam.pools.create(checked.spec, forever);
});

function makeCleanup(rest: Partial<NodeCleanupOptions> = {}): NodeCleanup {
  const { ipam, events } = started;
  return new NodeCleanup({
    cluster: () => ({ ...bound(cluster), nodes: nodesOf(cluster), isCurrent: cluster.isCurrent }),
    nodes: ipam.nodes,
    listEndpoints: (query, signal) => ipam.endpoints.list(query, signal),
    events: new ControllerEvents(events),
    clock,
    graceMs: GRACE_MS,
    longestRoundMs: 4 * ROUND_MS,
    ...rest,
  });
}

const bound = (fake: FakeCluster) => ({
  clusterUid: () => fake.clusterUid(),
  nodeNames: () => fake.nodeNames(),
});

const nodesOf = (fake: FakeCluster) =>
  new Map(
    [...fake.nodes.keys()].map((name) => [
      name,
      { name, resourceVersion: '1', isReady: true, networkUnavailable: 'False', taints: [] },
    ]),
  );

/** A registered node with a pod, which Kubernetes has too. */
async function join(...names: string[]): Promise<void> {
  for (const name of names) {
    await started.ipam.nodes.register({ ...REGISTRATION, name }, forever);
    await started.ipam.addresses.allocate(request(`pod-of-${name}`, { nodeName: name }), forever);
    cluster.nodes.set(name, { name });
    cleanup.changed({ type: 'changed', name });
  }
}

/** Removes nodes by an event of the watch. */
function remove(...names: string[]): void {
  for (const name of names) {
    cluster.nodes.delete(name);
    cleanup.changed({ type: 'deleted', name });
  }
}

/** Removes nodes by a list that lacks them. */
function lose(...names: string[]): void {
  for (const name of names) cluster.nodes.delete(name);
  cleanup.changed({ type: 'listed' });
}

function comeBack(name: string): void {
  cluster.nodes.set(name, { name });
  cleanup.changed({ type: 'changed', name });
}

/** Rounds until so much time has passed. */
async function rounds(totalMs = GRACE_MS + ROUND_MS, stepMs = ROUND_MS): Promise<void> {
  for (let passedMs = 0; passedMs < totalMs; passedMs += stepMs) {
    clock.advance(stepMs);
    await cleanup.run(forever);
  }
}

const registered = async (): Promise<string[]> =>
  (await started.ipam.nodes.registered(forever)).map(({ name }) => name);

/** Nodes that own blocks. */
async function owners(): Promise<(string | undefined)[]> {
  return (await readAll(store, keys)).blocks().map(({ owner }) => owner?.name);
}

const messages = (): string[] => started.lines.map((line) => JSON.parse(line).msg);
const count = (text: string): number => messages().filter((message) => message.includes(text)).length;

describe('a node whose Kubernetes Node was deleted', () => {
  test('is deleted after the grace period, with its addresses and blocks', async () => {
    await join('n1', 'n2', 'n3');
    await rounds(ROUND_MS);
    remove('n1');
    await rounds(GRACE_MS);
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
    expect(cluster.listsCount).toBe(0);
    await rounds(ROUND_MS);
    expect(await registered()).toEqual(['n2', 'n3']);
    expect((await owners()).sort()).toEqual(['n2', 'n3']);
    expect(cluster.listsCount).toBe(1);
    expect(messages()).toContain('node n1 is missing in Kubernetes; it is deleted in 900 s unless it returns');
    expect(messages()).toContain('deleted node n1 and released 1 address and 1 block');
  });

  test('keeps everything if it returns, even for a moment between two rounds', async () => {
    await join('n1', 'n2', 'n3');
    await rounds(ROUND_MS);
    remove('n1');
    await rounds(GRACE_MS - ROUND_MS);
    comeBack('n1');
    remove('n1');
    await rounds(GRACE_MS - ROUND_MS);
    comeBack('n1');
    await rounds();
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
    expect(count('is in Kubernetes again')).toBe(1);
    expect(count('is missing in Kubernetes')).toBe(1);
  });

  test('keeps everything if the last list has it', async () => {
    await join('n1', 'n2', 'n3');
    await rounds(ROUND_MS);
    remove('n1');
    cluster.listed = new Set(['n1', 'n2', 'n3']);
    await rounds();
    expect(cluster.listsCount).toBeGreaterThan(0);
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
  });

  test('keeps everything while the API server does not answer, and that time does not count', async () => {
    await join('n1', 'n2', 'n3');
    await rounds(ROUND_MS);
    remove('n1');
    await rounds(2 * ROUND_MS);
    cluster.isCurrent = false;
    cleanup.interrupted();
    await rounds(2 * GRACE_MS);
    cluster.isCurrent = true;
    await rounds(GRACE_MS - 3 * ROUND_MS);
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
    cluster.listed = 'no answer';
    await rounds(GRACE_MS);
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
    cluster.listed = undefined;
    await rounds(ROUND_MS);
    expect(await registered()).toEqual(['n2', 'n3']);
  });

  test('keeps everything after a jump of the clock', async () => {
    await join('n1', 'n2', 'n3');
    await rounds(ROUND_MS);
    remove('n1');
    await rounds(ROUND_MS);
    clock.advance(24 * 3_600_000);
    await rounds(ROUND_MS);
    clock.setBack(24 * 3_600_000);
    await rounds(ROUND_MS);
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
  });

  test('keeps everything while it allocates addresses', async () => {
    await join('n1', 'n2', 'n3');
    const { endpoints } = started.ipam;
    let isAllocating = true;
    cleanup = makeCleanup({
      listEndpoints: async (query, signal) => {
        const { items, next } = await endpoints.list(query, signal);
        const isLater = isAllocating ? 5 * ROUND_MS : 0;
        const later = items.map((item) =>
          item.kind === 'endpoint' ? { ...item, value: { ...item.value, createTimeMs: NOW_MS + isLater } } : item,
        );
        return { items: later, next };
      },
    });
    await rounds(ROUND_MS);
    remove('n1');
    await rounds();
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
    expect(count('is missing in Kubernetes but allocates addresses')).toBe(1);
    isAllocating = false;
    await rounds(GRACE_MS - ROUND_MS);
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
    await rounds(2 * ROUND_MS);
    expect(await registered()).toEqual(['n2', 'n3']);
  });

  test('is deleted by one replica, and the remaining replicas see that', async () => {
    await join('n1', 'n2', 'n3');
    const other = makeCleanup();
    await rounds(ROUND_MS);
    await other.run(forever);
    remove('n1');
    other.changed({ type: 'deleted', name: 'n1' });
    for (let passedMs = 0; passedMs <= GRACE_MS; passedMs += ROUND_MS) {
      clock.advance(ROUND_MS);
      await Promise.all([cleanup.run(forever), other.run(forever)]);
    }
    expect(await registered()).toEqual(['n2', 'n3']);
    expect(count('failed')).toBe(0);
  });

  test('that registered again since the record was read is kept', async () => {
    await join('n1', 'n2', 'n3');
    const { nodes } = started.ipam;
    cleanup = makeCleanup({
      nodes: {
        registered: (signal) => nodes.registered(signal),
        recordCluster: (sighting, signal) => nodes.recordCluster(sighting, signal),
        isRunning: (name, signal) => nodes.isRunning(name, signal),
        delete: async (deletion, signal) => {
          await nodes.register({ ...REGISTRATION, name: 'n1', labels: { now: 'here' } }, signal);
          return nodes.delete(deletion, signal);
        },
      },
    });
    await rounds(ROUND_MS);
    remove('n1');
    await rounds();
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
    expect(count('failed')).toBe(0);
  });

  test('that still runs is kept until nothing is heard of it, and is logged once', async () => {
    await join('n1', 'n2', 'n3');
    const { updater } = await startReplica(store);
    const changes = [{ type: 'put', record: { kind: 'nodeSession', value: session('n1') } }] as const;
    await updater.update('test', () => ({ changes, outcome: undefined }), { signal: forever });
    await rounds(ROUND_MS);
    remove('n1');
    await rounds();
    await rounds(ROUND_MS);
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
    expect(count('podwire-node runs there')).toBe(1);
    started.pass(ALIVE_MS);
    await rounds(ROUND_MS);
    expect(await registered()).toEqual(['n2', 'n3']);
  });

  test('is retried when its deletion fails, and does not hold up the next', async () => {
    await join('n1', 'n2', 'n3', 'n4', 'n5');
    const { nodes } = started.ipam;
    let isFailing = true;
    cleanup = makeCleanup({
      nodes: {
        registered: (signal) => nodes.registered(signal),
        recordCluster: (sighting, signal) => nodes.recordCluster(sighting, signal),
        isRunning: (name, signal) => nodes.isRunning(name, signal),
        delete: (deletion, signal) =>
          isFailing && deletion.name === 'n1'
            ? Promise.reject(new Failure('STORE_UNAVAILABLE', 'etcd is down'))
            : nodes.delete(deletion, signal),
      },
    });
    await rounds(ROUND_MS);
    remove('n1', 'n2');
    await rounds();
    expect(await registered()).toEqual(['n1', 'n3', 'n4', 'n5']);
    expect(count('failed to delete node n1; trying again later')).toBe(1);
    isFailing = false;
    await rounds(ROUND_MS);
    expect(await registered()).toEqual(['n3', 'n4', 'n5']);
  });
});

describe('a node is never deleted', () => {
  test('if this cluster was not seen to have it: a host of containerd, or another cluster’s node', async () => {
    await join('n1');
    for (const name of ['n2', 'plain']) await started.ipam.nodes.register({ ...REGISTRATION, name }, forever);
    await started.ipam.nodes.recordCluster({ name: 'n2', clusterUid: 'cluster-2' }, forever);
    await rounds();
    expect(await registered()).toEqual(['n1', 'n2', 'plain']);
    expect(count('missing')).toBe(0);
  });

  test('if the cluster was created again, as its UID shows', async () => {
    await join('n1', 'n2', 'n3');
    await rounds(ROUND_MS);
    remove('n1');
    cluster.uid = 'cluster-2';
    await rounds();
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
    cluster.uid = undefined;
    await rounds();
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
  });

  test('if the last list is of another cluster', async () => {
    await join('n1', 'n2', 'n3');
    await rounds(ROUND_MS);
    remove('n1');
    cluster.listing = () => void (cluster.uid = 'cluster-2');
    await rounds();
    expect(cluster.listsCount).toBe(1);
    expect(await registered()).toEqual(['n1', 'n2', 'n3']);
  });

  test('if the API server has no Node at all', async () => {
    await join('n1', 'n2');
    await rounds(ROUND_MS);
    remove('n1', 'n2');
    await rounds(2 * GRACE_MS);
    expect(await registered()).toEqual(['n1', 'n2']);
    expect(count('the API server has no Node at all: not deleting n1, n2; check the API server')).toBe(1);
  });

  test('if more than half are missing without an event, which is logged once; an operator deletes them', async () => {
    await join('n1', 'n2', 'n3', 'n4');
    await rounds(ROUND_MS);
    lose('n1', 'n2', 'n3');
    await rounds(2 * GRACE_MS);
    expect(await registered()).toEqual(['n1', 'n2', 'n3', 'n4']);
    expect(count('3 of 4 nodes are missing, and their deletion was not seen: not deleting n1, n2, n3')).toBe(1);
    await started.ipam.nodes.delete({ name: 'n1', resourceVersion: '' }, forever);
    await rounds(ROUND_MS);
    // Two of three are still more than half.
    expect(await registered()).toEqual(['n2', 'n3', 'n4']);
    comeBack('n3');
    await rounds(ROUND_MS);
    expect(await registered()).toEqual(['n3', 'n4']);
  });
});

test('a deletion that was seen does not count after the Node was in a list again', async () => {
  await join('n1', 'n2', 'n3');
  await rounds(ROUND_MS);
  remove('n1', 'n2');
  for (const name of ['n1', 'n2']) cluster.nodes.set(name, { name });
  cleanup.changed({ type: 'listed' });
  await rounds(ROUND_MS);
  lose('n1', 'n2');
  await rounds();
  expect(await registered()).toEqual(['n1', 'n2', 'n3']);
  expect(count('2 of 3 nodes are missing')).toBe(1);
});

test('a Node that was there for a moment between two rounds is known', async () => {
  await join('n1', 'n2', 'n3');
  remove('n1');
  await rounds(GRACE_MS);
  expect(await registered()).toEqual(['n1', 'n2', 'n3']);
  await rounds(ROUND_MS);
  expect(await registered()).toEqual(['n2', 'n3']);
});

test('observations are kept over restarts: a Node that was deleted while podwire-ipam was down', async () => {
  await join('n1', 'n2', 'n3');
  await rounds(ROUND_MS);
  cluster.nodes.delete('n1');
  cleanup = makeCleanup();
  cleanup.changed({ type: 'listed' });
  await rounds(GRACE_MS);
  expect(await registered()).toEqual(['n1', 'n2', 'n3']);
  await rounds(ROUND_MS);
  expect(await registered()).toEqual(['n2', 'n3']);
});

test('nothing is written to nodes whose cluster is recorded', async () => {
  await join('n1', 'n2');
  await rounds(ROUND_MS);
  const { revision } = await store.read([], forever);
  await rounds(5 * ROUND_MS);
  expect((await store.read([], forever)).revision).toBe(revision);
});

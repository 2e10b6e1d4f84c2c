import { formatPrefix } from '@podwire/shared/net/prefix';
import { beforeEach, describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { continueAddressRelease, continueHandleRelease, release } from '../addresses/release.js';
import type { ReleaseStep } from '../blocks/release-changes.js';
import { getEndpoint } from '../endpoints/endpoints.js';
import { continuePoolRelease } from '../pools/deletion.js';
import { endpointKey, makeEndpoint } from '../records/endpoint.js';
import type { Node } from '../records/node.js';
import { ALIVE_MS, type NodeSession } from '../records/session.js';
import { versionOf } from '../records/versions.js';
import type { Decision, RecordValue } from '../records/view.js';
import { calico, countedHandles, withAllocations, handleRecord, storedHandles } from '../testing/allocations.js';
import {
  affinity,
  attachment,
  block,
  claimedBlock,
  config,
  failureOf,
  host,
  node,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
  session,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { beginNodeDeletion, continueNodeDeletion, continueNodeRelease, type NodeDeletionStep } from './deletion.js';
import { assignTunnel } from './tunnels.js';

/** etcd's limits of one transaction. */
const MAX_OPERATIONS = 128;

function begin(view: TestView, name: string, resourceVersion = '') {
  return view.apply(beginNodeDeletion(view, { name, resourceVersion, uid: 'uid-mark', nowMs: NOW_MS }));
}

function applySmall<Outcome>(view: TestView, decision: Decision<Outcome>): Outcome {
  expect(decision.changes.length).toBeLessThanOrEqual(MAX_OPERATIONS);
  return view.apply(decision);
}

/** Deletes to the end. @returns all steps */
function deleteNode(view: TestView, name: string): NodeDeletionStep[] {
  const progress = { node: begin(view, name), nowMs: NOW_MS };
  const steps: NodeDeletionStep[] = [];
  for (let state = 'more'; state !== 'done'; state = steps.at(-1)?.state ?? 'done') {
    steps.push(applySmall(view, continueNodeDeletion(view, progress)));
    expect(steps.length).toBeLessThan(100);
  }
  return steps;
}

function allocateOn(view: TestView, nodeName: string, containerId: string): void {
  view.apply(allocate(view, { request: request(containerId, { nodeName }), nowMs: NOW_MS }));
}

function kinds(view: TestView): string[] {
  return view.snapshot().map(([key]) => key);
}

/** Two nodes with 200 addresses each, in blocks of 64, some of them borrowed by the other, and a tunnel each. */
function twoNodes(): TestView {
  const view = new TestView([
    poolRecord('p', '10.0.0.0/24', { vxlanMode: 'Always' }),
    poolRecord('q', '10.0.1.0/24'),
    nodeRecord('n1'),
    nodeRecord('n2'),
  ]);
  for (const nodeName of ['n1', 'n2'])
    view.apply(assignTunnel(view, { nodeName, kind: 'vxlanTunnelAddress', nowMs: NOW_MS }));
  for (let i = 0; i < 200; i++) for (const name of ['n1', 'n2']) allocateOn(view, name, `${name}-${i}`);
  return view;
}

describe('a node that is deleted', () => {
  test('releases all its addresses, in any block, and no other addresses', () => {
    const view = twoNodes();
    const steps = deleteNode(view, 'n1');
    expect(steps.flatMap(({ addresses }) => addresses)).toHaveLength(201);
    expect(steps.filter(({ isRemoved }) => isRemoved)).toHaveLength(1);
    expect(view.node('n1')).toBeUndefined();
    const owners = view.blocks().flatMap(({ attributes }) => attributes.map(({ owner }) => owner.node));
    expect(new Set(owners)).toEqual(new Set(['n2']));
    expect(view.endpoints().map(({ value }) => value.nodeName)).toEqual(Array.from({ length: 200 }, () => 'n2'));
    expect(kinds(view).filter((key) => key.includes('n1'))).toEqual([]);
    expect(view.affinities().every(({ owner }) => owner.name === 'n2')).toBe(true);
    expect(steps.reduce((sum, { blocks }) => sum + blocks, 0)).toBe(4);
  });

  test('leaves nothing when it was alone', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24'), nodeRecord('n1'), config()]);
    allocateOn(view, 'n1', 'c1');
    deleteNode(view, 'n1');
    expect(kinds(view)).toEqual(['config', 'pool p']);
  });

  test('gets nothing afterwards', () => {
    const view = twoNodes();
    begin(view, 'n1');
    expect(failureOf(() => allocateOn(view, 'n1', 'late')).code).toBe('NODE_BEING_DELETED');
  });

  test('also releases what only its affinities and endpoints name', () => {
    const identity = { attachment: attachment('c9'), nodeName: 'n-1', pod: undefined, netns: undefined };
    const value = makeEndpoint({ ...identity, createdAtMs: NOW_MS }, []);
    const orphans: RecordValue[] = [
      { kind: 'affinity', value: affinity('10.0.9.0/26', 'n-1', 'pending') },
      { kind: 'endpoint', key: endpointKey(value), value },
      ...claimedBlock(block('10.0.8.0/26', 'n-1')),
      // Owned, with no affinity.
      { kind: 'block', value: block('10.0.7.0/26', 'n-1') },
    ];
    const unrelated: RecordValue[] = [
      nodeRecord('n'),
      { kind: 'affinity', value: affinity('10.0.6.0/26', 'n', 'pending') },
    ];
    const view = new TestView([poolRecord('p', '10.0.0.0/16'), nodeRecord('n-1'), ...orphans, ...unrelated]);
    deleteNode(view, 'n-1');
    expect(kinds(view)).toEqual(['affinity host:n 10.0.6.0/26', 'node n', 'pool p']);
  });

  test('of the version that was read is deleted, of an older one not', () => {
    const view = new TestView([nodeRecord('n1', { labels: { a: '1' } })]);
    expect(failureOf(() => begin(view, 'n1', versionOf(node('n1')))).code).toBe('STALE_VERSION');
    expect(view.node('n1')?.deletionTimeMs).toBeUndefined();
    begin(view, 'n1', versionOf(node('n1', { labels: { a: '1' } })));
    expect(view.node('n1')?.deletionTimeMs).toBe(Date.parse('2026-08-22T06:33:25Z'));
    // The version before the mark is valid for a repeat.
    expect(begin(view, 'n1', versionOf(node('n1', { labels: { a: '1' } }))).deletionTimeMs).toBeDefined();
  });
});

describe('an unknown node', () => {
  test('without records is not found', () => {
    expect(failureOf(() => begin(new TestView(), 'n1')).code).toBe('NODE_NOT_FOUND');
  });

  test('with records is marked, and deleted like any other', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24')]);
    allocateOn(view, 'n1', 'c1');
    view.apply({ changes: [{ type: 'delete', record: nodeRecord('n1') }], outcome: undefined });
    const marked = begin(view, 'n1');
    expect(marked).toMatchObject({ uid: 'uid-mark', deletionTimeMs: expect.any(Number) });
    expect(failureOf(() => allocateOn(view, 'n1', 'late')).code).toBe('NODE_BEING_DELETED');
    deleteNode(view, 'n1');
    expect(kinds(view)).toEqual(['pool p']);
  });
});

describe('the session of a node', () => {
  test.each([
    ['registered', [nodeRecord('n1')]],
    ['not registered', []],
  ])('goes with it, when the node is %s', (_, records) => {
    const view = new TestView([...records, { kind: 'nodeSession', value: session('n1') }]);
    view.monotonicMs += ALIVE_MS;
    deleteNode(view, 'n1');
    expect(kinds(view)).toEqual([]);
  });

  test('stays while the node runs, so that no other node gets its leases', () => {
    const view = new TestView([nodeRecord('n1'), { kind: 'nodeSession', value: session('n1') }]);
    deleteNode(view, 'n1');
    expect(kinds(view)).toEqual(['session n1']);
  });
});

describe('a node that runs, and has given an address to a pod meanwhile', () => {
  const MARKED_MS = Date.parse('2026-08-22T06:33:25Z');
  let view: TestView;
  let marked: Node;
  const step = (rest: Partial<Parameters<typeof continueNodeDeletion>[1]> = {}) =>
    view.apply(continueNodeDeletion(view, { node: marked, nowMs: NOW_MS, ...rest })).state;
  const put = (value: NodeSession) => view.put({ kind: 'nodeSession', value });
  beforeEach(() => {
    view = new TestView([poolRecord('p', '10.0.0.0/24'), nodeRecord('n1')]);
    allocateOn(view, 'n1', 'c1');
    marked = begin(view, 'n1');
    put(session('n1', { revision: 7, reportedAtMs: MARKED_MS }));
  });

  test('is not deleted', () => {
    expect(step()).toBe('inUse');
    expect(view.node('n1')?.deletionTimeMs).toBeUndefined();
    expect(view.endpoints()).toHaveLength(1);
  });

  test('is deleted if it was asked and did not answer', () => {
    const silent = new Map([['n1', 7]]);
    expect(step({ silent })).toBe('more');
    put(session('n1', { revision: 8 }));
    expect(step({ silent })).not.toBe('inUse');
    expect(view.endpoints()).toEqual([]);
  });

  test('compares the session with each release', () => {
    view.monotonicMs += ALIVE_MS;
    const { changes } = continueNodeDeletion(view, { node: marked, nowMs: NOW_MS });
    expect(changes).toContainEqual({ type: 'expect', record: { kind: 'nodeSession', value: view.session('n1') } });
  });
});

describe('a step', () => {
  test('ends when the node is gone, or replaced by another one of its name', () => {
    const view = new TestView([nodeRecord('n1')]);
    const progress = { node: begin(view, 'n1'), nowMs: NOW_MS };
    view.put(nodeRecord('n1', { uid: 'another' }));
    expect(continueNodeDeletion(view, progress)).toEqual({
      changes: [],
      outcome: { state: 'done', addresses: [], blocks: 0, isRemoved: false },
    });
    expect(view.node('n1')?.uid).toBe('another');
  });

  test('fails when the mark was removed', () => {
    const view = new TestView([nodeRecord('n1')]);
    const progress = { node: begin(view, 'n1'), nowMs: NOW_MS };
    view.put(nodeRecord('n1'));
    expect(failureOf(() => continueNodeDeletion(view, progress)).code).toBe('CONFLICT');
  });

  test('does not remove the record while allocations from before the mark may be unknown', () => {
    const view = new TestView([nodeRecord('n1')]);
    const progress = { node: begin(view, 'n1'), nowMs: NOW_MS };
    view.isBehind = true;
    expect(continueNodeDeletion(view, progress)).toMatchObject({ changes: [], outcome: { state: 'behind' } });
    view.isBehind = false;
    expect(continueNodeDeletion(view, progress).outcome).toMatchObject({ state: 'done', isRemoved: true });
  });

  test('may be interrupted anywhere: the work so far is a prefix, and the rest is left to the next', () => {
    const view = twoNodes();
    const progress = { node: begin(view, 'n1'), nowMs: NOW_MS };
    // Interrupted after each step, and restarted.
    for (let count = 0; view.node('n1'); count++) {
      expect(begin(view, 'n1')).toEqual(progress.node);
      applySmall(view, continueNodeDeletion(view, progress));
      expect(count).toBeLessThan(100);
    }
    expect(view.block(prefix('10.0.0.0/26'))?.attributes.some(({ owner }) => owner.node === 'n1') ?? false).toBe(false);
    expect(view.endpoints()).toHaveLength(200);
  });
});

/** Steps to the end; after each the counts of the handles are correct. @returns the released addresses */
function toTheEnd(view: TestView, step: () => Decision<ReleaseStep>): string[] {
  const addresses: string[] = [];
  for (let steps = 0; steps < 100; steps++) {
    const decision = step();
    expect(decision.changes.length).toBeLessThanOrEqual(128);
    const outcome = view.apply(decision);
    expect(storedHandles(view)).toEqual(countedHandles(view));
    addresses.push(...outcome.addresses.map(formatPrefix));
    if (outcome.state === 'done') {
      expect(decision.changes).toEqual([]);
      return addresses;
    }
  }
  throw new Error('it does not end');
}

const releaseNode = (view: TestView, nodeName = 'n1') =>
  toTheEnd(view, () => continueNodeRelease(view, { nodeName, nowMs: NOW_MS }));
const releasePool = (view: TestView, poolName = 'p') =>
  toTheEnd(view, () => continuePoolRelease(view, { poolName, nowMs: NOW_MS }));

describe('a node releases', () => {
  test('all addresses, endpoints and blocks of its containers, over several transactions, and no other records', () => {
    const view = new TestView([poolRecord('four', '10.0.0.0/22'), poolRecord('six', 'fd00::/118')]);
    for (let i = 0; i < 150; i++)
      view.apply(allocate(view, { request: request(`c${i}`, { families: [4, 6] }), nowMs: NOW_MS }));
    view.apply(allocate(view, { request: request('other', { nodeName: 'n2' }), nowMs: NOW_MS }));
    expect(new Set(releaseNode(view)).size).toBe(300);
    expect(view.all('endpoint').map(({ value }) => value.nodeName)).toEqual(['n2']);
    expect(view.blocks().map(({ owner }) => owner?.name)).toEqual(['n2']);
    expect(view.all('affinity').map(({ value }) => value.owner.name)).toEqual(['n2']);
    expect(view.history).toHaveLength(300);
  });

  test('tunnel and borrowed addresses; its block with addresses of other nodes stays without an owner', () => {
    const own = withAllocations(
      block('10.0.0.0/30', 'n1'),
      { ordinals: [0], attributes: calico('vxlan-tunnel-addr-n1', { node: 'n1', type: 'vxlanTunnelAddress' }) },
      { ordinals: [1], attributes: calico('net.x', { node: 'n2' }) },
    );
    const lent = withAllocations(block('10.0.0.4/30', 'n2'), {
      ordinals: [2],
      attributes: calico('net.y', { node: 'n1' }),
    });
    const view = new TestView([
      poolRecord('p', '10.0.0.0/26', { blockSizeBits: 30 }),
      ...[own, lent, block('10.0.0.8/30', 'n1')].flatMap((each) => claimedBlock(each)),
      handleRecord('vxlan-tunnel-addr-n1', ['10.0.0.0/30', 1]),
      handleRecord('net.x', ['10.0.0.0/30', 1]),
      handleRecord('net.y', ['10.0.0.4/30', 1]),
    ]);
    expect(releaseNode(view)).toEqual(['10.0.0.0/32', '10.0.0.6/32']);
    expect(view.blocks().map(({ prefix: each, owner }) => [formatPrefix(each), owner?.name])).toEqual([
      ['10.0.0.0/30', undefined],
      ['10.0.0.4/30', 'n2'],
    ]);
    expect(view.block(prefix('10.0.0.0/30'))?.claimTimeMs).toBeUndefined();
    expect(Object.keys(storedHandles(view))).toEqual(['net.x']);
    expect(releaseNode(view, 'n2')).toEqual(['10.0.0.1/32']);
    expect(view.blocks()).toEqual([]);
  });

  test('claims without blocks, blocks without claims, and stale claims of other nodes’ blocks', () => {
    const view = new TestView([
      { kind: 'block', value: block('10.0.0.0/30', 'n1') },
      { kind: 'affinity', value: { owner: host('n1'), block: prefix('10.0.0.4/30'), state: 'pending' } },
      ...claimedBlock(block('10.0.0.8/30', 'n2')),
      { kind: 'affinity', value: { owner: host('n1'), block: prefix('10.0.0.8/30'), state: 'pendingDeletion' } },
    ]);
    expect(releaseNode(view)).toEqual([]);
    expect(view.blocks().map(({ owner }) => owner?.name)).toEqual(['n2']);
    expect(view.all('affinity').map(({ value }) => value.owner.name)).toEqual(['n2']);
  });

  test('nothing of a virtual owner of its name', () => {
    const owner = { kind: 'virtual', name: 'n1' } as const;
    const value = block('10.0.0.0/30', 'n1', { owner });
    const view = new TestView([
      { kind: 'block', value },
      { kind: 'affinity', value: { owner, block: value.prefix, state: 'confirmed' } },
    ]);
    expect(releaseNode(view)).toEqual([]);
    expect(view.blocks()).toEqual([value]);
  });

  test('nothing for an unknown node', () => {
    expect(releaseNode(new TestView(), 'unknown')).toEqual([]);
  });

  test('addresses into their cool-down; the block without an owner stays until its end', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26'), config({ cooldownSeconds: 60 })]);
    view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    expect(releaseNode(view)).toEqual(['10.0.0.0/32']);
    expect(view.blocks()).toMatchObject([{ owner: undefined, attributes: [{ handleId: undefined }] }]);
    expect(view.all('affinity')).toEqual([]);
  });
});

describe('a pool releases', () => {
  test('every address of any holder, and keeps its blocks; other nodes keep their blocks', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/24'), poolRecord('q', '10.1.0.0/24')]);
    for (let i = 0; i < 100; i++)
      view.apply(allocate(view, { request: request(`c${i}`, { nodeName: `n${i % 2}`, pools: ['p'] }), nowMs: NOW_MS }));
    view.apply(allocate(view, { request: request('q', { pools: ['q'] }), nowMs: NOW_MS }));
    expect(releasePool(view)).toHaveLength(100);
    expect(view.all('endpoint').map(({ value }) => value.attachment.containerId)).toEqual(['q']);
    expect(view.blocks()).toHaveLength(3);
    expect(releasePool(view, 'nowhere')).toEqual([]);
  });

  test.each([
    ['old', 'new'],
    ['new', 'old'],
  ])('the addresses of a pod’s two sandboxes, %s before %s, with the endpoint of one', (...order) => {
    const pod = { namespace: 'default', name: 'web', uid: '' };
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    for (const id of order) view.apply(allocate(view, { request: request(id, { pod }), nowMs: NOW_MS }));
    // The second took the endpoint over; where the first's address comes first, it does so again.
    view.apply(release(view, attachment(order[0]), NOW_MS));
    for (let i = 0; i < 62; i++) view.apply(allocate(view, { request: request(`x${i}`), nowMs: NOW_MS }));
    view.apply(allocate(view, { request: request(order[0], { pod }), nowMs: NOW_MS }));
    expect(releasePool(view)).toHaveLength(64);
    expect(view.all('endpoint')).toEqual([]);
  });

  test('its blocks and itself with the last address, while it is being deleted', () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26')]);
    for (const id of ['c1', 'c2']) view.apply(allocate(view, { request: request(id), nowMs: NOW_MS }));
    view.put(poolRecord('p', '10.0.0.0/26', { deletionTimeMs: NOW_MS }));
    expect(releasePool(view)).toHaveLength(2);
    expect([view.blocks(), view.all('affinity'), view.pools()]).toEqual([[], [], []]);
  });
});

describe('a block whose pool selects its node no more', () => {
  const ways = {
    'by attachment': (view: TestView, id: string) => view.apply(release(view, attachment(id), NOW_MS)),
    'by handle': (view: TestView, id: string) =>
      view.apply(continueHandleRelease(view, { handleId: `net.${id}`, nowMs: NOW_MS, searchesAllBlocks: false })),
    'by address': (view: TestView, id: string) => {
      const { addresses } = getEndpoint(view, attachment(id));
      const anybody = { handleId: undefined, sequenceNumber: undefined };
      const releases = addresses.map(({ address }) => ({ address, ...anybody }));
      view.apply(continueAddressRelease(view, { releases, nowMs: NOW_MS }));
    },
  };

  test.each(Object.entries(ways))('stays while it has addresses, and is deleted with the last: %s', (_, give) => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26'), nodeRecord('n1', { labels: { rack: 'a' } })]);
    for (const id of ['c1', 'c2', 'c3']) view.apply(allocate(view, { request: request(id), nowMs: NOW_MS }));
    give(view, 'c1');
    view.put(poolRecord('p', '10.0.0.0/26', { nodeSelector: 'rack == "b"' }));
    give(view, 'c2');
    expect([view.blocks().length, view.all('affinity').length]).toEqual([1, 1]);
    give(view, 'c3');
    expect([view.blocks(), view.all('affinity')]).toEqual([[], []]);
  });

  test.each([
    ['selects it', { nodeSelector: 'rack == "a"' }],
    ['has a selector that cannot be read', { nodeSelector: 'rack = b' }],
    ['is disabled', { nodeSelector: 'rack == "b"', disabled: true }],
  ])('stays when the pool %s', (_, rest) => {
    const view = new TestView([poolRecord('p', '10.0.0.0/26'), nodeRecord('n1', { labels: { rack: 'a' } })]);
    view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    view.put(poolRecord('p', '10.0.0.0/26', rest));
    ways['by attachment'](view, 'c1');
    expect([view.blocks().length, view.all('affinity').length]).toEqual([1, 1]);
  });
});

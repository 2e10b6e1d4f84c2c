import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate.js';
import { failureOf } from '../allocator/failure.fixture.js';
import { endpointKey, makeEndpoint } from '../records/endpoint.js';
import { MapView } from '../records/testing/map-view.js';
import { versionOf } from '../records/versions.js';
import type { Decision, RecordValue } from '../records/view.js';
import {
  affinity,
  attachment,
  block,
  claimedBlock,
  config,
  node,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../testing/records.js';
import { beginNodeDeletion, continueNodeDeletion, type NodeDeletionStep } from './deletion.js';
import { assignTunnel } from './tunnels.js';

/** What etcd takes in one transaction. */
const MAX_OPERATIONS = 128;

function begin(view: MapView, name: string, resourceVersion = '') {
  return view.apply(beginNodeDeletion(view, { name, resourceVersion, uid: 'uid-mark', nowMs: NOW_MS }));
}

function applySmall<Outcome>(view: MapView, decision: Decision<Outcome>): Outcome {
  expect(decision.changes.length).toBeLessThanOrEqual(MAX_OPERATIONS);
  return view.apply(decision);
}

/** Deletes to the end. @returns all steps */
function deleteNode(view: MapView, name: string): NodeDeletionStep[] {
  const progress = { node: begin(view, name), nowMs: NOW_MS };
  const steps: NodeDeletionStep[] = [];
  for (let state = 'more'; state !== 'done'; state = steps.at(-1)?.state ?? 'done') {
    steps.push(applySmall(view, continueNodeDeletion(view, progress)));
    expect(steps.length).toBeLessThan(100);
  }
  return steps;
}

function allocateOn(view: MapView, nodeName: string, containerId: string): void {
  view.apply(allocate(view, { request: request(containerId, { nodeName }), nowMs: NOW_MS }));
}

function kinds(view: MapView): string[] {
  return view.snapshot().map(([key]) => key);
}

/** Two nodes with 200 addresses each, in blocks of 64, some of them borrowed by the other, and a tunnel each. */
function twoNodes(): MapView {
  const view = new MapView([
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
  test('gives back all that it holds, in whosever blocks, and nobody else’s', () => {
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

  test('leaves nothing where it was alone', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/24'), nodeRecord('n1'), config()]);
    allocateOn(view, 'n1', 'c1');
    deleteNode(view, 'n1');
    expect(kinds(view)).toEqual(['config', 'pool p']);
  });

  test('gets nothing any more', () => {
    const view = twoNodes();
    begin(view, 'n1');
    expect(failureOf(() => allocateOn(view, 'n1', 'late')).code).toBe('NODE_BEING_DELETED');
  });

  test('also gives up what only its affinities and endpoints name', () => {
    const identity = { attachment: attachment('c9'), nodeName: 'n-1', pod: undefined, netns: undefined };
    const value = makeEndpoint({ ...identity, createdAtMs: NOW_MS }, []);
    const stray: RecordValue[] = [
      { kind: 'affinity', value: affinity('10.0.9.0/26', 'n-1', 'pending') },
      { kind: 'endpoint', key: endpointKey(value), value },
      ...claimedBlock(block('10.0.8.0/26', 'n-1')),
      // Owned, with no affinity.
      { kind: 'block', value: block('10.0.7.0/26', 'n-1') },
    ];
    const others: RecordValue[] = [
      nodeRecord('n'),
      { kind: 'affinity', value: affinity('10.0.6.0/26', 'n', 'pending') },
    ];
    const view = new MapView([poolRecord('p', '10.0.0.0/16'), nodeRecord('n-1'), ...stray, ...others]);
    deleteNode(view, 'n-1');
    expect(kinds(view)).toEqual(['affinity host:n 10.0.6.0/26', 'node n', 'pool p']);
  });

  test('of the version that was read is deleted, of an older one not', () => {
    const view = new MapView([nodeRecord('n1', { labels: { a: '1' } })]);
    expect(failureOf(() => begin(view, 'n1', versionOf(node('n1')))).code).toBe('STALE_VERSION');
    expect(view.node('n1')?.deletionTimeMs).toBeUndefined();
    begin(view, 'n1', versionOf(node('n1', { labels: { a: '1' } })));
    expect(view.node('n1')?.deletionTimeMs).toBe(Date.parse('2026-08-22T06:33:25Z'));
    // The version of before the mark is good for a repeat.
    expect(begin(view, 'n1', versionOf(node('n1', { labels: { a: '1' } }))).deletionTimeMs).toBeDefined();
  });
});

describe('a node that is not known', () => {
  test('and holds nothing is not found', () => {
    expect(failureOf(() => begin(new MapView(), 'n1')).code).toBe('NODE_NOT_FOUND');
  });

  test('but holds something is marked, and deleted as any other', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/24')]);
    allocateOn(view, 'n1', 'c1');
    view.apply({ changes: [{ type: 'delete', record: nodeRecord('n1') }], outcome: undefined });
    const marked = begin(view, 'n1');
    expect(marked).toMatchObject({ uid: 'uid-mark', deletionTimeMs: expect.any(Number) });
    expect(failureOf(() => allocateOn(view, 'n1', 'late')).code).toBe('NODE_BEING_DELETED');
    deleteNode(view, 'n1');
    expect(kinds(view)).toEqual(['pool p']);
  });
});

describe('a step', () => {
  test('ends when the node is gone, or another one of its name', () => {
    const view = new MapView([nodeRecord('n1')]);
    const progress = { node: begin(view, 'n1'), nowMs: NOW_MS };
    view.put(nodeRecord('n1', { uid: 'another' }));
    expect(continueNodeDeletion(view, progress)).toEqual({
      changes: [],
      outcome: { state: 'done', addresses: [], blocks: 0, isRemoved: false },
    });
    expect(view.node('n1')?.uid).toBe('another');
  });

  test('fails when somebody took the mark away', () => {
    const view = new MapView([nodeRecord('n1')]);
    const progress = { node: begin(view, 'n1'), nowMs: NOW_MS };
    view.put(nodeRecord('n1'));
    expect(failureOf(() => continueNodeDeletion(view, progress)).code).toBe('CONFLICT');
  });

  test('does not remove the record while what was given before the mark may be unknown', () => {
    const view = new MapView([nodeRecord('n1')]);
    const progress = { node: begin(view, 'n1'), nowMs: NOW_MS };
    view.isBehind = true;
    expect(continueNodeDeletion(view, progress)).toMatchObject({ changes: [], outcome: { state: 'behind' } });
    view.isBehind = false;
    expect(continueNodeDeletion(view, progress).outcome).toMatchObject({ state: 'done', isRemoved: true });
  });

  test('of any number may come at any time: the prefix of what they do is what is left to the next', () => {
    const view = twoNodes();
    const progress = { node: begin(view, 'n1'), nowMs: NOW_MS };
    // Cut off after each step, and begun anew.
    for (let count = 0; view.node('n1'); count++) {
      expect(begin(view, 'n1')).toEqual(progress.node);
      applySmall(view, continueNodeDeletion(view, progress));
      expect(count).toBeLessThan(100);
    }
    expect(view.block(prefix('10.0.0.0/26'))?.attributes.some(({ owner }) => owner.node === 'n1') ?? false).toBe(false);
    expect(view.endpoints()).toHaveLength(200);
  });
});

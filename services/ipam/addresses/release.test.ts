import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { MapView } from '../records/testing/map-view.js';
import {
  affinity,
  attachment,
  block,
  claimedBlock,
  host,
  NOW_MS,
  poolRecord,
  prefix,
  request,
  takeAddress,
} from '../testing/records.js';
import { allocate, type AllocationRequest } from './allocate.js';
import { release } from './release.js';

const add = (view: MapView, asked: AllocationRequest) => view.apply(allocate(view, { request: asked, nowMs: NOW_MS }));
/** Prevents an allocation in flight from completing after the release. */
const onlyMark = (handleId: string) => ({
  changes: [{ type: 'release', handleId, nowMs: NOW_MS }],
  outcome: { addresses: [] },
});
const onePool = () => new MapView([poolRecord('p', '10.0.0.0/26')]);

test('releases every address, the handle and the endpoint; the block stays with its node', () => {
  const view = new MapView([poolRecord('four', '10.0.0.0/26'), poolRecord('six', 'fd00::/122')]);
  add(view, request('c1', { families: [4, 6] }));
  const { addresses } = view.apply(release(view, attachment('c1'), NOW_MS));
  expect(addresses.map(formatPrefix)).toEqual(['10.0.0.0/32', 'fd00::/128']);
  expect(view.all('handle')).toEqual([]);
  expect(view.all('endpoint')).toEqual([]);
  expect(view.affinitiesOf(host('n1'))).toEqual([affinity('10.0.0.0/26', 'n1'), affinity('fd00::/122', 'n1')]);
  expect(view.blocks().map(({ unallocated }) => unallocated.at(-1))).toEqual([0, 0]);
});

test('of nothing, or a second time, changes nothing', () => {
  const view = onePool();
  add(view, request('c1'));
  view.apply(release(view, attachment('c1'), NOW_MS));
  expect(release(view, attachment('c1'), NOW_MS)).toEqual(onlyMark('net.c1'));
  expect(release(view, attachment('never'), NOW_MS)).toEqual(onlyMark('net.never'));
});

test('a late second release does not free the address that another got meanwhile', () => {
  const view = new MapView([poolRecord('p', '10.0.0.0/32', { blockSizeBits: 32 })]);
  add(view, request('c1'));
  view.apply(release(view, attachment('c1'), NOW_MS));
  const second = add(view, request('c2'));
  expect(release(view, attachment('c1'), NOW_MS)).toEqual(onlyMark('net.c1'));
  expect(view.endpoint({ namespace: 'default', name: 'n1-k8s-pod--c2-eth0' })).toEqual(second.endpoint);
});

test('deletes a block without an owner when it becomes empty, not before', () => {
  const view = onePool();
  add(view, request('c1'));
  add(view, request('c2'));
  const [owned] = view.blocks();
  view.put({ kind: 'block', value: { ...owned!, owner: undefined } });
  view.apply(release(view, attachment('c1'), NOW_MS));
  expect(view.blocks()).toHaveLength(1);
  view.apply(release(view, attachment('c2'), NOW_MS));
  expect(view.blocks()).toEqual([]);
});

test('works after the pool was deleted', () => {
  const view = onePool();
  add(view, request('c1'));
  view.records.delete('pool p');
  expect(view.apply(release(view, attachment('c1'), NOW_MS)).addresses.map(formatPrefix)).toEqual(['10.0.0.0/32']);
});

describe('wrong counts of a handle', () => {
  test('are deleted with the release: a missing block, and a count that is too high', () => {
    const view = onePool();
    add(view, request('c1'));
    const blocks = new Map([
      ['10.0.0.0/26', 5],
      ['10.9.0.0/26', 1],
    ]);
    view.put({ kind: 'handle', value: { id: 'net.c1', blocks } });
    view.apply(release(view, attachment('c1'), NOW_MS));
    expect(view.all('handle')).toEqual([]);
  });

  test('are deleted also when there is nothing to release', () => {
    const view = onePool();
    view.put({ kind: 'handle', value: { id: 'net.c1', blocks: new Map([['10.9.0.0/26', 1]]) } });
    const { addresses } = view.apply(release(view, attachment('c1'), NOW_MS));
    expect(addresses).toEqual([]);
    expect(view.all('handle')).toEqual([]);
  });
});

test('leaves addresses that cool down in the same block, and their queue, unchanged', () => {
  const cooling = { handleId: undefined, owner: {}, releasedAtMs: NOW_MS - 1000 };
  const taken = takeAddress(block('10.0.0.0/26', 'n1'), cooling)!.block;
  const config = { strictAffinity: false, autoAllocateBlocks: true, maxBlocksPerHostCount: 0, cooldownSeconds: 60 };
  const view = new MapView([poolRecord('p', '10.0.0.0/26'), ...claimedBlock(taken), { kind: 'config', value: config }]);
  add(view, request('c1'));
  view.apply(release(view, attachment('c1'), NOW_MS));
  expect(view.block(prefix('10.0.0.0/26'))).toMatchObject({
    attributes: [cooling, { ...cooling, releasedAtMs: Date.parse('2026-08-22T06:33:25Z') }],
    sequenceNumber: taken.sequenceNumber + 2n,
  });
  expect(view.block(prefix('10.0.0.0/26'))!.unallocated).not.toContain(0);
});

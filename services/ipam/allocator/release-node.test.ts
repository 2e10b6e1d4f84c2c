import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { allocate } from '../addresses/allocate.js';
import { release } from '../addresses/release.js';
import { MapView } from '../records/testing/map-view.js';
import type { Decision } from '../records/view.js';
import { calico, countedHandles, given, handleRecord, storedHandles } from '../testing/allocations.js';
import {
  attachment,
  block,
  claimedBlock,
  config,
  host,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../testing/records.js';
import { getEndpoint } from './listing.js';
import { continueAddressRelease } from './release-addresses.js';
import { continueHandleRelease } from './release-handle.js';
import { continueNodeRelease, type ReleaseStep } from './release-node.js';
import { continuePoolRelease } from './release-pool.js';

/** Steps to the end; after each the counts of the handles are right. @returns what was given back */
function toTheEnd(view: MapView, step: () => Decision<ReleaseStep>): string[] {
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

const releaseNode = (view: MapView, nodeName = 'n1') =>
  toTheEnd(view, () => continueNodeRelease(view, { nodeName, nowMs: NOW_MS }));
const releasePool = (view: MapView, poolName = 'p') =>
  toTheEnd(view, () => continuePoolRelease(view, { poolName, nowMs: NOW_MS }));

describe('a node gives back', () => {
  test('all its containers’ addresses, endpoints and blocks, more than a transaction takes, and nobody else’s', () => {
    const view = new MapView([poolRecord('four', '10.0.0.0/22'), poolRecord('six', 'fd00::/118')]);
    for (let i = 0; i < 150; i++)
      view.apply(allocate(view, { request: request(`c${i}`, { families: [4, 6] }), nowMs: NOW_MS }));
    view.apply(allocate(view, { request: request('other', { nodeName: 'n2' }), nowMs: NOW_MS }));
    expect(new Set(releaseNode(view)).size).toBe(300);
    expect(view.all('endpoint').map(({ value }) => value.nodeName)).toEqual(['n2']);
    expect(view.blocks().map(({ owner }) => owner?.name)).toEqual(['n2']);
    expect(view.all('affinity').map(({ value }) => value.owner.name)).toEqual(['n2']);
    expect(view.history).toHaveLength(300);
  });

  test('tunnel addresses and what it borrowed; its block in which others hold addresses stays without an owner', () => {
    const own = given(
      block('10.0.0.0/30', 'n1'),
      { ordinals: [0], attributes: calico('vxlan-tunnel-addr-n1', { node: 'n1', type: 'vxlanTunnelAddress' }) },
      { ordinals: [1], attributes: calico('net.x', { node: 'n2' }) },
    );
    const others = given(block('10.0.0.4/30', 'n2'), { ordinals: [2], attributes: calico('net.y', { node: 'n1' }) });
    const view = new MapView([
      poolRecord('p', '10.0.0.0/26', { blockSizeBits: 30 }),
      ...[own, others, block('10.0.0.8/30', 'n1')].flatMap((each) => claimedBlock(each)),
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

  test('claims without blocks, blocks without claims, and stale claims of others’ blocks', () => {
    const view = new MapView([
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
    const view = new MapView([
      { kind: 'block', value },
      { kind: 'affinity', value: { owner, block: value.prefix, state: 'confirmed' } },
    ]);
    expect(releaseNode(view)).toEqual([]);
    expect(view.blocks()).toEqual([value]);
  });

  test('nothing when nobody knows it', () => {
    expect(releaseNode(new MapView(), 'nobody')).toEqual([]);
  });

  test('addresses into their cool-down, and the block, which is nobody’s, waits for its end', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/26'), config({ cooldownSeconds: 60 })]);
    view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    expect(releaseNode(view)).toEqual(['10.0.0.0/32']);
    expect(view.blocks()).toMatchObject([{ owner: undefined, attributes: [{ handleId: undefined }] }]);
    expect(view.all('affinity')).toEqual([]);
  });
});

describe('a pool gives back', () => {
  test('every address, whoever’s, and keeps its blocks; others keep theirs', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/24'), poolRecord('q', '10.1.0.0/24')]);
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
    const view = new MapView([poolRecord('p', '10.0.0.0/26')]);
    for (const id of order) view.apply(allocate(view, { request: request(id, { pod }), nowMs: NOW_MS }));
    // The second took the endpoint over; where it is the first's address that comes first, so it does again.
    view.apply(release(view, attachment(order[0]), NOW_MS));
    for (let i = 0; i < 62; i++) view.apply(allocate(view, { request: request(`x${i}`), nowMs: NOW_MS }));
    view.apply(allocate(view, { request: request(order[0], { pod }), nowMs: NOW_MS }));
    expect(releasePool(view)).toHaveLength(64);
    expect(view.all('endpoint')).toEqual([]);
  });

  test('its blocks and itself with the last address, while it is being deleted', () => {
    const view = new MapView([poolRecord('p', '10.0.0.0/26')]);
    for (const id of ['c1', 'c2']) view.apply(allocate(view, { request: request(id), nowMs: NOW_MS }));
    view.put(poolRecord('p', '10.0.0.0/26', { deletionTimeMs: NOW_MS }));
    expect(releasePool(view)).toHaveLength(2);
    expect([view.blocks(), view.all('affinity'), view.pools()]).toEqual([[], [], []]);
  });
});

describe('a block whose pool selects its node no more', () => {
  const ways = {
    'by attachment': (view: MapView, id: string) => view.apply(release(view, attachment(id), NOW_MS)),
    'by handle': (view: MapView, id: string) =>
      view.apply(continueHandleRelease(view, { handleId: `net.${id}`, nowMs: NOW_MS, searchesAllBlocks: false })),
    'by address': (view: MapView, id: string) => {
      const { addresses } = getEndpoint(view, attachment(id));
      const anybody = { handleId: undefined, sequenceNumber: undefined };
      const releases = addresses.map(({ address }) => ({ address, ...anybody }));
      view.apply(continueAddressRelease(view, { releases, nowMs: NOW_MS }));
    },
  };

  test.each(Object.entries(ways))('stays while it has addresses, and goes with the last: %s', (_, give) => {
    const view = new MapView([poolRecord('p', '10.0.0.0/26'), nodeRecord('n1', { labels: { rack: 'a' } })]);
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
    const view = new MapView([poolRecord('p', '10.0.0.0/26'), nodeRecord('n1', { labels: { rack: 'a' } })]);
    view.apply(allocate(view, { request: request('c1'), nowMs: NOW_MS }));
    view.put(poolRecord('p', '10.0.0.0/26', rest));
    ways['by attachment'](view, 'c1');
    expect([view.blocks().length, view.all('affinity').length]).toEqual([1, 1]);
  });
});

import { describe, expect, test } from 'vitest';

import type { ForeignEndpoint } from '../records/endpoint.js';
import { leaseAttributes } from '../records/lease.js';
import type { TestView } from '../testing/test-view.js';
import {
  audit,
  calicoAttributes,
  drop,
  found,
  GRACE_MS,
  handleRecord,
  healthyView,
  LATER_MS,
  repairAll,
  takeUnrecorded,
} from '../testing/damages.js';
import { block, claimedBlock, foreignRecord, NOW_MS, prefix } from '../testing/records.js';
import { repair } from './repair.js';

const CIDR = 'fd00::c/126';
const ADDRESS = 'fd00::c';

/** A healthy view with an address of Calico's own plugin, and endpoints that may use it. */
function withCalico(...endpoints: Partial<ForeignEndpoint>[]): TestView {
  const view = healthyView();
  claimedBlock(takeUnrecorded(block(CIDR, 'n1'), calicoAttributes('c9', 'web'))).forEach((record) => view.put(record));
  view.put(handleRecord('k8s-pod-network.c9', { [CIDR]: 1 }));
  endpoints.forEach((endpoint, index) => view.put(foreignRecord(`e${index}`, endpoint)));
  return view;
}

describe('a lease', () => {
  const leased = (nodeName: string, kept = true): TestView => {
    const view = healthyView();
    const attributes = leaseAttributes({ nodeName, bootId: 'b', nowMs: NOW_MS });
    claimedBlock(takeUnrecorded(block(CIDR, 'n1'), attributes)).forEach((record) => view.put(record));
    if (kept) view.put(handleRecord(`podwire-lease.${nodeName}`, { [CIDR]: 1 }));
    return view;
  };

  test('of a registered node is in use without a pod', () => {
    expect(found(leased('n1'))).toEqual([]);
  });

  test('of an unknown node is released on request, after the grace period', () => {
    const view = leased('n9');
    expect(found(view, NOW_MS + GRACE_MS - 1)).toEqual([]);
    expect(repairAll(view, { releases: false })).toMatchObject([
      { state: 'refused' },
      { state: 'refused' },
      { state: 'refused' },
    ]);
    expect(found(view)).toEqual([`leaseOfGoneNode ${ADDRESS}`]);
    repairAll(view);
    expect(found(view)).toEqual([]);
    expect(view.handle('podwire-lease.n9')).toBeUndefined();
  });

  test('of an unknown node stays where no node is registered', () => {
    const view = leased('n9');
    drop(view, 'node');
    expect(found(view)).toEqual([]);
  });

  test('whose handle is missing gets it back', () => {
    const view = leased('n1', false);
    expect(found(view)).toEqual(['handleMissing podwire-lease.n1']);
    repairAll(view);
    expect(found(view)).toEqual([]);
    expect(view.handle('podwire-lease.n1')?.blocks).toEqual(new Map([[CIDR, 1]]));
  });
});

const ITS_ADDRESS = [prefix(`${ADDRESS}/128`)];

describe('an address of Calico’s own plugin', () => {
  test('is unused when no endpoint names it, its container or its pod', () => {
    expect(found(withCalico())).toEqual([`allocationUnused ${ADDRESS}`]);
    const otherPods = [{ podName: 'other' }, { podName: 'web', nodeName: 'n2' }, { containerId: 'c8' }];
    expect(found(withCalico(...otherPods))).toEqual([`allocationUnused ${ADDRESS}`]);
  });

  test.each<[string, Partial<ForeignEndpoint>]>([
    ['the address', { addresses: ITS_ADDRESS }],
    ['the container', { containerId: 'c9' }],
    ['the pod, which may get its address later', { podName: 'web' }],
  ])('is used when an endpoint names %s', (_, endpoint) => {
    expect(found(withCalico(endpoint))).toEqual([]);
  });

  test('is not reported as unused while an endpoint cannot be read', () => {
    const view = withCalico();
    const key = { namespace: 'default', name: 'x' };
    view.setAside({ kind: 'endpoint', key }, 'no');
    expect(found(view)).toEqual([
      'recordUnreadable /calico/resources/v3/projectcalico.org/workloadendpoints/default/x',
    ]);
  });

  test('is of two owners when another pod’s endpoint names it', () => {
    expect(found(withCalico({ podName: 'other', addresses: ITS_ADDRESS }))).toEqual([
      `addressOfSeveralOwners ${ADDRESS}`,
    ]);
  });
});

test('an endpoint of another writer may use an address outside the pools, and not a free one', () => {
  const view = withCalico({ addresses: [...ITS_ADDRESS, prefix('192.168.7.7/32'), prefix('fd00::d/128')] });
  expect(found(view)).toEqual(['addressOutsidePools 192.168.7.7', 'addressUnallocated fd00::d']);
  expect(repairAll(view).map(({ state }) => state)).not.toContain('repaired');
});

describe('an allocation that is unused', () => {
  /** Its container is on a deleted node. */
  function withoutEndpoints(): TestView {
    const view = healthyView();
    drop(view, 'endpoint', (record) => record.kind === 'endpoint' && record.value.attachment.containerId === 'c3');
    drop(view, 'node', (record) => record.kind === 'node' && record.value.name === 'n2');
    return view;
  }
  const unused = (nowMs: number) =>
    found(withoutEndpoints(), nowMs).filter((text) => text.startsWith('allocationUnused')).length;

  test('is not judged before the grace is over', () => {
    expect([unused(NOW_MS), unused(NOW_MS + GRACE_MS - 1000), unused(NOW_MS + GRACE_MS)]).toEqual([0, 0, 1]);
  });

  test('is given back only if that is asked for', () => {
    const view = withoutEndpoints();
    const before = view.snapshot();
    const results = repairAll(view, { releases: false, passes: 1 });
    expect(results).toContainEqual({ state: 'refused', reason: expect.stringContaining('must be requested') });
    expect(results.filter(({ state }) => state !== 'refused')).toEqual([]);
    expect(view.snapshot()).toEqual(before);
  });

  test('stays when another address of its handle is in use', () => {
    const view = withCalico({ addresses: ITS_ADDRESS });
    const known = view.block(prefix(CIDR))!;
    const second = takeUnrecorded(known, calicoAttributes('c9', 'web-2'));
    view.put({ kind: 'block', value: second });
    view.put(handleRecord('k8s-pod-network.c9', { [CIDR]: 2 }));
    view.put(foreignRecord('e0', { addresses: ITS_ADDRESS, podName: 'web' }));
    expect(found(view)).toEqual(['allocationUnused fd00::d']);
    expect(repairAll(view, { passes: 1 })).toMatchObject([
      { state: 'refused', reason: expect.stringContaining('of the same handle is in use') },
    ]);
  });
});

test('an allocation without a time is released after being seen unused for the grace period', () => {
  const view = withCalico();
  const { attributes, ...rest } = view.block(prefix(CIDR))!;
  const ageless = attributes.map((entry) => ({ ...entry, owner: { ...entry.owner, timestamp: 'yesterday' } }));
  view.put({ kind: 'block', value: { ...rest, attributes: ageless } });
  const [finding] = audit(view);
  const input = { finding: finding!, nowMs: LATER_MS, graceMs: GRACE_MS, releases: true, dryRun: false };
  const stateAfter = (seenMs: number) => repair(view, { ...input, seenMs }).outcome.state;
  expect([stateAfter(0), stateAfter(GRACE_MS - 1)]).toEqual(['refused', 'refused']);
  expect(stateAfter(GRACE_MS)).toBe('repaired');
});

test('an unreadable block leads to no finding', () => {
  const view = healthyView();
  const lost = view.blocks()[0]!;
  drop(view, 'block', (record) => record.kind === 'block' && record.value === lost);
  view.setAside({ kind: 'block', prefix: lost.prefix }, 'no');
  expect(audit(view).map(({ kind }) => kind)).toEqual(['recordUnreadable']);
});

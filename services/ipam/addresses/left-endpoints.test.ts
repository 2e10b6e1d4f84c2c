import { describe, expect, test } from 'vitest';

import { beginNodeDeletion, continueNodeDeletion } from '../nodes/deletion.js';
import type { ForeignEndpoint } from '../records/endpoint.js';
import { address, handleRecord, releaseOutOfBand } from '../testing/allocations.js';
import { calicoAttributes, found, repairAll, takeUnrecorded } from '../testing/damages.js';
import {
  attachment,
  block,
  claimedBlock,
  foreignRecord,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { allocate } from './allocate/allocate.js';
import { continueAddressRelease, continueHandleRelease, release } from './release.js';

const nowMs = NOW_MS;
const releaseAttachment = (view: TestView) => void view.apply(release(view, attachment('c1'), nowMs));
const releaseHandle = (view: TestView) =>
  void view.apply(continueHandleRelease(view, { handleId: 'net.c1', nowMs, searchesAllBlocks: false }));

function deleteNode(view: TestView, name: string): void {
  const node = view.apply(beginNodeDeletion(view, { name, resourceVersion: '', uid: 'u', nowMs }));
  while (view.apply(continueNodeDeletion(view, { node, nowMs })).state === 'more');
}

describe('an endpoint whose address another tool released', () => {
  const started = () => {
    const view = new TestView([poolRecord('p', '10.0.0.0/30', { blockSizeBits: 30 }), nodeRecord('n1')]);
    const { endpoint } = view.apply(allocate(view, { request: request('c1'), nowMs }));
    releaseOutOfBand(view, '10.0.0.0');
    return { view, endpoint };
  };
  const heir = (view: TestView) => {
    const wanted = request('c2', { addresses: [address('10.0.0.0')] });
    return view.apply(allocate(view, { request: wanted, nowMs })).endpoint;
  };
  const { sequenceNumber = 0n } = started().endpoint.addresses[0] ?? {};
  const releaseNamed = (view: TestView, offset = 0n) => {
    const named = { address: address('10.0.0.0'), handleId: 'net.c1', sequenceNumber: sequenceNumber + offset };
    return view.apply(continueAddressRelease(view, { releases: [named], nowMs }));
  };

  describe.each([
    ['the attachment', releaseAttachment],
    ['its handle', releaseHandle],
    ['the allocation that it names', (view: TestView) => void releaseNamed(view)],
    ['its node', (view: TestView) => deleteNode(view, 'n1')],
  ])('is deleted with a release of %s', (_, run) => {
    test('while the address is free', () => {
      const { view } = started();
      run(view);
      expect(view.endpoints()).toEqual([]);
      expect(found(view)).toEqual([]);
    });

    test('but not the endpoint of another container that has the address by then', () => {
      const { view } = started();
      const other = heir(view);
      run(view);
      const left = view.endpoints().map(({ value }) => value);
      expect(left.filter(({ attachment: { containerId } }) => containerId === 'c1')).toEqual([]);
      // The node's release covers both.
      if (view.node('n1')) expect(left).toEqual([other]);
    });
  });

  test('stays when another allocation of the address is named', () => {
    const { view, endpoint } = started();
    expect(releaseNamed(view, 1n).results).toEqual([{ state: 'notAllocated' }]);
    expect(view.endpoints().map(({ value }) => value)).toEqual([endpoint]);
  });

  test('is reported for each of many releases separately', () => {
    const { view } = started();
    heir(view);
    const third = view.apply(allocate(view, { request: request('c3'), nowMs })).endpoint;
    const releases = [
      { address: address('10.0.0.3'), handleId: undefined, sequenceNumber: undefined },
      { address: address('10.0.0.0'), handleId: 'net.c1', sequenceNumber },
      { address: third.addresses[0]!.address, handleId: 'net.c3', sequenceNumber: undefined },
    ];
    const results: string[] = [];
    while (results.length < releases.length) {
      const step = continueAddressRelease(view, { releases: releases.slice(results.length), nowMs });
      results.push(...view.apply(step).results.map(({ state }) => state));
    }
    expect(results).toEqual(['notAllocated', 'mismatch', 'released']);
    expect(view.endpoints().map(({ value }) => value.attachment.containerId)).toEqual(['c2']);
  });

  test('is repaired once another container has the address: it is deleted, and the other keeps its records', () => {
    const { view } = started();
    const other = heir(view);
    expect(found(view)).toEqual(['addressOfSeveralOwners 10.0.0.0']);
    expect(repairAll(view, { releases: false, passes: 1 })).toMatchObject([{ state: 'repaired' }]);
    expect(view.endpoints().map(({ value }) => value)).toEqual([other]);
    expect(found(view)).toEqual([]);
  });
});

describe('an endpoint that Calico wrote', () => {
  const CIDR = '10.0.0.0/30';
  const theirs: Partial<ForeignEndpoint> = { containerId: 'c1', podName: 'web', addresses: [prefix('10.0.0.0/32')] };
  const started = (handleId = 'net.c1', rest: Partial<ForeignEndpoint> = {}) => {
    const taken = takeUnrecorded(block(CIDR, 'n1'), { ...calicoAttributes('c1', 'web'), handleId });
    return new TestView([
      poolRecord('p', '10.0.0.0/30', { blockSizeBits: 30 }),
      nodeRecord('n1'),
      nodeRecord('n2'),
      ...claimedBlock(taken),
      handleRecord(handleId, [CIDR, 1]),
      foreignRecord('n1-k8s-web-eth0', { ...theirs, ...rest }),
    ]);
  };

  test.each([
    ['the attachment', releaseAttachment],
    ['its handle', releaseHandle],
    ['its node', (view: TestView) => deleteNode(view, 'n1')],
  ])('is deleted with a release of %s', (_, run) => {
    const view = started();
    run(view);
    expect(view.foreignEndpoints()).toEqual([]);
    expect(found(view)).toEqual([]);
  });

  test('is deleted when its address was released before', () => {
    const view = started();
    releaseOutOfBand(view, '10.0.0.0');
    releaseAttachment(view);
    expect(view.foreignEndpoints()).toEqual([]);
  });

  test.each([
    ['another network of the container', started('calico.c1')],
    ['another network’s virtual machine', started('calico.vmi.default.vm1')],
    ['another interface of the container', started('calico.c1', { interfaceName: 'eth1' })],
    ['another container', started('net.c9', { containerId: 'c9' })],
  ])('stays when the attachment of %s is released', (_, view) => {
    const before = view.snapshot();
    releaseAttachment(view);
    expect(view.snapshot()).toEqual(before);
  });

  test('stays when another node is deleted', () => {
    const view = started();
    deleteNode(view, 'n2');
    expect(view.foreignEndpoints()).toHaveLength(1);
  });

  test('returns when a later ADD for the same pod is undone, while its container holds its address', () => {
    const view = started('calico.c1');
    const before = view.snapshot().filter(([, { kind }]) => kind !== 'block');
    const second = request('c2', { pod: { namespace: 'default', name: 'web', uid: '' } });
    const undo = () => void view.apply(release(view, second.attachment, nowMs));
    view.apply(allocate(view, { request: second, nowMs }));
    expect(view.foreignEndpoints()).toEqual([]);
    undo();
    expect(view.snapshot().filter(([, { kind }]) => kind !== 'block')).toEqual(before);
    view.apply(allocate(view, { request: second, nowMs }));
    releaseOutOfBand(view, '10.0.0.0');
    undo();
    expect([...view.foreignEndpoints(), ...view.endpoints()]).toEqual([]);
  });

  test.each([
    ['whose address is free', (view: TestView) => releaseOutOfBand(view, '10.0.0.0')],
    [
      'whose address another pod has',
      (view: TestView) => {
        releaseOutOfBand(view, '10.0.0.0');
        view.apply(allocate(view, { request: request('c2', { addresses: [address('10.0.0.0')] }), nowMs }));
      },
    ],
    ['of a deleted node', (view: TestView) => view.remove({ kind: 'node', name: 'n1' })],
  ])('%s is removed only by a repair with releases enabled', (_, damage) => {
    const view = started('calico.c1');
    damage(view);
    const before = found(view).length;
    expect(before).toBeGreaterThan(0);
    repairAll(view, { releases: false });
    expect(view.foreignEndpoints()).toHaveLength(1);
    repairAll(view);
    expect(view.foreignEndpoints()).toEqual([]);
    expect(found(view)).toEqual([]);
  });

  test('is kept while it names another address that its container holds, or that is in no pool', () => {
    for (const other of ['10.0.0.0/32', '192.168.7.7/32']) {
      const view = started('calico.c1', { addresses: [prefix(other), prefix('10.0.0.1/32')] });
      expect(found(view)).toContain('addressUnallocated 10.0.0.1');
      repairAll(view);
      expect(view.foreignEndpoints()).toHaveLength(1);
    }
  });
});

describe('the address of a virtual machine', () => {
  const CIDR = '10.0.0.0/30';
  const handleId = 'k8s-pod-network.vmi.default.vm1';
  const { owner } = calicoAttributes('c1', 'virt-launcher-vm1');

  test.each([
    ['named by the attributes', { handleId, owner: { ...owner, 'vmi-name': 'vm1', 'vm-uid': 'u' } }],
    ['of a stopped machine, named by the handle only', { handleId, owner: {} }],
    ['with a name too long for its handle', { handleId: 'net.vmi._0a1b', owner }],
  ])('%s is reported as unexplained, and stays', (_, attributes) => {
    const view = new TestView([
      poolRecord('p', '10.0.0.0/30', { blockSizeBits: 30 }),
      ...claimedBlock(takeUnrecorded(block(CIDR, 'n1'), attributes)),
      handleRecord(attributes.handleId, [CIDR, 1]),
    ]);
    expect(found(view)).toEqual(['allocationUnexplained 10.0.0.0']);
    repairAll(view);
    view.put(nodeRecord('n1'));
    deleteNode(view, 'n1');
    expect(view.handle(attributes.handleId)).toBeDefined();
  });
});

import { expect, it } from 'vitest';

import { isLease, isLeaseOf, leaseAttributes, leaseBootId, leaseHandle } from './lease.js';

it('names node and boot in the attributes of a lease', () => {
  const attributes = leaseAttributes({ nodeName: 'node-1', bootId: 'b1', nowMs: Date.UTC(2026, 0, 2, 3, 4, 5) });
  expect(attributes).toEqual({
    handleId: 'podwire-lease.node-1',
    owner: { node: 'node-1', type: 'podwireLease', 'boot-id': 'b1', timestamp: '2026-01-02 03:04:05 +0000 UTC' },
    releasedAtMs: undefined,
  });
  expect(isLease(attributes)).toBe(true);
  expect(leaseBootId(attributes)).toBe('b1');
});

it('distinguishes leases from other allocations', () => {
  expect(leaseHandle('a.b')).toBe('podwire-lease.a.b');
  for (const handleId of [undefined, 'k8s-pod-network.0123', 'podwire-leased.node-1', 'my.podwire-lease.node-1'])
    expect(isLease({ handleId, owner: {} })).toBe(false);
  expect(leaseBootId({ owner: {} })).toBe('');
});

it('distinguishes the leases of a node from another node’s, and from an attachment of the same handle', () => {
  const attributes = leaseAttributes({ nodeName: 'node-1', bootId: 'b1', nowMs: 0 });
  expect(isLeaseOf('node-1')(attributes)).toBe(true);
  expect(isLeaseOf('node-2')(attributes)).toBe(false);
  const attached = { ...attributes, owner: { network: 'podwire-lease', interface: 'eth0' } };
  expect([isLease(attached), isLeaseOf('node-1')(attached)]).toEqual([false, false]);
});

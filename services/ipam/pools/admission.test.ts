import { expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { Snapshot } from '../engine/mirror/snapshot.js';
import { parseAddress } from '@podwire/shared/net/address';
import { RecordKeys } from '../records/json/keys.js';
import type { Pool, PoolCondition } from '../records/pool.js';
import type { RecordValue } from '../records/view.js';
import { block, failureOf, nodeRecord, NOW_MS, pool, prefix, request } from '../testing/records.js';
import { PoolAdmission, poolStatuses } from './admission.js';

const keys = new RecordKeys('/calico');
const ALLOCATABLE: PoolCondition = { isAllocatable: true, isOwn: true };
const REFUSED: PoolCondition = { isAllocatable: false, isOwn: true };

const blockRecord = (cidr: string): RecordValue => ({ kind: 'block', value: block(cidr, 'n1') });

function admissionOf(...services: readonly string[]): PoolAdmission {
  return new PoolAdmission(
    services.flatMap((text) => {
      const address = parseAddress(text);
      return address ? [{ name: 'the API server', address } as const] : [];
    }),
  );
}

/** A view whose pools were written by other tools. */
function viewOf(pools: readonly Pool[], records: readonly RecordValue[] = [], admission = admissionOf()): Snapshot {
  const view = new Snapshot(keys, () => true, undefined, admission.apply);
  const values = [...pools.map((value): RecordValue => ({ kind: 'pool', value })), ...records];
  for (const record of values) view.set(keys.of(record), record);
  return view;
}

/** Reasons of the conditions by pool. */
function reasons(view: Snapshot, admission = admissionOf()): Record<string, string> {
  return Object.fromEntries(poolStatuses(view, admission).map(({ name, reason }) => [name, reason]));
}

const older = (name: string, rest: Partial<Pool> = {}) => pool(name, '10.0.0.0/16', { createTimeMs: 1000, ...rest });
const newer = (name: string, rest: Partial<Pool> = {}) => pool(name, '10.0.1.0/24', { createTimeMs: 2000, ...rest });

test.each<[string, Pool, Pool, string]>([
  ['the older one', older('b'), newer('a'), 'b'],
  ['of the same age the first by name', older('b'), newer('a', { createTimeMs: 1000 }), 'a'],
  ['the allocatable one', older('b'), newer('a', { condition: ALLOCATABLE }), 'a'],
  ['the refused one before a new one', older('b'), newer('a', { condition: REFUSED }), 'a'],
])('of two overlapping pools %s serves', (_, a, b, name) => {
  const other = name === a.name ? b.name : a.name;
  const view = viewOf([a, b]);
  expect(reasons(view)).toEqual({ [name]: 'OK', [other]: 'CIDROverlap' });
  expect(view.pool(name)?.notAllocatable).toBeUndefined();
  expect(view.pool(other)?.notAllocatable).toContain(`overlaps pool "${name}"`);
});

test('a disabled pool makes way, and one that is being deleted does not', () => {
  expect(reasons(viewOf([older('a', { disabled: true }), newer('b')]))).toEqual({ a: 'PoolDisabled', b: 'OK' });
  const view = viewOf([newer('a', { deletionTimeMs: NOW_MS, disabled: true }), older('b')]);
  expect(reasons(view)).toEqual({ a: 'Terminating', b: 'CIDROverlap' });
  expect(view.pool('b')?.notAllocatable).toContain('which is being deleted and is removed with its last address');
});

test('a pool serves again at once when the pool that it overlaps is gone', () => {
  const view = viewOf([older('a'), newer('b', { condition: REFUSED, notAllocatable: 'an earlier finding' })]);
  view.delete(keys.pool('a'));
  expect(view.pool('b')?.notAllocatable).toBeUndefined();
});

test('the finding of Calico’s controller stays, and its pool blocks no other pool', () => {
  const condition = { isAllocatable: false, isOwn: false };
  const view = viewOf([older('a', { notAllocatable: 'SomeReason', condition }), newer('b')]);
  expect(view.pools().map(({ notAllocatable }) => notAllocatable)).toEqual(['SomeReason', undefined]);
});

test.each<[string, Partial<Pool>, string]>([
  ['a loopback range', { prefix: prefix('127.0.0.0/16') }, 'cidr overlaps the loopback range 127.0.0.0/8'],
  ['two encapsulations', { ipipMode: 'Always', vxlanMode: 'Always' }, 'ipipMode is Always and vxlan is Always'],
  ['a malformed selector', { nodeSelector: 'a ==' }, 'nodeSelector is not a valid selector'],
])('a pool with %s is refused with the text of podwirectl', (_, rest, text) => {
  const view = viewOf([pool('a', '10.0.0.0/16', rest)]);
  expect(poolStatuses(view, admissionOf())).toMatchObject([{ reason: 'InvalidPool', isAllocatable: false }]);
  expect(view.pool('a')?.notAllocatable).toContain(text);
});

test('a pool for namespaces with Calico’s default uses serves', () => {
  expect(reasons(viewOf([pool('a', '10.0.0.0/16', { namespaceSelector: "a == 'b'" })]))).toEqual({ a: 'OK' });
});

test('a pool without blocks is refused with addresses of hosts, and with blocks of another size', () => {
  const node = nodeRecord('n1', { ipv4: { address: prefix('10.0.0.7/32'), subnetBits: 24 } });
  expect(reasons(viewOf([older('a')], [node]))).toEqual({ a: 'HostOverlap' });
  const admission = admissionOf('10.0.3.1');
  expect(reasons(viewOf([older('a')], [], admission), admission)).toEqual({ a: 'HostOverlap' });
  expect(reasons(viewOf([older('a')], [blockRecord('10.0.5.0/28')]))).toEqual({ a: 'BlockSizeConflict' });
  // It was accepted before.
  expect(reasons(viewOf([older('a')], [node, blockRecord('10.0.5.0/28'), blockRecord('10.0.6.0/26')]))).toEqual({
    a: 'OK',
  });
});

test('a node that comes or goes changes the finding', () => {
  const node = nodeRecord('n1', { ipv4: { address: prefix('10.0.0.7/32'), subnetBits: 24 } });
  const view = viewOf([older('a')]);
  expect(view.pool('a')?.notAllocatable).toBeUndefined();
  view.set(keys.of(node), node);
  expect(view.pool('a')?.notAllocatable).toContain('network 10.0.0.0/24 of node "n1"');
  view.delete(keys.of(node));
  expect(view.pool('a')?.notAllocatable).toBeUndefined();
});

test('no address is allocated from a refused pool, and the refusal names the finding', () => {
  const view = viewOf([pool('a', '10.0.0.0/16', { ipipMode: 'Always', vxlanMode: 'Always' })], [nodeRecord('n1')]);
  const failure = failureOf(() => allocate(view, { request: request('c1'), nowMs: NOW_MS }));
  expect(failure.message).toContain('one of them must be Never');
});

test('a pool that cannot be read gets a status, and the next one serves', () => {
  const view = viewOf([older('a')]);
  const name = { kind: 'pool', name: 'b' } as const;
  view.setUnreadable({ key: keys.pool('b'), name, reason: 'spec.cidr is "x"' });
  expect(reasons(view)).toEqual({ a: 'OK', b: 'Unreadable' });
});

test('only pools whose blocks are their own wait for their addresses when they are deleted', () => {
  const pools = [older('a'), newer('b'), pool('c', '10.9.0.0/16', { disabled: true })];
  const drained = poolStatuses(viewOf(pools), admissionOf()).map(({ isDrained }) => isDrained);
  expect(drained).toEqual([true, false, true]);
});

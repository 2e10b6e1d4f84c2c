import { describe, expect, test } from 'vitest';

import { addressHolder, allocationOf } from '../addresses/addresses.js';
import { allocate, needOf, type AllocationRequest } from '../addresses/allocate/allocate.js';
import type { RecordValue } from '../records/view.js';
import { address, sessionOf } from '../testing/allocations.js';
import { config, failureOf, NOW_MS, nodeRecord, poolRecord, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { leaseAddresses } from './leases.js';
import { prospectsOf, recallLeases, usedInReach, type Refused } from './recall.js';
import { continueReturn } from './returns.js';

function lease(view: TestView, nodeName: string, family: 4 | 6 = 4): string[] {
  const asked = { nodeName, bootId: 'b1', family, count: 4, session: sessionOf(view, nodeName) } as const;
  const { leases } = view.apply(
    leaseAddresses(view, { request: asked, unknownNodes: { policy: 'refuse' }, nowMs: NOW_MS }),
  );
  return leases.map(({ address: { value } }) => `10.0.0.${value % 256n}`);
}

const NODES = [nodeRecord('n1'), nodeRecord('n2'), nodeRecord('n3')];

/** A pool of 32 addresses in blocks of 8: n2 leases 4, n1 uses the rest, and n3 has none. */
function fullPool(...rest: readonly RecordValue[]): { view: TestView; leased: readonly string[] } {
  const [n1, n2, n3] = NODES;
  const view = new TestView([poolRecord('p', '10.0.0.0/27', { blockSizeBits: 29 }), n1!, n2!, ...rest]);
  const leased = lease(view, 'n2');
  for (let index = 0; index < 28; index++) view.apply(allocate(view, { request: request(`c${index}`), nowMs: NOW_MS }));
  view.put(n3!);
  return { view, leased };
}

const needOfPod = (rest: Partial<AllocationRequest> = {}) =>
  needOf(request('new', { nodeName: 'n3', ...rest }), NOW_MS);

const exhausted = { need: needOfPod(), code: 'POOLS_EXHAUSTED' } as const;

const leaseHolders = (view: TestView, refused: Refused) => prospectsOf(view, refused).holders;

describe('the nodes that are asked', () => {
  test('are nodes with leases in the pools that serve the request', () => {
    const { view } = fullPool(poolRecord('other', '10.1.0.0/24', { assignmentMode: 'Manual' }));
    expect(leaseHolders(view, exhausted)).toEqual([{ nodeName: 'n2', count: 4 }]);
    expect(leaseHolders(view, { ...exhausted, need: needOfPod({ pools: ['other'] }) })).toEqual([]);
  });

  test('are none for another failure, and none with leases of another family only', () => {
    const { view } = fullPool(poolRecord('six', 'fd00::/112'));
    lease(view, 'n3', 6);
    expect(leaseHolders(view, { ...exhausted, code: 'NO_POOL' })).toEqual([]);
    expect(leaseHolders(view, { ...exhausted, need: needOfPod({ families: [4, 6] }) })).toEqual([
      { nodeName: 'n2', count: 4 },
    ]);
  });

  test('for a node with its share, are nodes that can spare more than is kept', () => {
    const needOfFull = { code: 'POOLS_EXHAUSTED', need: needOfPod({ nodeName: 'n1' }) } as const;
    // The shares are 2: n2 spares 2 of its 4 leases, which are kept for n3.
    expect(prospectsOf(fullPool().view, needOfFull)).toMatchObject({ hasRoom: false, holders: [] });
    const view = new TestView([poolRecord('p', '10.0.0.0/27', { blockSizeBits: 29 }), ...NODES]);
    const take = (id: string, nodeName: string) =>
      view.apply(allocate(view, { request: request(id, { nodeName }), nowMs: NOW_MS }));
    take('a', 'n3');
    lease(view, 'n2');
    expect(() => {
      for (;;) take(`c${view.endpoints().length}`, 'n1');
    }).toThrow('its last free address is kept for 1 node with fewer than 2 addresses');
    expect(leaseHolders(view, needOfFull)).toEqual([{ nodeName: 'n2', count: 1 }]);
    take('b', 'n3');
    expect(leaseHolders(view, needOfFull)).toEqual([{ nodeName: 'n2', count: 1 }]);
  });

  test('are not being deleted', () => {
    const { view } = fullPool();
    view.put(nodeRecord('n2', { deletionTimeMs: NOW_MS }));
    expect(leaseHolders(view, exhausted)).toEqual([]);
  });

  test('for a requested address, are the node that leased it', () => {
    const { view, leased } = fullPool();
    const wanting = (text: string) => ({
      code: 'ADDRESS_IN_USE' as const,
      need: needOfPod({ addresses: [address(text)] }),
    });
    const held = view.endpoints()[0]!.value.addresses[0]!.address;
    expect(leaseHolders(view, wanting(leased[0]!))).toEqual([{ nodeName: 'n2', count: 1 }]);
    expect(leaseHolders(view, wanting(`10.0.0.${held.value % 256n}`))).toEqual([]);
  });
});

test('an operation may find room that was made after its refusal', () => {
  const { view, leased } = fullPool();
  const requested = { code: 'ADDRESS_IN_USE', need: needOfPod({ addresses: [address(leased[0]!)] }) } as const;
  expect(prospectsOf(view, exhausted).hasRoom).toBe(false);
  expect(prospectsOf(view, requested).hasRoom).toBe(false);
  const { sequenceNumber } = addressHolder(allocationOf(view, address(leased[0]!))!);
  const returns = [{ allocation: { address: address(leased[0]!), sequenceNumber }, use: undefined }];
  view.apply(continueReturn(view, { nodeName: 'n2', session: sessionOf(view, 'n2'), returns, nowMs: NOW_MS }));
  expect(prospectsOf(view, exhausted)).toMatchObject({ hasRoom: true, holders: [] });
  expect(prospectsOf(view, requested)).toMatchObject({ hasRoom: true, holders: [] });
});

test('a recall raises the number in the node’s record, and only of a node with leases', () => {
  const { view } = fullPool();
  expect(view.apply(recallLeases(view, 'n2'))).toBe(true);
  expect(view.apply(recallLeases(view, 'n2'))).toBe(true);
  expect(view.node('n2')?.leaseRecallCount).toBe(2);
  expect(recallLeases(view, 'n3')).toEqual({ changes: [], outcome: false });
  expect(recallLeases(view, 'unknown')).toEqual({ changes: [], outcome: false });
});

test('a block whose leases were returned goes to another node at once, also where affinity is strict', () => {
  const pool = poolRecord('p', '10.0.0.0/27', { blockSizeBits: 28 });
  const view = new TestView([pool, ...NODES, config({ strictAffinity: true, cooldownSeconds: 30 })]);
  const leases = lease(view, 'n2').map((text) => address(text));
  for (let index = 0; index < 16; index++) view.apply(allocate(view, { request: request(`c${index}`), nowMs: NOW_MS }));
  const more = () => allocate(view, { request: request('new', { nodeName: 'n3' }), nowMs: NOW_MS });
  expect(failureOf(more).code).toBe('POOLS_EXHAUSTED');
  const returns = leases.map((each) => {
    const { sequenceNumber } = addressHolder(allocationOf(view, each)!);
    return { allocation: { address: each, sequenceNumber }, use: undefined };
  });
  view.apply(continueReturn(view, { nodeName: 'n2', session: sessionOf(view, 'n2'), returns, nowMs: NOW_MS }));
  expect(view.apply(more()).reclaimed).toHaveLength(1);
});

test('addresses of other pools and families do not count as in reach', () => {
  const { view, leased } = fullPool(poolRecord('six', 'fd00::/112'));
  view.put(poolRecord('q', '10.1.0.0/24', { assignmentMode: 'Manual' }));
  lease(view, 'n3', 6);
  view.apply(allocate(view, { request: request('x', { pools: ['q'] }), nowMs: NOW_MS }));
  expect(usedInReach(view, needOfPod())).toBe(32);
  expect(usedInReach(view, needOfPod({ addresses: [address(leased[0]!)] }))).toBe(32);
  expect(usedInReach(view, needOfPod({ pools: ['q'] }))).toBe(1);
});

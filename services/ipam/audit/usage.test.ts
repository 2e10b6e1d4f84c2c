import { expect, test } from 'vitest';

import { leaseAttributes } from '../records/lease.js';
import { calicoAttributes, healthyView, putBlock, takeUnrecorded } from '../testing/damages.js';
import { block, claimedBlock, NOW_MS, prefix } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { makeReport } from './audit.js';
import { usageOf } from './usage.js';

function view() {
  const made = healthyView();
  const borrowed = takeUnrecorded(block('192.168.0.0/30', 'n1'), calicoAttributes('x', 'x', 'n7'));
  const cooling = takeUnrecorded(borrowed, { releasedAtMs: NOW_MS });
  const leased = takeUnrecorded(cooling, leaseAttributes({ nodeName: 'n7', bootId: 'b', nowMs: NOW_MS }));
  claimedBlock(takeUnrecorded(leased, { owner: {} })).forEach((record) => made.put(record));
  putBlock(made, block('192.168.1.0/30', 'n1', { owner: undefined }));
  const prefixes = [prefix('10.0.0.0/30'), prefix('10.0.0.1/32'), prefix('172.16.0.0/12')];
  made.put({ kind: 'reservation', value: { name: 'r', uid: 'u', createTimeMs: NOW_MS, prefixes } });
  return made;
}

test('used addresses are counted by pool and by node', () => {
  const { nodeUsages, pools, cooling } = usageOf(view());
  const text = nodeUsages.map((share) =>
    [share.poolName, share.nodeName, share.blocks, share.inUse, share.borrowed, share.leased].join(' '),
  );
  expect(text).toEqual([
    'four n1 1 2 0 0',
    'four n2 1 1 0 0',
    'no_ippool n1 1 0 0 0',
    'no_ippool n7 0 1 1 1',
    'no_ippool no_affinity 1 0 0 0',
    'no_ippool unknown_node 0 1 1 0',
    'six n1 1 1 0 0',
  ]);
  expect(cooling).toBe(1);
  expect(pools).toEqual([
    { poolName: 'four', family: 4, size: 16n, reserved: 4n, available: 11n },
    { poolName: 'six', family: 6, size: 16n, reserved: 0n, available: 15n },
  ]);
});

test('a report lists the nodes with the most addresses first, up to the limit', () => {
  const query = { after: '', limit: 10, kinds: [], information: false, nodesLimit: 2 };
  const report = makeReport([], usageOf(view()), query);
  expect(report.nodes).toEqual([
    { nodeName: 'n1', blocks: 3, inUse: 3, borrowed: 0, leased: 0 },
    { nodeName: 'n2', blocks: 1, inUse: 1, borrowed: 0, leased: 0 },
  ]);
  expect(report).toMatchObject({ blocks: 5, addressesInUse: 6, addressesCooling: 1, addressesLeased: 1, more: false });
});

test('the largest namespaces are counted by name, and the sum of the other ones', () => {
  const made = new TestView();
  const ofPod = (namespace: string) => ({
    handleId: 'net.c',
    owner: { node: 'n1', namespace },
    releasedAtMs: undefined,
  });
  let value = block('192.168.0.0/20', 'n1');
  for (let size = 1; size <= 25; size++)
    for (let taken = 0; taken < size; taken++) value = takeUnrecorded(value, ofPod(`apps-${size}`));
  for (const rest of [{ releasedAtMs: NOW_MS }, { owner: {} }])
    value = takeUnrecorded(value, { ...ofPod('apps-25'), ...rest });
  claimedBlock(value).forEach((record) => made.put(record));
  const named = Array.from({ length: 20 }, (_, index) => ({ namespace: `apps-${25 - index}`, inUse: 25 - index }));
  expect(usageOf(made).namespaces).toEqual([...named, { namespace: '_other', inUse: 1 + 2 + 3 + 4 + 5 }]);
});

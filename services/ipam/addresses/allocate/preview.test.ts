import { expect, test } from 'vitest';

import type { Block } from '../../records/block.js';
import { leaseAttributes } from '../../records/lease.js';
import type { RecordValue } from '../../records/view.js';
import {
  block,
  claimedBlock,
  config,
  fullBlock,
  nodeRecord,
  NOW_MS,
  poolRecord,
  prefix,
  request,
} from '../../testing/records.js';
import { TestView } from '../../testing/test-view.js';
import type { AllocationRequest } from './allocate.js';
import { explainAllocation, type ExplainedAllocation } from './preview.js';

/** A full block whose first addresses are leased, each entry one, to the named nodes. */
function leasedBlock(cidr: string, owner: string, nodes: readonly string[]): Block {
  const full = fullBlock(cidr, owner);
  const leases = nodes.map((nodeName) => leaseAttributes({ nodeName, bootId: 'b', nowMs: NOW_MS }));
  return {
    ...full,
    allocations: full.allocations.map((index, ordinal) => (ordinal < nodes.length ? ordinal + 1 : index)),
    attributes: [...full.attributes, ...leases],
  };
}

function explain(records: readonly RecordValue[], rest: Partial<AllocationRequest> = {}): ExplainedAllocation {
  const view = new TestView([...['n1', 'n2', 'n3'].map((name) => nodeRecord(name)), ...records]);
  return explainAllocation(view, { request: request('c1', rest), nowMs: NOW_MS, maxBlocksCount: 9 });
}

const POOL = poolRecord('p', '10.0.0.0/29', { blockSizeBits: 30 });
const FULL = claimedBlock(fullBlock('10.0.0.0/30', 'n1'));
const OF_N2 = claimedBlock(leasedBlock('10.0.0.4/30', 'n2', ['n2', 'n3', 'n2']));
const STRICT = config({ strictAffinity: true });

test('leases of an exhausted pool are recalled, and are no refusal', () => {
  const { refusal, families } = explain([POOL, ...FULL, ...OF_N2]);
  expect(refusal).toBeUndefined();
  const recall = [
    { nodeName: 'n2', count: 2 },
    { nodeName: 'n3', count: 1 },
  ];
  expect(families).toMatchObject([{ grant: undefined, recall }]);
  expect(families[0]?.pools[0]?.blocks).toMatchObject([
    { verdict: 'full', reason: 'is full (4 of 4 addresses in use)', leases: [] },
    {
      verdict: 'full',
      reason: 'belongs to node n2 (1 of 4 addresses in use, 3 leased to n2 (2), n3 (1))',
      leases: recall,
    },
  ]);
});

test('no lease is recalled while an address is free', () => {
  const { refusal, families } = explain([POOL, ...OF_N2]);
  expect(refusal).toBeUndefined();
  expect(families).toMatchObject([{ recall: [], grant: { origin: 'claimed' } }]);
});

test.each<[string, readonly RecordValue[]]>([
  ['is not registered', claimedBlock(leasedBlock('10.0.0.4/30', 'n2', ['gone']))],
  [
    'is being deleted',
    [...claimedBlock(leasedBlock('10.0.0.4/30', 'n2', ['n4'])), nodeRecord('n4', { deletionTimeMs: NOW_MS })],
  ],
])('a lease of a node that %s is not recalled', (_, records) => {
  expect(explain([POOL, ...FULL, ...records]).refusal).toMatchObject({
    code: 'POOLS_EXHAUSTED',
    message: expect.stringContaining('1 leased by nodes)'),
  });
  expect(explain([POOL, ...records], { addresses: [prefix('10.0.0.4/32')] }).refusal?.code).toBe('ADDRESS_IN_USE');
});

test.each<[string, readonly RecordValue[], string]>([
  ['of another node’s block while affinity is strict', [STRICT], '3 leased by nodes)'],
  [
    'whose addresses are reserved since',
    [{ kind: 'reservation', value: { name: 'r', uid: 'u', createTimeMs: NOW_MS, prefixes: [prefix('10.0.0.4/30')] } }],
    '3 leased by nodes)',
  ],
])('a lease %s does not serve', (_, records, text) => {
  const { refusal, families } = explain([POOL, ...FULL, ...OF_N2, ...records]);
  expect(refusal).toMatchObject({ code: 'POOLS_EXHAUSTED' });
  expect(refusal?.message).toContain(`all 2 blocks are full (5 of 8 addresses in use, ${text}`);
  expect(families).toMatchObject([{ recall: [] }]);
});

test('a lease of the node’s own block serves it, also while affinity is strict', () => {
  const own = claimedBlock(leasedBlock('10.0.0.0/30', 'n1', ['n1']));
  const { refusal, families } = explain([STRICT, POOL, ...own, ...claimedBlock(fullBlock('10.0.0.4/30', 'n2'))]);
  expect(refusal).toBeUndefined();
  expect(families).toMatchObject([{ recall: [{ nodeName: 'n1', count: 1 }] }]);
});

test('a family without an address refuses the allocation, whatever the other one could recall', () => {
  const { refusal, families } = explain([POOL, ...FULL, ...OF_N2], { families: [4, 6] });
  expect(refusal).toMatchObject({ code: 'NO_POOL' });
  expect(families).toMatchObject([
    { family: 4, recall: [{}, {}] },
    { family: 6, recall: [] },
  ]);
});

test('a family with an address needs no recall for the other one', () => {
  const six = [poolRecord('six', 'fd00::/124', { blockSizeBits: 126 }), ...claimedBlock(block('fd00::/126', 'n1'))];
  const { refusal, families } = explain([POOL, ...FULL, ...OF_N2, ...six], { families: [4, 6] });
  expect(refusal).toBeUndefined();
  expect(families).toMatchObject([{ recall: [{}, {}] }, { recall: [] }]);
});

test('a requested address that is leased is recalled, unless the node may not use its block', () => {
  const addresses = [prefix('10.0.0.5/32')];
  const { refusal, families } = explain([POOL, ...OF_N2], { addresses });
  expect(refusal).toBeUndefined();
  expect(families).toMatchObject([{ recall: [{ nodeName: 'n3', count: 1 }] }]);
  const strict = explain([STRICT, POOL, ...OF_N2], { addresses });
  expect(strict.refusal).toMatchObject({
    code: 'ADDRESS_IN_USE',
    message: '10.0.0.5 is leased to node n3, and no pod has it yet; retry, or request another address',
  });
});

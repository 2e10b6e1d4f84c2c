import { describe, expect, test } from 'vitest';

import { TestView } from '../testing/test-view.js';
import type { RecordValue } from '../records/view.js';
import { affinity, block, claimedBlock, NOW_MS, poolRecord, prefix } from '../testing/records.js';
import { poolsEmptiedBy } from './release-changes.js';

const DRAINING = poolRecord('p', '10.0.0.0/24', { deletionTimeMs: NOW_MS });
const BLOCKS = [block('10.0.0.0/26', 'n1'), block('10.0.0.64/26', 'n2', { owner: undefined })];

function emptied(records: readonly RecordValue[], removed = BLOCKS, isBehind = false): string[] {
  const view = new TestView([...records, ...BLOCKS.flatMap((value) => claimedBlock(value))]);
  view.remove({ kind: 'affinity', owner: { kind: 'host', name: 'none' }, block: prefix('10.0.0.64/26') });
  view.isBehind = isBehind;
  return poolsEmptiedBy(view, removed).map(({ name }) => name);
}

describe('a release ends the deletion of a pool', () => {
  test('with its last blocks', () => {
    expect(emptied([DRAINING])).toEqual(['p']);
  });

  test('of both families', () => {
    const six = poolRecord('six', 'fd00::/64', { deletionTimeMs: NOW_MS });
    const view = new TestView([DRAINING, six, ...claimedBlock(block('fd00::/122', 'n1')), ...claimedBlock(BLOCKS[0]!)]);
    const removed = [block('fd00::/122', 'n1'), BLOCKS[0]!];
    expect(poolsEmptiedBy(view, removed).map(({ name }) => name)).toEqual(['p', 'six']);
  });

  test.each<[string, string[]]>([
    ['not while it has another block', emptied([DRAINING], [BLOCKS[0]!])],
    ['not with a block of another pool', emptied([DRAINING], [block('10.9.0.0/26', 'n1')])],
    ['not without a block', emptied([DRAINING], [])],
    ['not of a pool that is not being deleted', emptied([poolRecord('p', '10.0.0.0/24', { disabled: true })])],
    ['not while another replica’s claim may be in flight', emptied([DRAINING], BLOCKS, true)],
    [
      'not while it has claims of other nodes, which the next step removes',
      emptied([DRAINING, { kind: 'affinity', value: affinity('10.0.0.128/26', 'n3', 'pending') }]),
    ],
    [
      'not while a block has claims of nodes besides its owner',
      emptied([DRAINING, { kind: 'affinity', value: affinity('10.0.0.0/26', 'n3', 'pending') }]),
    ],
  ])('%s', (_, pools) => {
    expect(pools).toEqual([]);
  });

  test('with any claims outside of it', () => {
    const outside = {
      owner: { kind: 'virtual', name: 'load-balancer' },
      block: prefix('10.0.1.0/26'),
      state: 'confirmed',
    } as const;
    expect(emptied([DRAINING, { kind: 'affinity', value: outside }])).toEqual(['p']);
  });
});

import { formatPrefix } from '@podwire/shared/net/prefix';
import { expect, test } from 'vitest';

import { getPool } from '../pools/pools.js';
import { usedCount } from '../records/block.js';
import { TestView } from '../testing/test-view.js';
import { assign, assignment } from '../testing/allocations.js';
import { block, claimedBlock, poolRecord } from '../testing/records.js';
import { listBlocks } from './blocks.js';

/** Fills as in `calicoctl ipam show --show-blocks`: used addresses, all addresses, and the rest. */
function fills(view: TestView): string[] {
  const { items } = listBlocks(view, { after: undefined, limit: 100, poolName: '', nodeName: '' });
  return items.map(({ block: each, poolName }) => {
    const capacity = each.allocations.length;
    return `${poolName ?? 'no pool'} ${formatPrefix(each.prefix)} ${usedCount(each)} of ${capacity}`;
  });
}

test('11 addresses in blocks of /29 fill one, and take three of another; blocks of no pool are shown as well', () => {
  const view = new TestView([
    poolRecord('p', '10.0.0.0/26', { blockSizeBits: 29 }),
    ...claimedBlock(block('10.0.0.0/29', 'n1')),
    ...claimedBlock(block('10.0.0.8/29', 'n1')),
  ]);
  expect(assign(view, assignment('h', { counts: { 4: 11, 6: 0 } })).newAddresses).toHaveLength(11);
  claimedBlock(block('10.9.0.0/29', 'n1')).forEach((record) => view.put(record));
  expect(fills(view)).toEqual(['p 10.0.0.0/29 8 of 8', 'p 10.0.0.8/29 3 of 8', 'no pool 10.9.0.0/29 0 of 8']);
  expect(getPool(view, 'p').utilization).toMatchObject({ capacity: 64n, allocated: 11n, blocks: 2n });
});

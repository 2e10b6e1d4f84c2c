import { BlockServiceService, type Block } from '@podwire/proto/podwire/ipam/v1/block';
import { PoolServiceService, type Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { compareTexts } from '@podwire/shared/words/order';

import type { Verb } from '../command-line/verb.js';
import type { Table } from '../output/report.js';
import { count, percent } from '../output/words.js';
import { borrowedOf, listBlocks, NODE, POOL, requireNamed } from './blocks-list.js';
import { listPools } from './pools-list.js';

const NO_OWNER = '(no owner)';

export const utilisation: Verb = {
  name: 'utilisation',
  about: 'how full pools are, and which nodes have their blocks and addresses',
  options: [POOL, NODE],
  run: async (input, { ipam, json }) => {
    const poolName = input.get(POOL) ?? '';
    const nodeName = input.get(NODE) ?? '';
    const pools = (await listPools(ipam)).filter(({ name }) => poolName === '' || name === poolName);
    const blocks = await listBlocks(ipam, { poolName, nodeName });
    if (blocks.length === 0) await requireNamed(ipam, { poolName, nodeName });
    return {
      sections: [poolTable(pools), nodeTable(blocks)],
      data: () => ({
        pools: json.of(PoolServiceService.listPools, { pools, nextPageToken: '' }),
        blocks: json.of(BlockServiceService.listBlocks, { blocks, nextPageToken: '' }),
      }),
    };
  },
};

function poolTable(pools: readonly Pool[]): Table {
  return {
    kind: 'table',
    columns: [
      'POOL',
      'CIDR',
      { right: 'ADDRESSES' },
      { right: 'IN USE' },
      { right: 'USED' },
      { right: 'FREE' },
      { right: 'BLOCKS' },
    ],
    rows: pools.map(({ name, cidr, utilization }) => {
      const { capacity = '0', allocated = 0n, free = '0', blocks = 0n } = utilization ?? {};
      return [
        name,
        cidr,
        count(capacity),
        String(allocated),
        percent(allocated, capacity),
        count(free),
        String(blocks),
      ];
    }),
    none: 'There is no such pool.',
  };
}

interface NodeUse {
  blocks: number;
  capacity: number;
  used: number;
  lent: number;
}

function nodeTable(blocks: readonly Block[]): Table {
  const uses = new Map<string, NodeUse>();
  for (const block of blocks) {
    const name = block.nodeName === '' ? NO_OWNER : block.nodeName;
    const use = uses.get(name) ?? { blocks: 0, capacity: 0, used: 0, lent: 0 };
    use.blocks++;
    use.capacity += block.capacity;
    use.used += block.allocations.length;
    use.lent += borrowedOf(block);
    uses.set(name, use);
  }
  const byUse = [...uses].sort(([nameA, a], [nameB, b]) => b.used - a.used || compareTexts(nameA, nameB));
  return {
    kind: 'table',
    columns: [
      'NODE',
      { right: 'BLOCKS' },
      { right: 'ADDRESSES' },
      { right: 'IN USE' },
      { right: 'USED' },
      { right: 'LENT TO OTHERS' },
    ],
    rows: byUse.map(([name, { blocks: number, capacity, used, lent }]) => [
      name,
      String(number),
      String(capacity),
      String(used),
      percent(used, capacity),
      String(lent),
    ]),
    none: 'No node has a block.',
  };
}

import { BlockServiceService, type Block } from '@podwire/proto/podwire/ipam/v1/block';
import { PoolServiceService, type Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { compareTexts } from '@podwire/shared/words/order';

import type { Verb } from '../command-line/verb.js';
import type { Table } from '../output/report.js';
import { count } from '../output/words.js';
import { COUNT_COLUMNS, countCells } from '../resources/address-counts.js';
import { borrowedOf, listBlocks, NODE, POOL, requireNamed, utilizationOf } from '../resources/blocks.js';
import { countsOf, listPools } from '../resources/pools.js';

const NO_OWNER = '(no owner)';

export const utilisation: Verb = {
  name: 'utilisation',
  about: 'utilisation of pools, and the blocks and addresses of each node',
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
    columns: ['POOL', 'CIDR', { right: 'ADDRESSES' }, ...COUNT_COLUMNS, { right: 'BLOCKS' }],
    rows: pools.map(({ name, cidr, utilization }) => {
      const counts = countsOf(utilization);
      return [name, cidr, count(counts.capacity), ...countCells(counts), String(counts.blocks)];
    }),
    none: 'pools: none',
  };
}

interface NodeUse {
  blocks: number;
  capacity: number;
  allocated: number;
  cooling: number;
  reserved: number;
  available: number;
  borrowed: number;
}

const NO_USE: NodeUse = { blocks: 0, capacity: 0, allocated: 0, cooling: 0, reserved: 0, available: 0, borrowed: 0 };

function nodeTable(blocks: readonly Block[]): Table {
  const uses = new Map<string, NodeUse>();
  for (const block of blocks) {
    const name = block.nodeName === '' ? NO_OWNER : block.nodeName;
    const use = uses.get(name) ?? { ...NO_USE };
    const { allocated, cooling, reserved, available } = utilizationOf(block);
    use.blocks++;
    use.capacity += block.capacity;
    use.allocated += allocated;
    use.cooling += cooling;
    use.reserved += reserved;
    use.available += available;
    use.borrowed += borrowedOf(block);
    uses.set(name, use);
  }
  const inUse = (use: NodeUse): number => use.allocated - use.cooling;
  const byUse = [...uses].sort(([nameA, a], [nameB, b]) => inUse(b) - inUse(a) || compareTexts(nameA, nameB));
  return {
    kind: 'table',
    columns: ['NODE', { right: 'BLOCKS' }, { right: 'ADDRESSES' }, ...COUNT_COLUMNS, { right: 'BORROWED BY OTHERS' }],
    rows: byUse.map(([name, use]) => {
      return [name, String(use.blocks), String(use.capacity), ...countCells(use), String(use.borrowed)];
    }),
    none: 'blocks: none',
  };
}

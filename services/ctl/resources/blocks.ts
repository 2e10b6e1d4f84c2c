import { AffinityState, BlockServiceService, BlockUtilization, type Block } from '@podwire/proto/podwire/ipam/v1/block';
import { NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';

import { allPages, type Service } from '../clients/services.js';
import { text } from '../command-line/forms.js';
import type { Flag, Option, Verb } from '../command-line/verb.js';
import type { Table } from '../output/report.js';
import { age, momentOfAttribute, podOf, wordOf } from '../output/words.js';
import { COUNT_COLUMNS, countCells } from './address-counts.js';

export const POOL: Option<string> = { name: '--pool', form: text('NAME'), about: 'only those of this pool (all)' };
export const NODE: Option<string> = { name: '--node', form: text('NAME'), about: 'only those of this node (all)' };

const ADDRESSES: Flag = { name: '--addresses', about: 'list allocated addresses with their owners, instead of blocks' };

export const blocksList: Verb = {
  name: 'blocks list',
  about: 'the blocks of pools, with node and utilisation',
  options: [POOL, NODE],
  flags: [ADDRESSES],
  examples: ['blocks list --node node-1', 'blocks list --pool default-ipv4-ippool --addresses'],
  run: async (input, { ipam, json, clock }) => {
    const filter = { poolName: input.get(POOL) ?? '', nodeName: input.get(NODE) ?? '' };
    const blocks = await listBlocks(ipam, filter);
    if (blocks.length === 0) await requireNamed(ipam, filter);
    return {
      sections: [input.has(ADDRESSES) ? addressTable(blocks) : blockTable(blocks, clock.nowMs())],
      data: () => json.of(BlockServiceService.listBlocks, { blocks, nextPageToken: '' }),
    };
  },
};

/** Filter of a list; an empty name does not filter. */
export interface Filter {
  readonly poolName: string;
  readonly nodeName: string;
}

/**
 * Distinguishes an empty list from a filter by something that does not exist.
 * @throws Failure POOL_NOT_FOUND, NODE_NOT_FOUND
 */
export async function requireNamed(ipam: Service, { poolName, nodeName }: Filter): Promise<void> {
  if (poolName !== '') await ipam.call(PoolServiceService.getPool, { name: poolName });
  if (nodeName !== '') await ipam.call(NodeServiceService.getNode, { name: nodeName });
}

export async function listBlocks(ipam: Service, filter: Filter): Promise<Block[]> {
  const pages = await allPages((page) => ipam.call(BlockServiceService.listBlocks, { ...page, ...filter }));
  return pages.flatMap(({ blocks }) => blocks);
}

/** Number of a block's addresses that other nodes use. */
export function borrowedOf({ nodeName, allocations }: Block): number {
  return allocations.filter(({ attributes }) => attributes.node !== undefined && attributes.node !== nodeName).length;
}

export function utilizationOf({ utilization }: Block): BlockUtilization {
  return utilization ?? BlockUtilization.create();
}

function blockTable(blocks: readonly Block[], nowMs: number): Table {
  return {
    kind: 'table',
    columns: [
      'CIDR',
      'POOL',
      'NODE',
      'AFFINITY',
      { right: 'SIZE' },
      ...COUNT_COLUMNS,
      { right: 'BORROWED' },
      'CLAIMED',
    ],
    rows: blocks.map((block) => {
      const { cidr, poolName, nodeName, capacity, affinityState, claimTime } = block;
      const affinity = wordOf(AffinityState[affinityState], 'AFFINITY_STATE_');
      const counts = countCells({ capacity, ...utilizationOf(block) });
      const numbers = [String(capacity), ...counts, String(borrowedOf(block))];
      return [cidr, poolName, nodeName, affinity, ...numbers, age(claimTime, nowMs)];
    }),
    none: 'blocks: none',
  };
}

function addressTable(blocks: readonly Block[]): Table {
  return {
    kind: 'table',
    columns: ['ADDRESS', 'POD', 'NODE', 'INTERFACE', 'SINCE', { right: 'SEQUENCE' }, 'HANDLE'],
    rows: blocks.flatMap(({ allocations }) =>
      allocations.map(({ address, attributes, handleId, sequenceNumber }) => {
        const { node = '', interface: interfaceName = '', timestamp = '' } = attributes;
        const since = momentOfAttribute(timestamp);
        return [address, podOf(attributes), node, interfaceName, since, String(sequenceNumber), handleId];
      }),
    ),
    none: 'addresses: none',
  };
}

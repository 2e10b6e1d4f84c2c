import {
  AffinityState,
  Block,
  BlockServiceService,
  BlockUtilization,
  type BlockAllocation,
} from '@podwire/proto/podwire/ipam/v1/block';
import { NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';

import { allPages, type Service } from '../clients/services.js';
import { age, LEASE_PREFIX, momentAndAge, momentOfAttribute, podOf, wordOf } from '../output/words.js';
import { countColumns } from './address-counts.js';
import { resource, type Filter } from './resource.js';

type BlockFilter = Pick<Filter, 'node' | 'pool'>;

/**
 * Distinguishes an empty list from a filter by something that does not exist.
 * @throws Failure POOL_NOT_FOUND, NODE_NOT_FOUND
 */
export async function requireNamed(ipam: Service, { pool, node }: BlockFilter): Promise<void> {
  if (pool !== '') await ipam.call(PoolServiceService.getPool, { name: pool });
  if (node !== '') await ipam.call(NodeServiceService.getNode, { name: node });
}

/** @throws Failure POOL_NOT_FOUND, NODE_NOT_FOUND */
export async function listBlocks(ipam: Service, { pool, node }: BlockFilter): Promise<Block[]> {
  const filter = { poolName: pool, nodeName: node };
  const pages = await allPages((page) => ipam.call(BlockServiceService.listBlocks, { ...page, ...filter }));
  const blocks = pages.flatMap((page) => page.blocks);
  if (blocks.length === 0) await requireNamed(ipam, { pool, node });
  return blocks;
}

/** The addresses of a block that other nodes use. */
export function borrowedOf({ nodeName, allocations }: Block): BlockAllocation[] {
  return allocations.filter(({ attributes }) => attributes.node !== undefined && attributes.node !== nodeName);
}

export function utilizationOf({ utilization }: Block): BlockUtilization {
  return utilization ?? BlockUtilization.create();
}

const affinityOf = ({ affinityState }: Block): string => wordOf(AffinityState[affinityState], 'AFFINITY_STATE_');

/** Cells of an address with its owner. */
export function ownerCells({ address, attributes, handleId, sequenceNumber }: BlockAllocation): string[] {
  const { node = '', interface: interfaceName = '', timestamp = '' } = attributes;
  const since = momentOfAttribute(timestamp);
  const pod = handleId.startsWith(LEASE_PREFIX) ? '(leased)' : podOf(attributes);
  return [address, pod, node, interfaceName, since, String(sequenceNumber), handleId];
}

export const BLOCK = resource<Block>({
  filters: ['node', 'pool'],
  columns: [
    { head: 'CIDR', cell: ({ cidr }) => cidr },
    { head: 'POOL', cell: ({ poolName }) => poolName },
    { head: 'NODE', cell: ({ nodeName }) => nodeName },
    { head: 'AFFINITY', cell: affinityOf },
    { head: 'SIZE', isNumber: true, cell: ({ capacity }) => String(capacity) },
    ...countColumns((block: Block) => ({ capacity: block.capacity, ...utilizationOf(block) })),
    { head: 'BORROWED', isNumber: true, cell: (block) => String(borrowedOf(block).length) },
    { head: 'CLAIMED', cell: ({ claimTime }, nowMs) => age(claimTime, nowMs) },
  ],
  none: 'blocks: none',
  nameOf: ({ cidr }) => cidr,
  spec: (block) => ({
    ...{ cidr: block.cidr, pool: block.poolName, node: block.nodeName, affinity: affinityOf(block) },
    capacity: block.capacity,
    allocations: block.allocations.map(({ address, handleId, attributes, sequenceNumber }) => ({
      ...{ address, handleID: handleId, attributes },
      sequenceNumber: String(sequenceNumber),
    })),
  }),
  details: (block, nowMs) => [
    {
      kind: 'fields',
      fields: [
        ['CIDR', block.cidr],
        ['Pool', block.poolName],
        ['Node', block.nodeName],
        ['Affinity', affinityOf(block)],
        ['Claimed', momentAndAge(block.claimTime, nowMs)],
        ['Sequence', String(block.sequenceNumber)],
      ],
    },
    {
      kind: 'table',
      columns: ['ADDRESS', 'POD', 'NODE', 'INTERFACE', 'SINCE', { right: 'SEQUENCE' }, 'HANDLE'],
      rows: block.allocations.map(ownerCells),
      none: 'addresses: none',
    },
  ],
  data: (block, { json }) => json.of(BlockServiceService.listBlocks, { blocks: [block], nextPageToken: '' }),
  list: (filter, { ipam }) => listBlocks(ipam, filter),
  instead: 'allocations claim and release them',
});

export const ADDRESS = resource<BlockAllocation>({
  filters: ['node', 'pool', 'namespace'],
  columns: ['ADDRESS', 'POD', 'NODE', 'INTERFACE', 'SINCE', 'SEQUENCE', 'HANDLE'].map((head, place) => ({
    head,
    isNumber: head === 'SEQUENCE',
    isWide: head === 'SEQUENCE' || head === 'HANDLE',
    cell: (allocation) => ownerCells(allocation)[place] ?? '',
  })),
  none: 'addresses: none',
  nameOf: ({ address }) => address,
  spec: ({ handleId, attributes, sequenceNumber }) => ({
    handleID: handleId,
    attributes,
    sequenceNumber: String(sequenceNumber),
  }),
  details: ({ address, handleId, attributes, sequenceNumber }) => [
    {
      kind: 'fields',
      fields: [
        ['Address', address],
        ['Handle', handleId],
        ['Sequence', String(sequenceNumber)],
        ...Object.entries(attributes),
      ],
    },
  ],
  data: (allocation, { json }) =>
    json.of(BlockServiceService.listBlocks, {
      blocks: [Block.fromPartial({ allocations: [allocation] })],
      nextPageToken: '',
    }),
  list: async (filter, { ipam }) => {
    const allocations = (await listBlocks(ipam, filter)).flatMap((block) => block.allocations);
    const isWanted = ({ attributes }: BlockAllocation): boolean =>
      filter.namespace === '' || attributes.namespace === filter.namespace;
    return allocations.filter(isWanted);
  },
  notFound: 'ADDRESS_NOT_ALLOCATED',
  instead: '"podwirectl release address" releases one',
});

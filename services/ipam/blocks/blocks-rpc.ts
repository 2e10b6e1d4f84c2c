import {
  AffinityState as AffinityStateMessage,
  BlockServiceService,
  type Block as BlockMessage,
  type BlockAllocation,
  type ListBlocksRequest,
} from '@podwire/proto/podwire/ipam/v1/block';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPage, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { read, type IpamOptions } from '../engine/updates/operation.js';
import { attributesAt, type AffinityState, type Block } from '../records/block.js';
import { subdomainFault } from '../records/names.js';
import type { Page } from '../records/page.js';
import { listBlocks, type BlockListing, type BlockQuery, type ListedBlock } from './blocks.js';

export function blockService(blocks: Blocks, unary: Unary): RpcService {
  return unaryService(BlockServiceService, unary, {
    listBlocks: async (message, { signal }) => {
      const { items, more } = await blocks.list(readQuery(message), signal);
      const last = items.at(-1);
      return {
        blocks: items.map(blockMessage),
        nextPageToken: formatPageToken(scopeOf(message), more && last ? formatPrefix(last.block.prefix) : undefined),
      };
    },
  });
}

function scopeOf({ poolName, nodeName }: ListBlocksRequest): ListScope {
  return ['blocks', poolName, nodeName];
}

function readQuery(message: ListBlocksRequest): BlockQuery {
  const { poolName, nodeName } = message;
  return readChecked('ListBlocks', (checks) => {
    if (poolName !== '') checks.check('pool_name', subdomainFault(poolName));
    if (nodeName !== '') checks.check('node_name', subdomainFault(nodeName));
    const { limit, after } = readPage(message, scopeOf(message), checks);
    return { limit, after: readAfter(after, checks), poolName, nodeName };
  });
}

function readAfter(cidr: string, checks: Checks): Prefix | undefined {
  if (cidr === '') return undefined;
  const parsed = parsePrefix(cidr);
  if (parsed.ok) return parsed.prefix;
  checks.check('page_token', 'is not valid; list again without it');
  return undefined;
}

/** Lists the blocks of pools. */
export class Blocks {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  list(query: BlockQuery, signal: AbortSignal): Promise<Page<ListedBlock>> {
    return read(this.#options, (view) => listBlocks(view, query), signal);
  }
}

export const AFFINITY_STATES: Record<AffinityState, AffinityStateMessage> = {
  pending: AffinityStateMessage.AFFINITY_STATE_PENDING,
  confirmed: AffinityStateMessage.AFFINITY_STATE_CONFIRMED,
  pendingDeletion: AffinityStateMessage.AFFINITY_STATE_PENDING_DELETION,
};

/** Includes the utilization where known. */
function blockMessage(listing: BlockListing & Partial<ListedBlock>): BlockMessage {
  const { block, poolName, affinityState, utilization } = listing;
  return {
    cidr: formatPrefix(block.prefix),
    poolName: poolName ?? '',
    nodeName: block.owner?.kind === 'host' ? block.owner.name : '',
    affinityState: affinityState ? AFFINITY_STATES[affinityState] : AffinityStateMessage.AFFINITY_STATE_UNSPECIFIED,
    claimTime: block.claimTimeMs === undefined ? undefined : new Date(block.claimTimeMs),
    capacity: block.allocations.length,
    allocations: block.allocations.flatMap((_, ordinal) => allocationMessage(block, ordinal)),
    sequenceNumber: block.sequenceNumber,
    utilization,
  };
}

/** Empty for an address that is free or cools down. */
function allocationMessage(block: Block, ordinal: number): BlockAllocation[] {
  const attributes = attributesAt(block, ordinal);
  if (!attributes || attributes.releasedAtMs !== undefined) return [];
  return [
    {
      address: formatAddress(addressAt(block.prefix, ordinal)),
      handleId: attributes.handleId ?? '',
      attributes: { ...attributes.owner },
      sequenceNumber: block.sequenceNumbers[ordinal] ?? 0n,
    },
  ];
}

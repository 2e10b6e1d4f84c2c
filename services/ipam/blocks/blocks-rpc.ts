import {
  AffinityState as AffinityStateMessage,
  type Block as BlockMessage,
  type BlockAllocation,
} from '@podwire/proto/podwire/ipam/v1/block';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt, formatPrefix } from '@podwire/shared/net/prefix';

import type { BlockListing, ListedBlock } from '../allocator/listing.js';
import type { AffinityState, Block } from '../allocator/records.js';
import { attributesAt } from '../records/block.js';

export const AFFINITY_STATES: Record<AffinityState, AffinityStateMessage> = {
  pending: AffinityStateMessage.AFFINITY_STATE_PENDING,
  confirmed: AffinityStateMessage.AFFINITY_STATE_CONFIRMED,
  pendingDeletion: AffinityStateMessage.AFFINITY_STATE_PENDING_DELETION,
};

/** With its utilization, where that is known. */
export function blockMessage(listing: BlockListing & Partial<ListedBlock>): BlockMessage {
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

/** Nothing for an address that is free, or cools down after its release and is nobody's. */
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

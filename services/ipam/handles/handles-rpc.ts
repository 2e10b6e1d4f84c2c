import type { Handle as HandleMessage, HandleAddress } from '@podwire/proto/podwire/ipam/v1/handle';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt, formatPrefix } from '@podwire/shared/net/prefix';

import type { Handle } from '../allocator/records.js';
import type { HeldAddress } from '../blocks/holding.js';

export function handleMessage({ id, blocks }: Handle): HandleMessage {
  return { handleId: id, blocks: [...blocks].map(([cidr, addressCount]) => ({ cidr, addressCount })) };
}

export function handleAddressMessage({ block, ordinal, attributes }: HeldAddress): HandleAddress {
  return {
    address: formatAddress(addressAt(block.prefix, ordinal)),
    blockCidr: formatPrefix(block.prefix),
    sequenceNumber: block.sequenceNumbers[ordinal] ?? 0n,
    attributes: { ...attributes.owner },
  };
}

import type { DeleteNodeRequest, DeleteNodeResponse } from '@podwire/proto/podwire/ipam/v1/node';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readDeleteNodeRequest } from '../nodes/nodes-rpc.js';

export function deleteNode(ipam: Ipam): Handler<DeleteNodeRequest, DeleteNodeResponse> {
  return async (message, { signal }) => {
    const deletion = readDeleteNodeRequest(message);
    const { addressesCount, blocksCount } = await ipam.nodes.delete(deletion, signal);
    return { releasedAddresses: BigInt(addressesCount), releasedBlocks: BigInt(blocksCount) };
  };
}

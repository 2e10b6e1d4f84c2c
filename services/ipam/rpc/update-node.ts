import type { UpdateNodeRequest, UpdateNodeResponse } from '@podwire/proto/podwire/ipam/v1/node';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { nodeMessage, readUpdateNodeRequest } from '../nodes/nodes-rpc.js';

export function updateNode(ipam: Ipam): Handler<UpdateNodeRequest, UpdateNodeResponse> {
  return async (message, { signal }) => {
    const update = readUpdateNodeRequest(message);
    return { node: nodeMessage(await ipam.nodes.update(update, signal)) };
  };
}

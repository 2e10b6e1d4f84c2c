import type { GetNodeRequest, GetNodeResponse } from '@podwire/proto/podwire/ipam/v1/node';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { nodeMessage, readNodeName } from '../nodes/nodes-rpc.js';

export function getNode(ipam: Ipam): Handler<GetNodeRequest, GetNodeResponse> {
  return async (message, { signal }) => {
    const name = readNodeName('GetNode', message.name);
    return { node: nodeMessage(await ipam.nodes.get(name, signal)) };
  };
}

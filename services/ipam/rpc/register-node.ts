import type { RegisterNodeRequest, RegisterNodeResponse } from '@podwire/proto/podwire/ipam/v1/node';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { nodeMessage, readRegisterNodeRequest } from '../nodes/nodes-rpc.js';

export function registerNode(ipam: Ipam): Handler<RegisterNodeRequest, RegisterNodeResponse> {
  return async (message, { signal }) => {
    const registration = readRegisterNodeRequest(message);
    const { listing, outcome } = await ipam.nodes.register(registration, signal);
    return { node: nodeMessage(listing), created: outcome === 'created' };
  };
}

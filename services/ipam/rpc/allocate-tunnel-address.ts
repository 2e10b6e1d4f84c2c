import type { AllocateTunnelAddressRequest, AllocateTunnelAddressResponse } from '@podwire/proto/podwire/ipam/v1/node';
import { formatPrefix } from '@podwire/shared/net/prefix';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readTunnelEnd } from '../nodes/nodes-rpc.js';

export function allocateTunnelAddress(
  ipam: Ipam,
): Handler<AllocateTunnelAddressRequest, AllocateTunnelAddressResponse> {
  return async (message, { signal }) => {
    const end = readTunnelEnd('AllocateTunnelAddress', message);
    const { address, isKept, released } = await ipam.nodes.assignTunnel(end, signal);
    return {
      address: formatPrefix(address),
      alreadyAllocated: isKept,
      releasedAddresses: released.map(formatPrefix),
    };
  };
}

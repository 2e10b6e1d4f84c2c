import type { ReleaseTunnelAddressRequest, ReleaseTunnelAddressResponse } from '@podwire/proto/podwire/ipam/v1/node';
import { formatPrefix } from '@podwire/shared/net/prefix';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readTunnelEnd } from '../nodes/nodes-rpc.js';

export function releaseTunnelAddress(ipam: Ipam): Handler<ReleaseTunnelAddressRequest, ReleaseTunnelAddressResponse> {
  return async (message, { signal }) => {
    const end = readTunnelEnd('ReleaseTunnelAddress', message);
    const { released } = await ipam.nodes.releaseTunnel(end, signal);
    return { addresses: released.map(formatPrefix) };
  };
}

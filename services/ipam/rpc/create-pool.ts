import type { CreatePoolRequest, CreatePoolResponse } from '@podwire/proto/podwire/ipam/v1/pool';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { poolMessage, readCreatePoolRequest } from '../pools/pools-rpc.js';

export function createPool(ipam: Ipam): Handler<CreatePoolRequest, CreatePoolResponse> {
  return async (message, { signal }) => {
    const spec = readCreatePoolRequest(message);
    return { pool: poolMessage(await ipam.pools.create(spec, signal)) };
  };
}

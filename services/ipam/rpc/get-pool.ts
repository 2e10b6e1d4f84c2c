import type { GetPoolRequest, GetPoolResponse } from '@podwire/proto/podwire/ipam/v1/pool';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { poolMessage, readGetPoolRequest } from '../pools/pools-rpc.js';

export function getPool(ipam: Ipam): Handler<GetPoolRequest, GetPoolResponse> {
  return async (message, { signal }) => {
    const name = readGetPoolRequest(message);
    return { pool: poolMessage(await ipam.pools.get(name, signal)) };
  };
}

import type { UpdatePoolRequest, UpdatePoolResponse } from '@podwire/proto/podwire/ipam/v1/pool';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { poolFaultsFailure, poolMessage, readUpdatePoolRequest } from '../pools/pools-rpc.js';

export function updatePool(ipam: Ipam): Handler<UpdatePoolRequest, UpdatePoolResponse> {
  return async (message, { signal }) => {
    const updated = await ipam.pools.update(readUpdatePoolRequest(message), signal);
    if (!updated.ok) throw poolFaultsFailure('UpdatePool', updated.faults);
    return { pool: poolMessage(updated.listing) };
  };
}

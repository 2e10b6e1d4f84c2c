import type { SplitPoolRequest, SplitPoolResponse } from '@podwire/proto/podwire/ipam/v1/pool';
import { violationsFailure } from '@podwire/shared/failure/failure';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { poolMessage, readSplitPoolRequest } from '../pools/pools-rpc.js';

export function splitPool(ipam: Ipam): Handler<SplitPoolRequest, SplitPoolResponse> {
  return async (message, { signal }) => {
    const split = await ipam.pools.split(readSplitPoolRequest(message), signal);
    if (!split.ok) throw violationsFailure('INVALID_REQUEST', 'SplitPool refused', split.faults);
    return { pools: split.parts.map(poolMessage) };
  };
}

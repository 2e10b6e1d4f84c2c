import type { DeletePoolRequest, DeletePoolResponse } from '@podwire/proto/podwire/ipam/v1/pool';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { deletePoolResponse, readDeletePoolRequest } from '../pools/pools-rpc.js';

export function deletePool(ipam: Ipam): Handler<DeletePoolRequest, DeletePoolResponse> {
  return async (message, { signal }) =>
    deletePoolResponse(await ipam.pools.delete(readDeletePoolRequest(message), signal));
}

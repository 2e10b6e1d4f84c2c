import type { DeletePoolRequest, DeletePoolResponse } from '@podwire/proto/podwire/ipam/v1/pool';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readDeletePoolRequest } from './wire-pool.js';

export function deletePool(ipam: Ipam): Handler<DeletePoolRequest, DeletePoolResponse> {
  return async (message, { signal }) => {
    const deletion = readDeletePoolRequest(message);
    return { deletedBlocks: BigInt(await ipam.pools.delete(deletion, signal)) };
  };
}

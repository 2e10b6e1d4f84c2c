import { PoolServiceService, type PoolServiceServer } from '@podwire/proto/podwire/ipam/v1/pool';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { createPool } from '../create-pool.js';
import { deletePool } from '../delete-pool.js';
import { getPool } from '../get-pool.js';
import { listPools } from '../list-pools.js';
import { splitPool } from '../split-pool.js';
import { updatePool } from '../update-pool.js';

export function poolService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: PoolServiceServer = {
    createPool: unary(PoolServiceService.createPool, createPool(ipam)),
    getPool: unary(PoolServiceService.getPool, getPool(ipam)),
    listPools: unary(PoolServiceService.listPools, listPools(ipam)),
    updatePool: unary(PoolServiceService.updatePool, updatePool(ipam)),
    deletePool: unary(PoolServiceService.deletePool, deletePool(ipam)),
    splitPool: unary(PoolServiceService.splitPool, splitPool(ipam)),
  };
  return { name: 'podwire.ipam.v1.PoolService', definition: PoolServiceService, implementation };
}

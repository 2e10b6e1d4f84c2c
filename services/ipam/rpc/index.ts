import { AddressServiceService, type AddressServiceServer } from '@podwire/proto/podwire/ipam/v1/address';
import { BlockServiceService, type BlockServiceServer } from '@podwire/proto/podwire/ipam/v1/block';
import { PoolServiceService, type PoolServiceServer } from '@podwire/proto/podwire/ipam/v1/pool';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { allocate } from './allocate.js';
import { createPool } from './create-pool.js';
import { deletePool } from './delete-pool.js';
import { getEndpoint } from './get-endpoint.js';
import { getPool } from './get-pool.js';
import { listBlocks } from './list-blocks.js';
import { listPools } from './list-pools.js';
import { release } from './release.js';

/** Every method that podwire-ipam serves. */
export function ipamServices(ipam: Ipam, unary: Unary): readonly RpcService[] {
  const addresses: AddressServiceServer = {
    allocate: unary(AddressServiceService.allocate, allocate(ipam)),
    release: unary(AddressServiceService.release, release(ipam)),
    getEndpoint: unary(AddressServiceService.getEndpoint, getEndpoint(ipam)),
  };
  const pools: PoolServiceServer = {
    createPool: unary(PoolServiceService.createPool, createPool(ipam)),
    getPool: unary(PoolServiceService.getPool, getPool(ipam)),
    listPools: unary(PoolServiceService.listPools, listPools(ipam)),
    deletePool: unary(PoolServiceService.deletePool, deletePool(ipam)),
  };
  const blocks: BlockServiceServer = {
    listBlocks: unary(BlockServiceService.listBlocks, listBlocks(ipam)),
  };
  return [
    { name: 'podwire.ipam.v1.AddressService', definition: AddressServiceService, implementation: addresses },
    { name: 'podwire.ipam.v1.PoolService', definition: PoolServiceService, implementation: pools },
    { name: 'podwire.ipam.v1.BlockService', definition: BlockServiceService, implementation: blocks },
  ];
}

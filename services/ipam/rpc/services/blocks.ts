import { BlockServiceService, type BlockServiceServer } from '@podwire/proto/podwire/ipam/v1/block';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { listBlocks } from '../list-blocks.js';

export function blockService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: BlockServiceServer = {
    listBlocks: unary(BlockServiceService.listBlocks, listBlocks(ipam)),
  };
  return { name: 'podwire.ipam.v1.BlockService', definition: BlockServiceService, implementation };
}

import { HandleServiceService, type HandleServiceServer } from '@podwire/proto/podwire/ipam/v1/handle';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { getHandle } from '../get-handle.js';
import { listHandles } from '../list-handles.js';
import { releaseHandle } from '../release-handle.js';

export function handleService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: HandleServiceServer = {
    listHandles: unary(HandleServiceService.listHandles, listHandles(ipam)),
    getHandle: unary(HandleServiceService.getHandle, getHandle(ipam)),
    releaseHandle: unary(HandleServiceService.releaseHandle, releaseHandle(ipam)),
  };
  return { name: 'podwire.ipam.v1.HandleService', definition: HandleServiceService, implementation };
}

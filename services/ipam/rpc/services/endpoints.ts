import { EndpointServiceService, type EndpointServiceServer } from '@podwire/proto/podwire/ipam/v1/endpoint';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { listEndpoints } from '../list-endpoints.js';

export function endpointService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: EndpointServiceServer = {
    listEndpoints: unary(EndpointServiceService.listEndpoints, listEndpoints(ipam)),
  };
  return { name: 'podwire.ipam.v1.EndpointService', definition: EndpointServiceService, implementation };
}

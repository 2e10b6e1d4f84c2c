import { AffinityServiceService, type AffinityServiceServer } from '@podwire/proto/podwire/ipam/v1/affinity';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { claimAffinity } from '../claim-affinity.js';
import { ensureBlock } from '../ensure-block.js';
import { listAffinities } from '../list-affinities.js';
import { releaseAffinity } from '../release-affinity.js';

export function affinityService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: AffinityServiceServer = {
    listAffinities: unary(AffinityServiceService.listAffinities, listAffinities(ipam)),
    claimAffinity: unary(AffinityServiceService.claimAffinity, claimAffinity(ipam)),
    releaseAffinity: unary(AffinityServiceService.releaseAffinity, releaseAffinity(ipam)),
    ensureBlock: unary(AffinityServiceService.ensureBlock, ensureBlock(ipam)),
  };
  return { name: 'podwire.ipam.v1.AffinityService', definition: AffinityServiceService, implementation };
}

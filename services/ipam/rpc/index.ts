import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { addressService } from './services/addresses.js';
import { affinityService } from './services/affinities.js';
import { auditService } from './services/audit.js';
import { blockService } from './services/blocks.js';
import { handleService } from './services/handles.js';
import { poolService } from './services/pools.js';

/** Every service that podwire-ipam serves; each lists its methods in `services/`. */
export function ipamServices(ipam: Ipam, unary: Unary): readonly RpcService[] {
  return [addressService, handleService, affinityService, poolService, blockService, auditService].map((service) =>
    service(ipam, unary),
  );
}

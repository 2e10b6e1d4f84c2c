import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { addressService } from './services/addresses.js';
import { blockService } from './services/blocks.js';
import { poolService } from './services/pools.js';

/** Every service that podwire-ipam serves; each lists its methods in `services/`. */
export function ipamServices(ipam: Ipam, unary: Unary): readonly RpcService[] {
  return [addressService, poolService, blockService].map((service) => service(ipam, unary));
}

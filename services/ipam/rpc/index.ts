import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { addressService } from './services/addresses.js';
import { affinityService } from './services/affinities.js';
import { auditService } from './services/audit.js';
import { blockService } from './services/blocks.js';
import { configService } from './services/config.js';
import { endpointService } from './services/endpoints.js';
import { handleService } from './services/handles.js';
import { historyService } from './services/history.js';
import { nodeService } from './services/nodes.js';
import { poolService } from './services/pools.js';
import { requestPolicyService } from './services/request-policies.js';
import { reservationService } from './services/reservations.js';

const SERVICES = [
  addressService,
  handleService,
  historyService,
  affinityService,
  poolService,
  blockService,
  auditService,
  endpointService,
  nodeService,
  reservationService,
  requestPolicyService,
  configService,
];

/** Every service that podwire-ipam serves; each lists its methods in `services/`. */
export function ipamServices(ipam: Ipam, unary: Unary): readonly RpcService[] {
  return SERVICES.map((service) => service(ipam, unary));
}

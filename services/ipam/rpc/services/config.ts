import { ConfigServiceService, type ConfigServiceServer } from '@podwire/proto/podwire/ipam/v1/config';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { getConfig } from '../get-config.js';
import { updateConfig } from '../update-config.js';

export function configService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: ConfigServiceServer = {
    getConfig: unary(ConfigServiceService.getConfig, getConfig(ipam)),
    updateConfig: unary(ConfigServiceService.updateConfig, updateConfig(ipam)),
  };
  return { name: 'podwire.ipam.v1.ConfigService', definition: ConfigServiceService, implementation };
}

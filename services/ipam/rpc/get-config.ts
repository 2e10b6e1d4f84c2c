import type { GetConfigRequest, GetConfigResponse } from '@podwire/proto/podwire/ipam/v1/config';
import type { Handler } from '@podwire/shared/rpc/unary';

import { configMessage } from '../configuration/configuration-rpc.js';
import type { Ipam } from '../ipam.js';

export function getConfig(ipam: Ipam): Handler<GetConfigRequest, GetConfigResponse> {
  return async (_message, { signal }) => ({ config: configMessage(await ipam.configuration.get(signal)) });
}

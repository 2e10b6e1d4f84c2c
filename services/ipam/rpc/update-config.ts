import type { UpdateConfigRequest, UpdateConfigResponse } from '@podwire/proto/podwire/ipam/v1/config';
import type { Handler } from '@podwire/shared/rpc/unary';

import { configMessage, readUpdateConfigRequest } from '../configuration/configuration-rpc.js';
import type { Ipam } from '../ipam.js';

export function updateConfig(ipam: Ipam): Handler<UpdateConfigRequest, UpdateConfigResponse> {
  return async (message, { signal }) => {
    const update = readUpdateConfigRequest(message);
    return { config: configMessage(await ipam.configuration.update(update, signal)) };
  };
}

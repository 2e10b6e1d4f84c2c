import type { GetEndpointRequest, GetEndpointResponse } from '@podwire/proto/podwire/ipam/v1/address';
import type { Handler } from '@podwire/shared/rpc/unary';
import { withAttachment } from '@podwire/shared/runtime/log';

import type { Ipam } from '../ipam.js';
import { checked } from '@podwire/shared/rpc/checks';
import { readAttachment } from './wire-attachment.js';
import { endpointMessage } from './wire-endpoint.js';

export function getEndpoint(ipam: Ipam): Handler<GetEndpointRequest, GetEndpointResponse> {
  return async (message, { signal }) => {
    const attachment = checked('GetEndpoint', (checks) => readAttachment(message.attachment, checks));
    const endpoint = await withAttachment(attachment, () => ipam.addresses.getEndpoint(attachment, signal));
    return { endpoint: endpointMessage(endpoint) };
  };
}

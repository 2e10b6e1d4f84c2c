import type { GetEndpointRequest, GetEndpointResponse } from '@podwire/proto/podwire/ipam/v1/address';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';
import { withAttachment } from '@podwire/shared/runtime/log';

import { endpointMessage } from '../endpoints/endpoints-rpc.js';
import type { Ipam } from '../ipam.js';
import { readAttachment } from './wire-attachment.js';

export function getEndpoint(ipam: Ipam): Handler<GetEndpointRequest, GetEndpointResponse> {
  return async (message, { signal }) => {
    const attachment = checked('GetEndpoint', (checks) => readAttachment(message.attachment, checks));
    const endpoint = await withAttachment(attachment, () => ipam.addresses.getEndpoint(attachment, signal));
    return { endpoint: endpointMessage(endpoint) };
  };
}

import type { AllocateRequest, AllocateResponse } from '@podwire/proto/podwire/ipam/v1/address';
import type { Handler } from '@podwire/shared/rpc/unary';
import { withAttachment } from '@podwire/shared/runtime/log';

import { readAllocateRequest } from '../addresses/allocate-rpc.js';
import { endpointMessage } from '../endpoints/endpoints-rpc.js';
import type { Ipam } from '../ipam.js';

export function allocate(ipam: Ipam): Handler<AllocateRequest, AllocateResponse> {
  return async (message, { signal }) => {
    const request = readAllocateRequest(message);
    const { endpoint, added } = await withAttachment(request.attachment, () =>
      ipam.addresses.allocate(request, signal),
    );
    return { endpoint: endpointMessage(endpoint), alreadyAllocated: added.length === 0 };
  };
}

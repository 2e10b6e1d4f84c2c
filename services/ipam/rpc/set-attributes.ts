import type { SetAttributesRequest, SetAttributesResponse } from '@podwire/proto/podwire/ipam/v1/address';
import type { Handler } from '@podwire/shared/rpc/unary';

import { holderMessage, readSetAttributesRequest } from '../addresses/addresses-rpc.js';
import type { Ipam } from '../ipam.js';

export function setAttributes(ipam: Ipam): Handler<SetAttributesRequest, SetAttributesResponse> {
  return async (message, { signal }) => {
    const change = readSetAttributesRequest(message);
    return { holder: holderMessage(await ipam.addresses.setAttributes(change, signal)) };
  };
}

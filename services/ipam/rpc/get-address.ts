import type { GetAddressRequest, GetAddressResponse } from '@podwire/proto/podwire/ipam/v1/address';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import { addressMessage, readAddress } from '../addresses/addresses-rpc.js';
import type { Ipam } from '../ipam.js';

export function getAddress(ipam: Ipam): Handler<GetAddressRequest, GetAddressResponse> {
  return async (message, { signal }) => {
    const address = checked('GetAddress', (checks) => readAddress('address', message.address, checks));
    return addressMessage(await ipam.addresses.get(address, signal));
  };
}

import type { ReleaseAddressesRequest, ReleaseAddressesResponse } from '@podwire/proto/podwire/ipam/v1/address';
import type { Handler } from '@podwire/shared/rpc/unary';

import { readReleaseAddressesRequest, releasedAddressMessage } from '../addresses/addresses-rpc.js';
import type { Ipam } from '../ipam.js';

export function releaseAddresses(ipam: Ipam): Handler<ReleaseAddressesRequest, ReleaseAddressesResponse> {
  return async (message, { signal }) => {
    const releases = readReleaseAddressesRequest(message);
    const results = await ipam.addresses.releaseEach(releases, signal);
    const addresses = releases.flatMap((release, index) =>
      results.slice(index, index + 1).map((result) => releasedAddressMessage(release, result)),
    );
    return { addresses };
  };
}

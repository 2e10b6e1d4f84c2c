import type { AssignAddressesRequest, AssignAddressesResponse } from '@podwire/proto/podwire/ipam/v1/address';
import type { Handler } from '@podwire/shared/rpc/unary';

import { assignmentMessage, readAssignAddressesRequest } from '../addresses/assign-rpc.js';
import type { Ipam } from '../ipam.js';

export function assignAddresses(ipam: Ipam): Handler<AssignAddressesRequest, AssignAddressesResponse> {
  return async (message, { signal }) => {
    const asked = readAssignAddressesRequest(message);
    return assignmentMessage(asked, await ipam.assignments.assign(asked, signal));
  };
}

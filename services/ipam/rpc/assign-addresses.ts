import type { AssignAddressesRequest, AssignAddressesResponse } from '@podwire/proto/podwire/ipam/v1/address';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { assignmentMessage, readAssignAddressesRequest } from './wire-assign.js';

export function assignAddresses(ipam: Ipam): Handler<AssignAddressesRequest, AssignAddressesResponse> {
  return async (message, { signal }) => {
    const asked = readAssignAddressesRequest(message);
    return assignmentMessage(asked, await ipam.assignments.assign(asked, signal));
  };
}

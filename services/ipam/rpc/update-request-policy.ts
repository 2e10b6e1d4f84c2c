import type {
  UpdateRequestPolicyRequest,
  UpdateRequestPolicyResponse,
} from '@podwire/proto/podwire/ipam/v1/request_policy';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readUpdateRequestPolicyRequest, requestPolicyMessage } from '../policies/policies-rpc.js';

export function updateRequestPolicy(ipam: Ipam): Handler<UpdateRequestPolicyRequest, UpdateRequestPolicyResponse> {
  return async (message, { signal }) => {
    const asked = readUpdateRequestPolicyRequest(message);
    return { requestPolicy: requestPolicyMessage(await ipam.requestPolicies.update(asked, signal)) };
  };
}

import type {
  CreateRequestPolicyRequest,
  CreateRequestPolicyResponse,
} from '@podwire/proto/podwire/ipam/v1/request_policy';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readCreateRequestPolicyRequest, requestPolicyMessage } from '../policies/policies-rpc.js';

export function createRequestPolicy(ipam: Ipam): Handler<CreateRequestPolicyRequest, CreateRequestPolicyResponse> {
  return async (message, { signal }) => {
    const asked = readCreateRequestPolicyRequest(message);
    return { requestPolicy: requestPolicyMessage(await ipam.requestPolicies.create(asked, signal)) };
  };
}

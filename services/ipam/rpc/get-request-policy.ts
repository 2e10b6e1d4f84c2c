import type { GetRequestPolicyRequest, GetRequestPolicyResponse } from '@podwire/proto/podwire/ipam/v1/request_policy';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readPolicyName, requestPolicyMessage } from '../policies/policies-rpc.js';

export function getRequestPolicy(ipam: Ipam): Handler<GetRequestPolicyRequest, GetRequestPolicyResponse> {
  return async (message, { signal }) => {
    const name = readPolicyName('GetRequestPolicy', message.name);
    return { requestPolicy: requestPolicyMessage(await ipam.requestPolicies.get(name, signal)) };
  };
}

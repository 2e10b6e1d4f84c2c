import type {
  DeleteRequestPolicyRequest,
  DeleteRequestPolicyResponse,
} from '@podwire/proto/podwire/ipam/v1/request_policy';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readPolicyName } from '../policies/policies-rpc.js';

export function deleteRequestPolicy(ipam: Ipam): Handler<DeleteRequestPolicyRequest, DeleteRequestPolicyResponse> {
  return async ({ name, resourceVersion }, { signal }) => {
    await ipam.requestPolicies.delete({ name: readPolicyName('DeleteRequestPolicy', name), resourceVersion }, signal);
    return {};
  };
}

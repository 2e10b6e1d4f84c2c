import {
  RequestPolicyServiceService,
  type RequestPolicyServiceServer,
} from '@podwire/proto/podwire/ipam/v1/request_policy';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { authorizeRequests } from '../authorize-requests.js';
import { createRequestPolicy } from '../create-request-policy.js';
import { deleteRequestPolicy } from '../delete-request-policy.js';
import { getRequestPolicy } from '../get-request-policy.js';
import { listRequestPolicies } from '../list-request-policies.js';
import { updateRequestPolicy } from '../update-request-policy.js';

export function requestPolicyService(ipam: Ipam, unary: Unary): RpcService {
  const methods = RequestPolicyServiceService;
  const implementation: RequestPolicyServiceServer = {
    createRequestPolicy: unary(methods.createRequestPolicy, createRequestPolicy(ipam)),
    getRequestPolicy: unary(methods.getRequestPolicy, getRequestPolicy(ipam)),
    listRequestPolicies: unary(methods.listRequestPolicies, listRequestPolicies(ipam)),
    updateRequestPolicy: unary(methods.updateRequestPolicy, updateRequestPolicy(ipam)),
    deleteRequestPolicy: unary(methods.deleteRequestPolicy, deleteRequestPolicy(ipam)),
    authorizeRequests: unary(methods.authorizeRequests, authorizeRequests(ipam)),
  };
  return { name: 'podwire.ipam.v1.RequestPolicyService', definition: methods, implementation };
}

import type {
  AuthorizeRequestsRequest,
  AuthorizeRequestsResponse,
} from '@podwire/proto/podwire/ipam/v1/request_policy';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { readAuthorizeRequestsRequest } from './wire-authorize.js';

export function authorizeRequests(ipam: Ipam): Handler<AuthorizeRequestsRequest, AuthorizeRequestsResponse> {
  return async (message, { signal }) => {
    await ipam.requestPolicies.authorize(readAuthorizeRequestsRequest(message), signal);
    return {};
  };
}

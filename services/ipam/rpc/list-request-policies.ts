import type {
  ListRequestPoliciesRequest,
  ListRequestPoliciesResponse,
} from '@podwire/proto/podwire/ipam/v1/request_policy';
import { checked } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { requestPolicyMessage } from '../policies/policies-rpc.js';
import type { RequestPolicyQuery } from '../policies/policies.js';

const SCOPE: ListScope = ['request policies'];

export function listRequestPolicies(ipam: Ipam): Handler<ListRequestPoliciesRequest, ListRequestPoliciesResponse> {
  return async (message, { signal }) => {
    const { items, more } = await ipam.requestPolicies.list(readQuery(message), signal);
    const last = items.at(-1);
    return {
      requestPolicies: items.map(requestPolicyMessage),
      nextPageToken: more && last ? formatPageToken(SCOPE, last.name) : '',
    };
  };
}

function readQuery(message: ListRequestPoliciesRequest): RequestPolicyQuery {
  return checked('ListRequestPolicies', (checks) => ({
    limit: readPageSize(message, checks),
    after: readPageToken(message, SCOPE, checks),
  }));
}

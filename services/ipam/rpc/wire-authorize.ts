import type { AuthorizeRequestsRequest } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { checked } from '@podwire/shared/rpc/checks';

import { readNamespaceLabels, readPod } from '../addresses/allocate-rpc.js';
import type { Petition } from '../allocator/request-policy/petition.js';
import { checkOnePerFamily, readAddresses } from '../messages/parts.js';
import { readRequests } from '../messages/request-parts.js';

export function readAuthorizeRequestsRequest(message: AuthorizeRequestsRequest): Petition {
  return checked('AuthorizeRequests', (checks) => {
    if (!message.pod) checks.check('pod', 'is missing');
    const pod = message.pod ? readPod(message.pod, checks) : { namespace: '', name: '', uid: '' };
    const addresses = readAddresses(message.addresses, checks);
    checkOnePerFamily(addresses, [], checks);
    return {
      namespace: { name: pod.namespace, labels: readNamespaceLabels(message.namespaceLabels, pod, checks) },
      pools: [],
      poolChoices: [],
      addresses,
      requests: readRequests(message.requests, checks),
    };
  });
}

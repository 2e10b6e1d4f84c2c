import type { ListEndpointsRequest, ListEndpointsResponse } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { checked, type Checks } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import { listedEndpointMessage } from '../endpoints/endpoints-rpc.js';
import type { EndpointQuery } from '../endpoints/endpoints.js';
import type { Ipam } from '../ipam.js';
import { labelFault, subdomainFault } from '../records/names.js';

export function listEndpoints(ipam: Ipam): Handler<ListEndpointsRequest, ListEndpointsResponse> {
  return async (message, { signal }) => {
    const { items, next } = await ipam.endpoints.list(readQuery(message), signal);
    return {
      endpoints: items.map(listedEndpointMessage),
      nextPageToken: next === '' ? '' : formatPageToken(scopeOf(message), next),
    };
  };
}

function scopeOf({ nodeName, namespace, podName, poolName }: ListEndpointsRequest): ListScope {
  return ['endpoints', nodeName, namespace, podName, poolName];
}

function readQuery(message: ListEndpointsRequest): EndpointQuery {
  const { nodeName, namespace, podName, poolName } = message;
  return checked('ListEndpoints', (checks) => {
    checkFilters(message, checks);
    const page = { limit: readPageSize(message, checks), after: readPageToken(message, scopeOf(message), checks) };
    return { ...page, nodeName, namespace, podName, poolName };
  });
}

function checkFilters({ nodeName, namespace, podName, poolName }: ListEndpointsRequest, checks: Checks): void {
  if (nodeName !== '') checks.check('node_name', subdomainFault(nodeName));
  if (namespace !== '') checks.check('namespace', labelFault(namespace));
  if (podName !== '') checks.check('pod_name', subdomainFault(podName));
  if (poolName !== '') checks.check('pool_name', subdomainFault(poolName));
}

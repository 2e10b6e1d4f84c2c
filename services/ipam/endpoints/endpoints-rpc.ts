import {
  EndpointServiceService,
  type Endpoint as EndpointMessage,
  type ListEndpointsRequest,
} from '@podwire/proto/podwire/ipam/v1/endpoint';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPage, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { read, type IpamOptions } from '../engine/updates/operation.js';
import { endpointKey, type Endpoint } from '../records/endpoint.js';
import { labelFault, subdomainFault } from '../records/names.js';
import {
  listEndpoints,
  type EndpointListing,
  type EndpointPage,
  type EndpointQuery,
  type ForeignListing,
} from './endpoints.js';

export function endpointService(endpoints: Endpoints, unary: Unary): RpcService {
  return unaryService(EndpointServiceService, unary, {
    listEndpoints: async (message, { signal }) => {
      const { items, next } = await endpoints.list(readQuery(message), signal);
      return { endpoints: items.map(listedEndpointMessage), nextPageToken: formatPageToken(scopeOf(message), next) };
    },
  });
}

function scopeOf({ nodeName, namespace, podName, poolName }: ListEndpointsRequest): ListScope {
  return ['endpoints', nodeName, namespace, podName, poolName];
}

function readQuery(message: ListEndpointsRequest): EndpointQuery {
  const { nodeName, namespace, podName, poolName } = message;
  return readChecked('ListEndpoints', (checks) => {
    checkFilters(message, checks);
    return { ...readPage(message, scopeOf(message), checks), nodeName, namespace, podName, poolName };
  });
}

function checkFilters({ nodeName, namespace, podName, poolName }: ListEndpointsRequest, checks: Checks): void {
  if (nodeName !== '') checks.check('node_name', subdomainFault(nodeName));
  if (namespace !== '') checks.check('namespace', labelFault(namespace));
  if (podName !== '') checks.check('pod_name', subdomainFault(podName));
  if (poolName !== '') checks.check('pool_name', subdomainFault(poolName));
}

/** Lists attachments with their addresses. */
export class Endpoints {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  list(query: EndpointQuery, signal: AbortSignal): Promise<EndpointPage> {
    return read(this.#options, (view) => listEndpoints(view, query), signal);
  }
}

export function endpointMessage(endpoint: Endpoint): EndpointMessage {
  const { attachment, uid, createTimeMs, nodeName, pod, addresses, mac, hostInterfaceName, netns } = endpoint;
  const { namespace, name } = endpointKey(endpoint);
  return {
    attachment: { ...attachment },
    namespace,
    name,
    uid,
    createTime: createTimeMs === undefined ? undefined : new Date(createTimeMs),
    nodeName,
    pod: pod && { ...pod },
    addresses: addresses.map(({ address, block, poolName, sequenceNumber }) => ({
      address: formatPrefix(address),
      blockCidr: formatPrefix(block),
      poolName,
      sequenceNumber,
    })),
    macAddress: mac,
    hostInterfaceName,
    netns: netns && { ...netns },
  };
}

function listedEndpointMessage(listing: EndpointListing): EndpointMessage {
  return listing.kind === 'endpoint' ? endpointMessage(listing.value) : foreignEndpointMessage(listing);
}

/** Another writer's endpoint names neither the network nor the allocations of its addresses. */
function foreignEndpointMessage({ key, value, addresses }: ForeignListing): EndpointMessage {
  const { uid, createTimeMs, nodeName, podName, mac, hostInterfaceName } = value;
  return {
    attachment: undefined,
    ...key,
    uid,
    createTime: createTimeMs === undefined ? undefined : new Date(createTimeMs),
    nodeName,
    pod: podName === '' ? undefined : { namespace: key.namespace, name: podName, uid: '' },
    addresses: addresses.map(({ address, block, poolName }) => ({
      address: formatPrefix(address),
      blockCidr: block ? formatPrefix(block) : '',
      poolName,
      sequenceNumber: 0n,
    })),
    macAddress: mac,
    hostInterfaceName,
    netns: undefined,
  };
}

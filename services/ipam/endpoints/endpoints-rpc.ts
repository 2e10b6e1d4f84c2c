import type { Endpoint as EndpointMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { formatPrefix } from '@podwire/shared/net/prefix';

import type { Endpoint } from '../allocator/records.js';
import { endpointKey } from '../records/endpoint.js';
import type { EndpointListing, ForeignListing } from './endpoints.js';

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

export function listedEndpointMessage(listing: EndpointListing): EndpointMessage {
  return listing.kind === 'endpoint' ? endpointMessage(listing.value) : foreignEndpointMessage(listing);
}

/** Another writer's endpoint tells neither the network nor the allocations of its addresses. */
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

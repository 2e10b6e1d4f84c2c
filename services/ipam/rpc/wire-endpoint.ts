import type { Endpoint as EndpointMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { formatPrefix } from '@podwire/shared/net/prefix';

import { endpointKey } from '../allocator/endpoint.js';
import type { Endpoint } from '../allocator/records.js';

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

import { derivedNames } from '@podwire/shared/attachment/names';

import type { Allocation, Endpoint, WantedPod } from '../clients/clients.js';
import { isIpv6 } from '../cni/address-list.js';
import { delegatedEndpoint } from '../delegate/delegated-endpoint.js';
import { delegateOf } from '../delegate/share.js';
import type { NetnsIdentity } from '../netns.js';
import type { PodRequest } from '../request.js';
import type { CommandTools } from './tools.js';

/** What an attachment has whose addresses IPAM is not asked for; undefined for every other. */
export function endpointWithoutIpam({ attachment, wish }: PodRequest): Endpoint | undefined {
  if (wish.addressesWithoutIpam.length === 0) return undefined;
  const { hostInterfaceName, mac } = derivedNames(attachment);
  const addresses = wish.addressesWithoutIpam.map((address) => `${address}/${isIpv6(address) ? 128 : 32}`);
  return { addresses, held: [], macAddress: mac, hostInterfaceName };
}

/**
 * Gets an attachment its addresses: from IPAM, unless it brings its own, which are taken for allocated before.
 * @param netns - of the attachment's namespace
 */
export async function obtainEndpoint(
  request: PodRequest,
  netns: NetnsIdentity,
  tools: CommandTools,
): Promise<Allocation> {
  const own = endpointWithoutIpam(request);
  if (own) return { endpoint: own, alreadyAllocated: true, poolNames: [] };
  const { attachment, config, pod, wish } = request;
  const delegate = delegateOf(request.share);
  if (delegate) return delegatedEndpoint({ attachment, wish, delegate }, tools);
  const { families, pools, addresses } = wish;
  const nodeName = config.nodeName ?? tools.nodeName;
  return tools.ipam.allocate({ attachment, nodeName, pod, netns, families, pools, addresses }, tools.limits);
}

/** What the kernel is to hold of an attachment. */
export function wantedPod({ attachment, netns, config, wish }: PodRequest, endpoint: Endpoint): WantedPod {
  return {
    ...endpoint,
    macAddress: wish.macAddress ?? endpoint.macAddress,
    attachment,
    netns,
    mtuBytes: config.mtuBytes,
    ipForwarding: config.ipForwarding,
    sourcePrefixes: wish.sourcePrefixes,
    queueCount: config.queueCount,
  };
}

import { derivedNames } from '@podwire/shared/attachment/names';
import { violationsFailure } from '@podwire/shared/failure/failure';

import { delegatedEndpoint } from '../addresses/ipam-result.js';
import { delegateOf } from '../addresses/mode.js';
import type { Allocation, Endpoint, WantedPod } from '../clients/clients.js';
import { isIpv6 } from '../cni/address-list.js';
import { FLOATING_IPS_PLACE } from '../cni/annotations.js';
import type { NetnsIdentity } from '../requests/netns.js';
import type { PodRequest } from '../requests/request.js';
import type { CommandTools } from './context.js';

/** What an attachment has whose addresses IPAM is not asked for; undefined for every other. */
export function endpointWithoutIpam({ attachment, wish }: PodRequest): Endpoint | undefined {
  if (wish.addressesWithoutIpam.length === 0) return undefined;
  const { hostInterfaceName, mac } = derivedNames(attachment);
  const addresses = wish.addressesWithoutIpam.map((address) => `${address}/${isIpv6(address) ? 128 : 32}`);
  return { addresses, held: [], macAddress: mac, hostInterfaceName };
}

/**
 * Refuses what Podwire does not do, before anything is begun. Whether the namespace may ask for it at all comes first: who may not is
 * told that, whatever Podwire can.
 * @throws Failure REQUEST_DENIED, or INVALID_CONFIG that says what to do instead
 */
export async function refuseUnsupported(request: PodRequest, tools: CommandTools): Promise<void> {
  const { floatingIps } = request.wish;
  if (floatingIps.length === 0) return;
  await authorize(request, tools);
  const reason = `asks for floating IPs (${floatingIps.join(', ')}), which Podwire does not make: podwire-dataplane has no NAT for them; remove it, and publish a port of the pod by portMappings or a Service`;
  throw violationsFailure('INVALID_CONFIG', 'request refused', [{ field: FLOATING_IPS_PLACE, reason }]);
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
  const { attachment, config, pod, wish } = request;
  const own = endpointWithoutIpam(request);
  const delegate = delegateOf(request.share);
  if (own || delegate) await authorize(request, tools);
  if (own) return { endpoint: own, alreadyAllocated: true, poolNames: [] };
  if (delegate) return delegatedEndpoint({ attachment, wish, delegate }, tools);
  const { families, pools, addresses } = wish;
  const nodeName = config.nodeName ?? tools.nodeName;
  const allocation = { attachment, nodeName, pod, netns, families, pools, addresses, asked: wish };
  return tools.ipam.allocate(allocation, tools.limits);
}

/**
 * Asks for what a pod is to get without Allocate, which judges the rest. Where it asks for nothing, IPAM need not be there.
 * @throws Failure REQUEST_DENIED
 */
async function authorize({ pod, wish }: PodRequest, { ipam, limits }: CommandTools): Promise<void> {
  const { addresses, addressesWithoutIpam, chosenFamilies, macAddress, sourcePrefixes, floatingIps } = wish;
  const lists = [addresses, addressesWithoutIpam, chosenFamilies, sourcePrefixes, floatingIps];
  const asksForSomething = macAddress !== undefined || lists.some((list) => list.length > 0);
  if (pod && asksForSomething) await ipam.authorize({ pod, addresses, asked: wish }, limits);
}

/** What the kernel is to hold of an attachment. */
export function wantedPod(request: PodRequest, endpoint: Endpoint): WantedPod {
  const { attachment, netns, config, wish, share } = request;
  const { macAddress, ...allocated } = endpoint;
  return {
    macAddress: wish.macAddress ?? macAddress,
    attachment,
    netns,
    mtuBytes: config.mtuBytes,
    ipForwarding: config.ipForwarding,
    sourcePrefixes: wish.sourcePrefixes,
    queueCount: config.queueCount,
    addressesFromIpam: wish.addressesWithoutIpam.length === 0 && delegateOf(share) === undefined,
    ...allocated,
  };
}

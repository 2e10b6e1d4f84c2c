import {
  AddressServiceService,
  IpFamily,
  type AllocateRequest,
  type PodRequests,
  type PoolChoice,
} from '@podwire/proto/podwire/ipam/v1/address';
import type { Endpoint as EndpointMessage, EndpointAddress } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Family } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';

import type { AskedOfPod, Endpoint, HeldAddress, Ipam } from './clients.js';
import { RepeatingPeer, type PeerOptions } from './retrying-client.js';

/** What the plugin leaves to podwire-ipam. */
const LEFT_OPEN = { maxBlocksPerNode: 0 };

const FAMILY: Readonly<Record<Family, IpFamily>> = { 4: IpFamily.IP_FAMILY_IPV4, 6: IpFamily.IP_FAMILY_IPV6 };

/** podwire-ipam over gRPC. */
export function ipamClient(options: PeerOptions): Ipam {
  const peer = new RepeatingPeer(options);
  const { allocate, release, getEndpoint } = AddressServiceService;
  return {
    async allocate(request, limits) {
      const { families, pools, addresses, asked, ...rest } = request;
      const message: AllocateRequest = {
        families: families.map(familyMessage),
        pools: [...pools],
        addresses: [...addresses],
        poolChoices: (asked?.poolChoices ?? []).map(poolChoiceMessage),
        namespaceLabels: { ...asked?.namespaceLabels },
        requests: asked && requestsOf(asked),
        ...rest,
        ...LEFT_OPEN,
      };
      const response = await peer.call(allocate, message, limits);
      const endpoint = peer.required(response.endpoint, 'an endpoint');
      const poolNames = endpoint.addresses.map(({ poolName }) => poolName);
      return { endpoint: endpointOf(endpoint), alreadyAllocated: response.alreadyAllocated, poolNames };
    },

    async authorize({ pod, addresses, asked }, limits) {
      const message = {
        pod,
        namespaceLabels: { ...asked.namespaceLabels },
        addresses: [...addresses],
        requests: requestsOf(asked),
      };
      await peer.call(RequestPolicyServiceService.authorizeRequests, message, limits);
    },

    async release(attachment, limits) {
      await peer.call(release, { attachment }, limits);
    },

    openRelease(limits) {
      const { make, close } = peer.open(release, limits);
      return { make: (attachment, within) => make({ attachment }, within).then(() => undefined), close };
    },

    async getEndpoint(attachment, limits) {
      try {
        const response = await peer.call(getEndpoint, { attachment }, limits);
        return endpointOf(peer.required(response.endpoint, 'an endpoint'));
      } catch (failure) {
        if (failure instanceof Failure && failure.code === 'ENDPOINT_NOT_FOUND') return undefined;
        throw failure;
      }
    },

    async poolCidr(name, limits) {
      const { pool } = await peer.call(PoolServiceService.getPool, { name }, limits);
      return peer.required(pool, 'a pool').cidr;
    },
  };
}

function requestsOf({
  chosenFamilies,
  addressesWithoutIpam,
  macAddress = '',
  sourcePrefixes,
  floatingIps,
}: AskedOfPod): PodRequests {
  return {
    families: chosenFamilies.map(familyMessage),
    addressesWithoutIpam: [...addressesWithoutIpam],
    macAddress,
    sourcePrefixes: [...sourcePrefixes],
    floatingIps: [...floatingIps],
  };
}

function endpointOf({ addresses, macAddress, hostInterfaceName }: EndpointMessage): Endpoint {
  const cidrs = addresses.map(({ address }) => address);
  return { addresses: cidrs, held: heldAddresses(addresses), macAddress, hostInterfaceName };
}

/** What names an allocation, of an endpoint's addresses. */
export function heldAddresses(addresses: readonly EndpointAddress[]): HeldAddress[] {
  return addresses.flatMap(({ address, sequenceNumber }) => {
    const parts = splitCidr(address);
    return parts ? [{ address: formatAddress(parts.address), sequenceNumber }] : [];
  });
}

export function familyMessage(family: Family): IpFamily {
  return FAMILY[family];
}

export function poolChoiceMessage({ pool, family, isConfigured }: AskedOfPod['poolChoices'][number]): PoolChoice {
  return { pool, family: familyMessage(family), isConfigured };
}

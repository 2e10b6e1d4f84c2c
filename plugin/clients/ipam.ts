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

import type { PolicyInput, Endpoint, HeldAddress, Ipam } from './clients.js';
import { RetryingPeer, type PeerOptions } from './retrying-client.js';

/** Fields whose default podwire-ipam chooses. */
const IPAM_DEFAULTS = { maxBlocksPerNode: 0 };

const FAMILY: Readonly<Record<Family, IpFamily>> = { 4: IpFamily.IP_FAMILY_IPV4, 6: IpFamily.IP_FAMILY_IPV6 };

/** podwire-ipam over gRPC. */
export function ipamClient(options: PeerOptions): Ipam {
  const peer = new RetryingPeer(options);
  const { allocate, release, getEndpoint } = AddressServiceService;
  return {
    async allocate(request, limits) {
      const { families, pools, addresses, policyInput, ...rest } = request;
      const message: AllocateRequest = {
        families: families.map(familyMessage),
        pools: [...pools],
        addresses: [...addresses],
        poolChoices: (policyInput?.poolChoices ?? []).map(poolChoiceMessage),
        namespaceLabels: { ...policyInput?.namespaceLabels },
        requests: policyInput && requestsOf(policyInput),
        ...rest,
        ...IPAM_DEFAULTS,
      };
      const response = await peer.call(allocate, message, limits);
      const endpoint = peer.required(response.endpoint, 'an endpoint');
      const poolNames = endpoint.addresses.map(({ poolName }) => poolName);
      return { endpoint: endpointOf(endpoint), alreadyAllocated: response.alreadyAllocated, poolNames };
    },

    async authorize({ pod, addresses, policyInput }, limits) {
      const message = {
        pod,
        namespaceLabels: { ...policyInput.namespaceLabels },
        addresses: [...addresses],
        requests: requestsOf(policyInput),
      };
      await peer.call(RequestPolicyServiceService.authorizeRequests, message, limits);
    },

    async release(attachment, limits) {
      await peer.call(release, { attachment }, limits);
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
}: PolicyInput): PodRequests {
  return {
    families: chosenFamilies.map(familyMessage),
    addressesWithoutIpam: [...addressesWithoutIpam],
    macAddress,
    sourcePrefixes: [...sourcePrefixes],
  };
}

function endpointOf({ addresses, macAddress, hostInterfaceName }: EndpointMessage): Endpoint {
  const cidrs = addresses.map(({ address }) => address);
  return { addresses: cidrs, addressesFromIpam: true, held: heldAddresses(addresses), macAddress, hostInterfaceName };
}

/** The addresses of an endpoint with their sequence numbers. */
export function heldAddresses(addresses: readonly EndpointAddress[]): HeldAddress[] {
  return addresses.flatMap(({ address, sequenceNumber }) => {
    const parts = splitCidr(address);
    return parts ? [{ address: formatAddress(parts.address), sequenceNumber }] : [];
  });
}

export function familyMessage(family: Family): IpFamily {
  return FAMILY[family];
}

export function poolChoiceMessage({ pool, family, isConfigured }: PolicyInput['poolChoices'][number]): PoolChoice {
  return { pool, family: familyMessage(family), isConfigured };
}

import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import {
  AddressServiceService,
  IpFamily,
  type AllocateRequest,
  type PodRequests,
  type PoolChoice,
} from '@podwire/proto/podwire/ipam/v1/address';
import {
  EndpointServiceService,
  type Endpoint as EndpointMessage,
  type EndpointAddress,
} from '@podwire/proto/podwire/ipam/v1/endpoint';
import { NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Family } from '@podwire/shared/net/address';
import { formatPrefix, splitCidr } from '@podwire/shared/net/prefix';
import type { Peer } from '@podwire/shared/rpc/client';

import type { Endpoint, Ipam, Limits, NodeEndpoint, PolicyInput } from './clients.js';
import { RetryingPeer, type PeerOptions } from './retrying-client.js';

/** Fields whose default podwire-ipam chooses. */
const IPAM_DEFAULTS = { maxBlocksPerNode: 0 };

const FAMILY: Readonly<Record<Family, IpFamily>> = { 4: IpFamily.IP_FAMILY_IPV4, 6: IpFamily.IP_FAMILY_IPV6 };

const PAGE_SIZE = 1000;

/** A container that does not exist, for asking podwire-ipam what a pod would get. */
const PROBE_CONTAINER = { containerId: 'podwire-status', interfaceName: 'eth0' };

/** Remaining fields of a probe's allocation request. */
const PROBE_DEFAULTS = {
  pod: undefined,
  netns: undefined,
  namespaceLabels: {},
  addresses: [],
  maxBlocksPerNode: 0,
};

interface IpamClientOptions extends PeerOptions {
  /** The node that this process runs on. */
  readonly nodeName: string;
}

/** podwire-ipam over gRPC. */
export function ipamClient(options: IpamClientOptions): Ipam {
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
        namespaceLabels: {},
        requests: policyInput && requestsOf(policyInput),
        ...rest,
        ...IPAM_DEFAULTS,
      };
      const response = await peer.call(allocate, message, limits);
      const endpoint = peer.required(response.endpoint, 'an endpoint');
      const { alreadyAllocated } = response;
      return { endpoint: endpointOf(peer, endpoint), alreadyAllocated, origins: endpoint.addresses };
    },

    async authorize({ pod, addresses, policyInput }, limits) {
      const message = {
        pod,
        namespaceLabels: {},
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
        return endpointOf(peer, peer.required(response.endpoint, 'an endpoint'));
      } catch (failure) {
        if (failure instanceof Failure && failure.code === 'ENDPOINT_NOT_FOUND') return undefined;
        throw failure;
      }
    },

    async poolCidr(name, limits) {
      const { pool } = await peer.call(PoolServiceService.getPool, { name }, limits);
      return peer.required(pool, 'a pool').cidr;
    },

    async podCidrs(name, limits) {
      return (await peer.call(NodeServiceService.getNode, { name, withPodCidrs: true }, limits)).podCidrs;
    },

    ...upkeepCalls(peer, options),
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
    sourcePrefixes: sourcePrefixes.map(formatPrefix),
  };
}

function endpointOf(peer: RetryingPeer, message: EndpointMessage): Endpoint {
  const { macAddress, hostInterfaceName } = message;
  const addresses = message.addresses.map(({ address }) =>
    peer.required(splitCidr(address)?.address, 'a valid address'),
  );
  return { addresses, addressesFromIpam: true, held: heldAddresses(message.addresses), macAddress, hostInterfaceName };
}

/** The addresses of an endpoint with their sequence numbers. */
function heldAddresses(addresses: readonly EndpointAddress[]): AllocatedAddress[] {
  return addresses.flatMap(({ address, sequenceNumber }) => {
    const parts = splitCidr(address);
    return parts ? [{ address: formatAddress(parts.address), sequenceNumber }] : [];
  });
}

function familyMessage(family: Family): IpFamily {
  return FAMILY[family];
}

function poolChoiceMessage({ pool, family, isConfigured }: PolicyInput['poolChoices'][number]): PoolChoice {
  return { pool, family: familyMessage(family), isConfigured };
}

type UpkeepCalls = Pick<Ipam, 'releaseHeld' | 'endpointsOf' | 'refusalOf' | 'isServing' | 'unreachablePeer'>;

/** Calls of GC, STATUS and the journal. */
function upkeepCalls(peer: RetryingPeer, options: IpamClientOptions): UpkeepCalls {
  const { releaseAddresses, explainAllocation } = AddressServiceService;
  return {
    async releaseHeld(attachment, held, limits) {
      const releases = held.map((each) => ({ handleId: handleId(attachment), ...each }));
      await peer.call(releaseAddresses, { releases, nodeName: options.nodeName }, limits);
    },

    async endpointsOf({ nodeName, network }, limits) {
      const endpoints: EndpointMessage[] = [];
      let pageToken = '';
      do {
        const request = { pageSize: PAGE_SIZE, pageToken, nodeName, namespace: '', podName: '', poolName: '' };
        const page = await peer.call(EndpointServiceService.listEndpoints, request, limits);
        endpoints.push(...page.endpoints);
        pageToken = page.nextPageToken;
      } while (pageToken !== '');
      return endpoints.flatMap(nodeEndpoints).filter(({ attachment }) => attachment.network === network);
    },

    async refusalOf({ nodeName, network, podRequest }, limits) {
      const request = {
        nodeName,
        attachment: { network, ...PROBE_CONTAINER },
        families: podRequest.families.map(familyMessage),
        pools: [...podRequest.pools],
        poolChoices: podRequest.poolChoices.map(poolChoiceMessage),
        ...PROBE_DEFAULTS,
      };
      const explanation = { request, maxBlocks: 1, anyNamespace: true };
      const { refusal } = await options.peer.call(explainAllocation, explanation, limits);
      return refusal === '' ? undefined : refusal;
    },

    isServing: (limits) => isServing(options.peer, limits),

    unreachablePeer: () => (options.peer.isConnected ? undefined : options.peer.description),
  };
}

/** Skips an endpoint without an attachment, which Podwire did not create. */
function nodeEndpoints({ attachment, addresses, netns, createTime }: EndpointMessage): NodeEndpoint[] {
  if (!attachment) return [];
  const held = heldAddresses(addresses);
  return [{ attachment, held, bootId: netns?.bootId, createdAtMs: createTime?.getTime() }];
}

type Method<Request, Response> = Parameters<typeof Peer.prototype.call<Request, Response>>[0];

/** ServingStatus of grpc.health.v1. */
const SERVING = 1;

/** Tag of the only field of HealthCheckResponse: number 1, a varint. */
const STATUS_TAG = 0x08;

/** `grpc.health.v1.Health/Check` of a whole server (gRPC Health Checking Protocol). */
const HEALTH_CHECK: Method<'server', number> = {
  path: '/grpc.health.v1.Health/Check',
  requestStream: false,
  responseStream: false,
  requestSerialize: () => Buffer.alloc(0),
  requestDeserialize: () => 'server',
  responseSerialize: (status) => Buffer.from([STATUS_TAG, status]),
  responseDeserialize: (bytes) => (bytes[0] === STATUS_TAG ? (bytes[1] ?? 0) : 0),
};

/**
 * Whether a service reports SERVING.
 * @throws Failure UNREACHABLE or DEADLINE_EXCEEDED when it does not answer; UNIMPLEMENTED when it has no health service
 */
async function isServing(peer: Peer, limits: Limits): Promise<boolean> {
  return (await peer.call(HEALTH_CHECK, 'server', limits)) === SERVING;
}

import { AddressServiceService } from '@podwire/proto/podwire/ipam/v1/address';
import { EndpointServiceService, type Endpoint as EndpointMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import type { Peer } from '@podwire/shared/rpc/client';

import type { PodRequest } from '../cni/pod-request.js';
import type { HeldAddress, Limits } from './clients.js';
import { familyMessage, heldAddresses, poolChoiceMessage } from './ipam.js';
import { RetryingPeer, type PeerOptions } from './retrying-client.js';

/** Calls of GC, STATUS and the journal to podwire-ipam. */

/** The allocation of an attachment of this node. */
export interface NodeEndpoint {
  readonly attachment: Attachment;
  readonly held: readonly HeldAddress[];
  /** The boot in which it was allocated; undefined if not recorded. */
  readonly bootId: string | undefined;
  /** In epoch milliseconds; undefined if an earlier release allocated it. */
  readonly createdAtMs: number | undefined;
}

/** The hypothetical pod of a readiness probe. */
export interface ProbePod {
  readonly nodeName: string;
  readonly network: string;
  readonly podRequest: Pick<PodRequest, 'families' | 'pools' | 'poolChoices'>;
}

/** Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED or the signal's reason. */
export interface IpamUpkeep {
  /** Releases these addresses of the attachment, and no later allocation. Idempotent. Call it from the attachment's queue. */
  releaseHeld(attachment: Attachment, held: readonly HeldAddress[], limits: Limits): Promise<void>;
  /** Allocations of a node's attachments to a network. */
  endpointsOf(of: { readonly nodeName: string; readonly network: string }, limits: Limits): Promise<NodeEndpoint[]>;
  /** Why a pod of a node would get no address; undefined when it would get one. Not retried. */
  refusalOf(pod: ProbePod, limits: Limits): Promise<string | undefined>;
  /** Whether the service reports SERVING. Not retried. */
  isServing(limits: Limits): Promise<boolean>;
  /** Name and address of the service while there is no connection to it; undefined while there is one. */
  unreachablePeer(): string | undefined;
}

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

export function ipamUpkeep(options: PeerOptions): IpamUpkeep {
  const peer = new RetryingPeer(options);
  return {
    async releaseHeld(attachment, held, limits) {
      const releases = held.map((each) => ({ handleId: handleId(attachment), ...each }));
      try {
        await peer.call(AddressServiceService.releaseAddresses, { releases }, limits);
      } catch (failure) {
        // An earlier release of podwire-ipam releases by attachment. The attachment's queue excludes a later ADD.
        if (!(failure instanceof Failure && failure.code === 'UNIMPLEMENTED')) throw failure;
        await peer.call(AddressServiceService.release, { attachment }, limits);
      }
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
      const { refusal } = await options.peer.call(AddressServiceService.explainAllocation, explanation, limits);
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

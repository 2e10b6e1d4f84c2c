import { PodServiceService } from '@podwire/proto/podwire/dataplane/v1/pod';
import { AddressServiceService } from '@podwire/proto/podwire/ipam/v1/address';
import { EndpointServiceService, type Endpoint as EndpointMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import type { Peer } from '@podwire/shared/rpc/client';

import type { Wish } from '../cni/pod-request.js';
import type { HeldAddress, Limits } from './clients.js';
import { familyMessage, heldAddresses, poolChoiceMessage } from './ipam.js';
import { RepeatingPeer, type PeerOptions } from './retrying-client.js';

/** What GC, STATUS and the journal want from the services, beside what pods want. */

/** What IPAM holds for an attachment of this node. */
export interface NodeEndpoint {
  readonly attachment: Attachment;
  readonly held: readonly HeldAddress[];
  /** Identity of the boot that it was given in; undefined where that was not recorded. */
  readonly bootId: string | undefined;
  /** When it was given, in epoch milliseconds; undefined where an earlier release gave it. */
  readonly createdAtMs: number | undefined;
}

/** Some pod of a node and a network, with what it would ask for. */
export interface AnyPod {
  readonly nodeName: string;
  readonly network: string;
  readonly wish: Pick<Wish, 'families' | 'pools' | 'poolChoices'>;
}

/** Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED or the signal's reason. */
export interface IpamUpkeep {
  /** Gives back these addresses of the attachment, and none of a later allocation. Idempotent. In the attachment's turn. */
  releaseHeld(attachment: Attachment, held: readonly HeldAddress[], limits: Limits): Promise<void>;
  /** What a node's attachments of a network hold. */
  endpointsOf(of: { readonly nodeName: string; readonly network: string }, limits: Limits): Promise<NodeEndpoint[]>;
  /** Why a pod of a node would get no address; undefined when it would. Asked once. */
  refusalOf(pod: AnyPod, limits: Limits): Promise<string | undefined>;
  /** Whether the service says that it serves. Asked once. */
  isServing(limits: Limits): Promise<boolean>;
  /** Name and address of the service while there is no connection to it; undefined while there is one. */
  unreached(): string | undefined;
}

/** An attachment that could not be removed, and why. */
export interface CollectionFailure {
  readonly attachment: Attachment;
  readonly message: string;
}

/** A wire of this node. */
export interface NodeWire {
  readonly attachment: Attachment;
  /** That the node routes to it, without prefix length. */
  readonly addresses: readonly string[];
}

export interface DataplaneUpkeep {
  /** Removes the network's wires that are not valid, in one call; what cannot be removed does not stop it. Idempotent. */
  collectGarbage(
    garbage: { readonly network: string; readonly valid: readonly Attachment[] },
    limits: Limits,
  ): Promise<readonly CollectionFailure[]>;
  /** The wires of all networks that the kernel holds. */
  wires(limits: Limits): Promise<readonly NodeWire[]>;
  /** Whether the service says that it serves. Asked once. */
  isServing(limits: Limits): Promise<boolean>;
  /** Name and address of the service while there is no connection to it; undefined while there is one. */
  unreached(): string | undefined;
}

const PAGE_SIZE = 1000;

/** Name of a container that no runtime makes: what would be given to a pod, if there were one. */
const NOBODY = { containerId: 'podwire-status', interfaceName: 'eth0' };

/** A probe's allocation leaves to podwire-ipam what ADD leaves to it. */
const LEFT_OPEN = {
  pod: undefined,
  netns: undefined,
  namespaceLabels: {},
  addresses: [],
  maxBlocksPerNode: 0,
};

export function ipamUpkeep(options: PeerOptions): IpamUpkeep {
  const peer = new RepeatingPeer(options);
  return {
    async releaseHeld(attachment, held, limits) {
      const releases = held.map((each) => ({ handleId: handleId(attachment), ...each }));
      try {
        await peer.call(AddressServiceService.releaseAddresses, { releases }, limits);
      } catch (failure) {
        // An earlier release of IPAM knows attachments alone; this node's turns keep a later ADD from being meant.
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
      return endpoints.flatMap(nodeEndpoint).filter(({ attachment }) => attachment.network === network);
    },

    async refusalOf({ nodeName, network, wish }, limits) {
      const request = {
        nodeName,
        attachment: { network, ...NOBODY },
        families: wish.families.map(familyMessage),
        pools: [...wish.pools],
        poolChoices: wish.poolChoices.map(poolChoiceMessage),
        ...LEFT_OPEN,
      };
      const asked = { request, maxBlocks: 1, anyNamespace: true };
      const { refusal } = await options.peer.call(AddressServiceService.explainAllocation, asked, limits);
      return refusal === '' ? undefined : refusal;
    },

    isServing: (limits) => isServing(options.peer, limits),

    unreached: () => (options.peer.isConnected ? undefined : options.peer.description),
  };
}

export function dataplaneUpkeep(options: PeerOptions): DataplaneUpkeep {
  const peer = new RepeatingPeer(options);
  return {
    async collectGarbage({ network, valid }, limits) {
      const request = { network, validAttachments: { attachments: [...valid] } };
      const { failures } = await peer.call(PodServiceService.collectGarbage, request, limits);
      return failures.flatMap(({ attachment, message }) => (attachment ? [{ attachment, message }] : []));
    },

    async wires(limits) {
      const found = new Map<string, NodeWire>();
      let pageToken = '';
      do {
        const page = await peer.call(PodServiceService.listPods, { pageSize: PAGE_SIZE, pageToken }, limits);
        for (const { attachment, addresses: cidrs } of page.pods) {
          const addresses = cidrs.map((cidr) => cidr.replace(/\/\d+$/, ''));
          if (attachment) found.set(formatAttachment(attachment), { attachment, addresses });
        }
        pageToken = page.nextPageToken;
      } while (pageToken !== '');
      return [...found.values()];
    },

    isServing: (limits) => isServing(options.peer, limits),

    unreached: () => (options.peer.isConnected ? undefined : options.peer.description),
  };
}

/** None for an endpoint without an attachment, which is not one of Podwire's. */
function nodeEndpoint({ attachment, addresses, netns, createTime }: EndpointMessage): NodeEndpoint[] {
  if (!attachment) return [];
  const held = heldAddresses(addresses);
  return [{ attachment, held, bootId: netns?.bootId, createdAtMs: createTime?.getTime() }];
}

type Method<Request, Response> = Parameters<typeof Peer.prototype.call<Request, Response>>[0];

/** ServingStatus of grpc.health.v1. */
const SERVING = 1;

/** Tag of the only field of HealthCheckResponse: number 1, a varint. */
const STATUS_TAG = 0x08;

/** `grpc.health.v1.Health/Check` (gRPC Health Checking Protocol) of a whole server; its messages are a few bytes. */
const CHECK: Method<'server', number> = {
  path: '/grpc.health.v1.Health/Check',
  requestStream: false,
  responseStream: false,
  requestSerialize: () => Buffer.alloc(0),
  requestDeserialize: () => 'server',
  responseSerialize: (status) => Buffer.from([STATUS_TAG, status]),
  responseDeserialize: (bytes) => (bytes[0] === STATUS_TAG ? (bytes[1] ?? 0) : 0),
};

/**
 * Whether a service says that it serves.
 * @throws Failure UNREACHABLE or DEADLINE_EXCEEDED when it does not answer; UNIMPLEMENTED when it has no health service
 */
async function isServing(peer: Peer, limits: Limits): Promise<boolean> {
  return (await peer.call(CHECK, 'server', limits)) === SERVING;
}

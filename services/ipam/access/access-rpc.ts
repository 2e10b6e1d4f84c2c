import { ProbeServiceService } from '@podwire/proto/podwire/dataplane/v1/probe';
import { AddressServiceService, type AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { AffinityServiceService } from '@podwire/proto/podwire/ipam/v1/affinity';
import { BlockServiceService } from '@podwire/proto/podwire/ipam/v1/block';
import { CertificateServiceService } from '@podwire/proto/podwire/ipam/v1/certificate';
import { ConfigServiceService } from '@podwire/proto/podwire/ipam/v1/config';
import { EndpointServiceService } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import { HistoryServiceService } from '@podwire/proto/podwire/ipam/v1/history';
import { LeaseServiceService } from '@podwire/proto/podwire/ipam/v1/lease';
import { ClusterServiceService } from '@podwire/proto/podwire/ipam/v1/cluster';
import { AuditServiceService } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { NetworkPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';
import { WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import type { Attachment as AttachmentMessage } from '@podwire/proto/podwire/net/v1/attachment';
import { ReleaseServiceService } from '@podwire/proto/podwire/release/v1/release';
import { Failure } from '@podwire/shared/failure/failure';
import { parseAddress } from '@podwire/shared/net/address';
import type { Authorize } from '@podwire/shared/rpc/access';
import { formatCaller } from '@podwire/shared/tls/caller';

import type { IpamOptions } from '../engine/updates/operation.js';
import { subjectOfAnotherNode, type Subject } from './access.js';

/**
 * Methods that each role may call over the network. An operator may call all of them. A call over a unix socket needs no role.
 * services/ipam/README.md has the same lists.
 */

/** Methods that change nothing and name no secret. */
const READER_METHODS: readonly string[] = [
  AddressServiceService.explainAllocation,
  AddressServiceService.getEndpoint,
  AddressServiceService.getAddress,
  AffinityServiceService.listAffinities,
  AuditServiceService.audit,
  BlockServiceService.listBlocks,
  CertificateServiceService.listRevokedCertificates,
  ClusterServiceService.getClusterInfo,
  ClusterServiceService.listNodeStates,
  ConfigServiceService.getConfig,
  EndpointServiceService.listEndpoints,
  HandleServiceService.listHandles,
  HandleServiceService.getHandle,
  HistoryServiceService.getAddressHistory,
  HistoryServiceService.listChanges,
  HistoryServiceService.queryAt,
  NetworkPolicyServiceService.explainPolicy,
  NetworkPolicyServiceService.getPolicyStatus,
  NetworkPolicyServiceService.listPolicies,
  NodeServiceService.getNode,
  NodeServiceService.listNodes,
  PoolServiceService.getPool,
  PoolServiceService.listPools,
  ReleaseServiceService.getRelease,
  RequestPolicyServiceService.authorizeRequests,
  RequestPolicyServiceService.getRequestPolicy,
  RequestPolicyServiceService.listRequestPolicies,
  ReservationServiceService.getReservation,
  ReservationServiceService.listReservations,
  WatchServiceService.watch,
].map(({ path }) => path);

/** Methods of the processes of a node, with the parts of a request that have to belong to the calling node. */
const NODE_METHODS: ReadonlyMap<string, (request: Buffer) => readonly Subject[]> = new Map([
  nodeMethod(AddressServiceService.allocate, subjectsOfAllocation),
  nodeMethod(AddressServiceService.explainAllocation, ({ request }) => (request ? subjectsOfAllocation(request) : [])),
  nodeMethod(AddressServiceService.release, ({ attachment }) => attachmentSubject(attachment)),
  nodeMethod(AddressServiceService.getEndpoint, ({ attachment }) => attachmentSubject(attachment)),
  nodeMethod(AddressServiceService.releaseAddresses, ({ releases, nodeName = '' }) => [
    ...(nodeName === '' ? [] : [nodeSubject(nodeName)]),
    ...releases.flatMap(({ address: text }): Subject[] => {
      const address = parseAddress(text);
      return address ? [{ type: 'address', address }] : [];
    }),
  ]),
  nodeMethod(EndpointServiceService.listEndpoints, ({ nodeName }) => [nodeSubject(nodeName)]),
  nodeMethod(LeaseServiceService.openSession, ({ nodeName }) => [nodeSubject(nodeName)]),
  nodeMethod(LeaseServiceService.reportEndpoints, ({ nodeName, endpoints }) => [
    nodeSubject(nodeName),
    ...endpoints.flatMap(({ attachment }) => attachmentSubject(attachment)),
  ]),
  nodeMethod(LeaseServiceService.reportInventory, ({ nodeName }) => [nodeSubject(nodeName)]),
  nodeMethod(LeaseServiceService.leaseAddresses, ({ nodeName }) => [nodeSubject(nodeName)]),
  nodeMethod(LeaseServiceService.bindAddresses, ({ nodeName, bindings }) => [
    nodeSubject(nodeName),
    ...bindings.flatMap(({ attachment }) => attachmentSubject(attachment)),
  ]),
  nodeMethod(LeaseServiceService.returnAddresses, ({ nodeName, returns }) => [
    nodeSubject(nodeName),
    ...returns.flatMap(({ attachment }) => attachmentSubject(attachment)),
  ]),
  nodeMethod(NetworkPolicyServiceService.followPolicies, ({ nodeName }) => [nodeSubject(nodeName)]),
  nodeMethod(NetworkPolicyServiceService.announcePod, ({ nodeName }) => [nodeSubject(nodeName)]),
  nodeMethod(NodeServiceService.getNode, ({ name }) => [nodeSubject(name)]),
  nodeMethod(ClusterServiceService.connectNode, ({ nodeName }) => [nodeSubject(nodeName)]),
  nodeMethod(NodeServiceService.registerNode, ({ name }) => [nodeSubject(name)]),
  nodeMethod(NodeServiceService.allocateTunnelAddress, ({ nodeName }) => [nodeSubject(nodeName)]),
  nodeMethod(NodeServiceService.releaseTunnelAddress, ({ nodeName }) => [nodeSubject(nodeName)]),
  // A node needs every node, pool and route to reach the pods of the cluster.
  nodeMethod(PoolServiceService.getPool, () => []),
  nodeMethod(ReleaseServiceService.getRelease, () => []),
  nodeMethod(RequestPolicyServiceService.authorizeRequests, () => []),
  nodeMethod(WatchServiceService.watch, () => []),
]);

interface Method<Request> {
  readonly path: string;
  readonly requestDeserialize: (bytes: Buffer) => Request;
}

function nodeMethod<Request>(
  { path, requestDeserialize }: Method<Request>,
  subjectsOf: (request: Request) => readonly Subject[],
): [string, (request: Buffer) => readonly Subject[]] {
  return [path, (bytes) => subjectsOf(requestDeserialize(bytes))];
}

function subjectsOfAllocation({ nodeName, attachment }: AllocateRequest): readonly Subject[] {
  return [nodeSubject(nodeName), ...attachmentSubject(attachment)];
}

function nodeSubject(nodeName: string): Subject {
  return { type: 'node', nodeName };
}

/** A missing attachment is refused by the method itself. */
function attachmentSubject(attachment: AttachmentMessage | undefined): readonly Subject[] {
  return attachment ? [{ type: 'attachment', attachment }] : [];
}

const PROBES = ProbeServiceService.addProbePod.path.replace(/[^/]+$/, '');

/** Whether it is a call of the connectivity test for a node. */
function isProbe(path: string, encodeRequest: () => Buffer): boolean {
  const { callNode } = ClusterServiceService;
  if (path !== callNode.path) return false;
  return callNode.requestDeserialize(encodeRequest()).request?.path.startsWith(PROBES) === true;
}

/** Decides over the calls of clients over the network, by their role. */
export function authorizer({ updates }: Pick<IpamOptions, 'updates'>): Authorize {
  return async ({ path, encodeRequest, caller }) => {
    if (caller.kind === 'local' || caller.role === 'operator') return;
    const denied = (reason: string): Failure =>
      new Failure('ACCESS_DENIED', `${formatCaller(caller)}: may not call ${path.slice(1)}: ${reason}`);
    if (caller.role === 'reader') {
      if (caller.runsTests === true && isProbe(path, encodeRequest)) return;
      if (!READER_METHODS.includes(path)) throw denied('a reader only reads; use the certificate of an operator');
      return;
    }
    const subjectsOf = NODE_METHODS.get(path);
    if (!subjectsOf) throw denied('no process of a node needs it; use the certificate of an operator');
    const subjects = subjectsOf(encodeRequest());
    if (subjects.length === 0) return;
    const other = await updates.peek((view) => subjectOfAnotherNode(view, subjects, caller.name));
    if (other !== undefined) throw denied(`${other}; a node acts for itself only`);
  };
}

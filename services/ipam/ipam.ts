import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import { Addresses, Assignments } from './addresses/addresses-operations.js';
import { addressService } from './addresses/addresses-rpc.js';
import type { AddressServiceDeps } from './addresses/allocate/allocate-rpc.js';
import { Affinities } from './affinities/affinities-operations.js';
import { affinityService } from './affinities/affinities-rpc.js';
import { Audits } from './audit/audit-operations.js';
import { auditService } from './audit/audit-rpc.js';
import { Blocks, blockService } from './blocks/blocks-rpc.js';
import { NodeInquiry } from './blocks/running-nodes-operations.js';
import { certificateService, Revocations } from './certificates/revocation-rpc.js';
import { configService, Configuration } from './configuration/configuration-rpc.js';
import { Endpoints, endpointService } from './endpoints/endpoints-rpc.js';
import { Handles, handleService } from './handles/handles-rpc.js';
import { History, type HistoryIpamOptions } from './history/history-operations.js';
import { historyService } from './history/history-rpc.js';
import { Leases } from './leases/leases-operations.js';
import { leaseService, type LeaseServiceDeps } from './leases/leases-rpc.js';
import { LeaseRecalls } from './leases/recall-operations.js';
import { NamedOperations } from './named-objects/named-objects-operations.js';
import { Nodes } from './nodes/nodes-operations.js';
import { nodeService, type ReadPodCidrs } from './nodes/nodes-rpc.js';
import { RequestPolicyOperations } from './request-policies/request-policies-operations.js';
import { requestPolicyService } from './request-policies/request-policies-rpc.js';
import type { Reservation } from './records/config.js';
import { Pools, reportDrainedPools } from './pools/pools-operations.js';
import { poolService } from './pools/pools-rpc.js';
import { reservationService } from './reservations/reservations-rpc.js';
import { RESERVATIONS, type ReservationSpec } from './reservations/reservations.js';

/**
 * The operations of IPAM, by feature. Each operation hands a decision of its feature's folder to the update loop, and reports the
 * outcome once it is durable. Besides the failures that it names, each operation fails with CONFLICT, STORE_UNAVAILABLE,
 * DEADLINE_EXCEEDED or CANCELLED.
 */
export class Ipam {
  readonly addresses: Addresses;
  readonly assignments: Assignments;
  readonly leases: Leases;
  readonly handles: Handles;
  readonly affinities: Affinities;
  readonly history: History;
  readonly endpoints: Endpoints;
  readonly nodes: Nodes;
  readonly pools: Pools;
  readonly reservations: NamedOperations<Reservation, ReservationSpec>;
  readonly requestPolicies: RequestPolicyOperations;
  readonly configuration: Configuration;
  readonly blocks: Blocks;
  readonly audits: Audits;
  readonly revocations: Revocations;

  constructor(options: HistoryIpamOptions) {
    const reportingOptions = { ...options, updates: reportDrainedPools(options) };
    const recalls = new LeaseRecalls(reportingOptions);
    const inquiry = new NodeInquiry(reportingOptions);
    this.addresses = new Addresses(reportingOptions, recalls, inquiry);
    this.assignments = new Assignments(reportingOptions, recalls);
    this.leases = new Leases(reportingOptions);
    this.handles = new Handles(reportingOptions, inquiry);
    this.affinities = new Affinities(reportingOptions);
    this.history = new History(reportingOptions);
    this.endpoints = new Endpoints(reportingOptions);
    this.nodes = new Nodes(reportingOptions, recalls, inquiry);
    this.pools = new Pools(options, inquiry);
    this.reservations = new NamedOperations(reportingOptions, RESERVATIONS);
    this.requestPolicies = new RequestPolicyOperations(reportingOptions);
    this.configuration = new Configuration(reportingOptions);
    this.blocks = new Blocks(reportingOptions);
    this.audits = new Audits(reportingOptions);
    this.revocations = new Revocations(options);
  }
}

interface IpamServicesDeps extends LeaseServiceDeps, AddressServiceDeps {
  readonly readPodCidrs: ReadPodCidrs;
}

/** The gRPC services of podwire-ipam, except the watch. Each is defined in the `-rpc.ts` file of its feature. */
export function ipamServices(
  ipam: Ipam,
  unary: Unary,
  { requirePod, reportRefusal, readPodCidrs, settlement }: IpamServicesDeps,
): readonly RpcService[] {
  return [
    addressService(ipam, unary, { requirePod, reportRefusal }),
    leaseService(ipam.leases, unary, { requirePod, settlement }),
    handleService(ipam.handles, unary),
    historyService(ipam.history, unary),
    affinityService(ipam.affinities, unary),
    poolService(ipam.pools, unary),
    blockService(ipam.blocks, unary),
    auditService(ipam.audits, unary),
    endpointService(ipam.endpoints, unary),
    nodeService(ipam.nodes, unary, readPodCidrs),
    reservationService(ipam.reservations, unary),
    requestPolicyService(ipam.requestPolicies, unary),
    configService(ipam.configuration, unary),
    certificateService(ipam.revocations, unary),
  ];
}

import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { bufCurl } from '../support/programs.js';
import { Stack } from '../support/stack.js';

const stack = new Stack();

beforeAll(() => stack.start('ipam', 'node'));

afterAll(() => stack.destroy());

const METHODS = {
  ipam: [
    'podwire.ipam.v1.AddressService/Allocate',
    'podwire.ipam.v1.AddressService/AssignAddresses',
    'podwire.ipam.v1.AddressService/ExplainAllocation',
    'podwire.ipam.v1.AddressService/GetAddress',
    'podwire.ipam.v1.AddressService/GetEndpoint',
    'podwire.ipam.v1.AddressService/Release',
    'podwire.ipam.v1.AddressService/ReleaseAddresses',
    'podwire.ipam.v1.AddressService/SetAttributes',
    'podwire.ipam.v1.AffinityService/ClaimAffinity',
    'podwire.ipam.v1.AffinityService/ListAffinities',
    'podwire.ipam.v1.AffinityService/ReleaseAffinity',
    'podwire.ipam.v1.AuditService/Audit',
    'podwire.ipam.v1.AuditService/Repair',
    'podwire.ipam.v1.BlockService/ListBlocks',
    'podwire.ipam.v1.CertificateService/ListRevokedCertificates',
    'podwire.ipam.v1.CertificateService/RestoreCertificate',
    'podwire.ipam.v1.CertificateService/RevokeCertificate',
    'podwire.ipam.v1.ClusterService/CallNode',
    'podwire.ipam.v1.ClusterService/ConnectNode',
    'podwire.ipam.v1.ClusterService/GetClusterInfo',
    'podwire.ipam.v1.ClusterService/ListNodeStates',
    'podwire.ipam.v1.ConfigService/GetConfig',
    'podwire.ipam.v1.ConfigService/UpdateConfig',
    'podwire.ipam.v1.DryRunService/DryRun',
    'podwire.ipam.v1.EndpointService/ListEndpoints',
    'podwire.ipam.v1.HandleService/GetHandle',
    'podwire.ipam.v1.HandleService/ListHandles',
    'podwire.ipam.v1.HandleService/ReleaseHandle',
    'podwire.ipam.v1.HistoryService/GetAddressHistory',
    'podwire.ipam.v1.HistoryService/ListChanges',
    'podwire.ipam.v1.HistoryService/QueryAt',
    'podwire.ipam.v1.LeaseService/BindAddresses',
    'podwire.ipam.v1.LeaseService/LeaseAddresses',
    'podwire.ipam.v1.LeaseService/OpenSession',
    'podwire.ipam.v1.LeaseService/ReportEndpoints',
    'podwire.ipam.v1.LeaseService/ReportInventory',
    'podwire.ipam.v1.LeaseService/RecallLeases',
    'podwire.ipam.v1.LeaseService/ReturnAddresses',
    'podwire.ipam.v1.NetworkPolicyService/AnnouncePod',
    'podwire.ipam.v1.NetworkPolicyService/ExplainPolicy',
    'podwire.ipam.v1.NetworkPolicyService/FollowPolicies',
    'podwire.ipam.v1.NetworkPolicyService/GetPolicyStatus',
    'podwire.ipam.v1.NetworkPolicyService/ListPolicies',
    'podwire.ipam.v1.NodeService/AllocateTunnelAddress',
    'podwire.ipam.v1.NodeService/DeleteNode',
    'podwire.ipam.v1.NodeService/GetNode',
    'podwire.ipam.v1.NodeService/ListNodes',
    'podwire.ipam.v1.NodeService/RegisterNode',
    'podwire.ipam.v1.NodeService/ReleaseTunnelAddress',
    'podwire.ipam.v1.NodeService/UpdateNode',
    'podwire.ipam.v1.PoolService/CreatePool',
    'podwire.ipam.v1.PoolService/DeletePool',
    'podwire.ipam.v1.PoolService/GetPool',
    'podwire.ipam.v1.PoolService/ListPools',
    'podwire.ipam.v1.PoolService/SplitPool',
    'podwire.ipam.v1.PoolService/UpdatePool',
    'podwire.ipam.v1.RequestPolicyService/AuthorizeRequests',
    'podwire.ipam.v1.RequestPolicyService/CreateRequestPolicy',
    'podwire.ipam.v1.RequestPolicyService/DeleteRequestPolicy',
    'podwire.ipam.v1.RequestPolicyService/GetRequestPolicy',
    'podwire.ipam.v1.RequestPolicyService/ListRequestPolicies',
    'podwire.ipam.v1.RequestPolicyService/UpdateRequestPolicy',
    'podwire.ipam.v1.ReservationService/CreateReservation',
    'podwire.ipam.v1.ReservationService/DeleteReservation',
    'podwire.ipam.v1.ReservationService/GetReservation',
    'podwire.ipam.v1.ReservationService/ListReservations',
    'podwire.ipam.v1.ReservationService/UpdateReservation',
    'podwire.ipam.v1.WatchService/Watch',
    'podwire.diagnostics.v1.DiagnosticsService/Collect',
    'podwire.release.v1.ReleaseService/GetRelease',
  ],
  dataplane: [
    'cni.CniDataplane/Add',
    'cni.CniDataplane/Del',
    'podwire.dataplane.v1.NetworkPolicyService/ListPolicyDrops',
    'podwire.dataplane.v1.NodeService/GetNodeStatus',
    'podwire.dataplane.v1.PodService/AttachPod',
    'podwire.dataplane.v1.PodService/CheckPod',
    'podwire.dataplane.v1.PodService/DetachPod',
    'podwire.dataplane.v1.PodService/ListPods',
    'podwire.dataplane.v1.PodService/RepairPod',
    'podwire.dataplane.v1.ProbeService/AddProbePod',
    'podwire.dataplane.v1.ProbeService/DeleteProbePods',
    'podwire.dataplane.v1.ProbeService/RunProbes',
    'podwire.dataplane.v1.ProbeService/TracePackets',
    'podwire.diagnostics.v1.DiagnosticsService/Collect',
    'podwire.release.v1.ReleaseService/GetRelease',
  ],
} as const;

describe.each(['ipam', 'dataplane'] as const)('%s, known by reflection only', (service) => {
  const socket = stack.sockets[service];

  test('lists every method', () => {
    const { ok, text } = bufCurl(socket, '--list-methods', 'http://localhost');
    expect(ok, text).toBe(true);
    const listed = text.trim().split('\n').sort();
    const health = ['Check', 'List', 'Watch'].map((method) => `grpc.health.v1.Health/${method}`);
    expect(listed).toEqual([...health, ...METHODS[service]].sort());
  });

  test.each(METHODS[service])('%s answers a call, or refuses it with a typed error', (method) => {
    const { ok, text } = bufCurl(socket, '-d', '{}', `http://localhost/${method}`);
    const answer = ok ? {} : JSON.parse(text);
    expect(ok ? 'ok' : answer.code).toMatch(/^(ok|invalid_argument|failed_precondition)$/);
  });

  test('is healthy', () => {
    const { text } = bufCurl(socket, '-d', '{}', 'http://localhost/grpc.health.v1.Health/Check');
    expect(JSON.parse(text)).toEqual({ status: 'SERVING' });
  });
});

import { AddressServiceService } from '@podwire/proto/podwire/ipam/v1/address';
import type { Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import {
  LeaseServiceService,
  type BindAddressesRequest,
  type BindAddressesResponse,
  type LeaseAddressesRequest,
  type LeaseAddressesResponse,
  type OpenSessionRequest,
  type OpenSessionResponse,
  type ReportEndpointsRequest,
  type ReportEndpointsResponse,
  type ReportInventoryRequest,
  type ReportInventoryResponse,
  type ReturnAddressesRequest,
  type ReturnAddressesResponse,
} from '@podwire/proto/podwire/ipam/v1/lease';
import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import type { HeldEndpoint } from '@podwire/dataplane/repair/lost-wires';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';
import type { CallLimits, Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

/** Timeout of one call to podwire-ipam; the caller retries it later. */
const CALL_TIMEOUT_MS = 5000;

/** LeaseService of podwire-ipam. Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED. */
export interface LeaseApi {
  /** Description for messages. */
  readonly description: string;
  /** Whether there is a connection now. */
  readonly isConnected: () => boolean;
  openSession(request: OpenSessionRequest, signal: AbortSignal): Promise<OpenSessionResponse>;
  leaseAddresses(request: LeaseAddressesRequest, signal: AbortSignal): Promise<LeaseAddressesResponse>;
  bindAddresses(request: BindAddressesRequest, signal: AbortSignal): Promise<BindAddressesResponse>;
  returnAddresses(request: ReturnAddressesRequest, signal: AbortSignal): Promise<ReturnAddressesResponse>;
  reportEndpoints(request: ReportEndpointsRequest, signal: AbortSignal): Promise<ReportEndpointsResponse>;
  reportInventory(request: ReportInventoryRequest, signal: AbortSignal): Promise<ReportInventoryResponse>;
  /** @returns undefined when the attachment has no allocations */
  endpoint(attachment: Attachment, signal: AbortSignal): Promise<HeldEndpoint | undefined>;
}

/** podwire-ipam over gRPC. */
export function ipamLeaseApi(peer: Pick<Peer, 'call' | 'description' | 'isConnected'>, clock: Clock): LeaseApi {
  const limits = (signal: AbortSignal): CallLimits => ({ deadlineMs: clock.nowMs() + CALL_TIMEOUT_MS, signal });
  const { openSession, leaseAddresses, bindAddresses, returnAddresses, reportEndpoints, reportInventory } =
    LeaseServiceService;
  return {
    description: peer.description,
    isConnected: () => peer.isConnected,
    openSession: (request, signal) => peer.call(openSession, request, limits(signal)),
    leaseAddresses: (request, signal) => peer.call(leaseAddresses, request, limits(signal)),
    bindAddresses: (request, signal) => peer.call(bindAddresses, request, limits(signal)),
    returnAddresses: (request, signal) => peer.call(returnAddresses, request, limits(signal)),
    reportEndpoints: (request, signal) => peer.call(reportEndpoints, request, limits(signal)),
    reportInventory: (request, signal) => peer.call(reportInventory, request, limits(signal)),
    async endpoint(attachment, signal) {
      try {
        const { endpoint } = await peer.call(AddressServiceService.getEndpoint, { attachment }, limits(signal));
        return endpoint && { addresses: allocationsOf(endpoint), netns: endpoint.netns };
      } catch (failure) {
        if (failure instanceof Failure && failure.code === 'ENDPOINT_NOT_FOUND') return undefined;
        throw failure;
      }
    },
  };
}

/** The addresses of an endpoint, as the node records them. */
export function allocationsOf({ addresses }: Pick<Endpoint, 'addresses'>): AllocatedAddress[] {
  return addresses.flatMap(({ address, sequenceNumber }) => {
    const parts = splitCidr(address);
    return parts ? [{ address: formatAddress(parts.address), sequenceNumber }] : [];
  });
}

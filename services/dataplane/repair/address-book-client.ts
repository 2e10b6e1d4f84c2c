import { AddressReleaseResult, AddressServiceService } from '@podwire/proto/podwire/ipam/v1/address';
import { EndpointServiceService, type Endpoint as EndpointMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';
import type { CallLimits, Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AddressBook, HeldEndpoint } from './orphans.js';

/** Timeout of one call to podwire-ipam; the reconciler retries it later. */
const CALL_TIMEOUT_MS = 5000;

const PAGE_SIZE = 1000;

/** podwire-ipam over gRPC. */
export function ipamAddressBook(peer: Peer, clock: Clock): AddressBook {
  const limits = (signal: AbortSignal): CallLimits => ({ deadlineMs: clock.nowMs() + CALL_TIMEOUT_MS, signal });
  return {
    async endpoint(attachment, signal) {
      try {
        const { endpoint } = await peer.call(AddressServiceService.getEndpoint, { attachment }, limits(signal));
        return endpoint && readEndpoint(endpoint);
      } catch (failure) {
        if (failure instanceof Failure && failure.code === 'ENDPOINT_NOT_FOUND') return undefined;
        throw failure;
      }
    },

    async endpointsOf(nodeName, signal) {
      const endpoints: HeldEndpoint[] = [];
      let pageToken = '';
      do {
        const request = { pageSize: PAGE_SIZE, pageToken, nodeName, namespace: '', podName: '', poolName: '' };
        const page = await peer.call(EndpointServiceService.listEndpoints, request, limits(signal));
        endpoints.push(...page.endpoints.flatMap((message) => readEndpoint(message) ?? []));
        pageToken = page.nextPageToken;
      } while (pageToken !== '');
      return endpoints;
    },

    async release({ attachment, addresses, netns }, signal) {
      const releases = addresses.map((held) => ({ handleId: handleId(attachment), netns, ...held }));
      const answer = await peer.call(AddressServiceService.releaseAddresses, { releases }, limits(signal));
      return answer.addresses
        .filter(({ result }) => result === AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED)
        .map(({ address }) => address);
    },
  };
}

/** @returns undefined for an endpoint without an attachment: it is not Podwire's */
function readEndpoint({ attachment, addresses, netns, createTime }: EndpointMessage): HeldEndpoint | undefined {
  if (!attachment) return undefined;
  return {
    attachment,
    addresses: addresses.flatMap(({ address, sequenceNumber }) => {
      const parts = splitCidr(address);
      return parts ? [{ address: formatAddress(parts.address), sequenceNumber }] : [];
    }),
    netns,
    createdAtMs: createTime?.getTime(),
  };
}

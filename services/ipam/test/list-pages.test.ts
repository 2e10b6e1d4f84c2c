import { AddressServiceService, AssignAddressesRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { AffinityServiceService } from '@podwire/proto/podwire/ipam/v1/affinity';
import { EndpointServiceService, ListEndpointsRequest } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { AddressUse } from '@podwire/proto/podwire/ipam/v1/pool';
import { RequestPolicy, RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { Reservation, ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';
import { expect, test } from 'vitest';

import { clientLimits, servedForEachTest, type Caller } from '../testing/service.js';

/** Each page is of its own moment: between two pages other callers create and remove listed objects. */

interface Pages {
  readonly pageSize: number;
  readonly pageToken: string;
}

interface Names {
  readonly names: readonly string[];
  readonly nextPageToken: string;
}

interface Listed {
  readonly make: (caller: Caller, name: string) => Promise<unknown>;
  readonly remove: (caller: Caller, name: string) => Promise<unknown>;
  readonly page: (caller: Caller, pages: Pages) => Promise<Names>;
}

const served = servedForEachTest({ PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.64.0.0/20' });

/** The number of a letter. */
const place = (name: string): number => name.charCodeAt(0) - 'a'.charCodeAt(0);
/** The block of a letter, in their order. */
const blockOf = (name: string): string => `10.64.${place(name)}.0/26`;
const nameOf = (cidr: string): string => String.fromCharCode('a'.charCodeAt(0) + Number(cidr.split('.')[2]));
const anyVersion = (name: string) => ({ name, resourceVersion: '' });

const claims: Pick<Listed, 'make' | 'remove'> = {
  make: ({ peer }, name) =>
    peer.call(AffinityServiceService.claimAffinity, { cidr: blockOf(name), nodeName: 'node-1' }, clientLimits()),
  remove: ({ peer }, name) => {
    const scope = { $case: 'blockCidr', value: blockOf(name) } as const;
    return peer.call(AffinityServiceService.releaseAffinity, { scope, mustBeEmpty: true }, clientLimits());
  },
};

const lists: Record<string, Listed> = {
  pools: {
    make: (caller, name) => caller.createPool({ name, cidr: `10.80.${place(name)}.0/24` }),
    remove: (caller, name) => caller.deletePool(name),
    page: async (caller, { pageSize, pageToken }) => {
      const { pools, nextPageToken } = await caller.listPools(pageSize, pageToken);
      return { names: pools.map(({ name }) => name), nextPageToken };
    },
  },
  nodes: {
    make: ({ peer }, name) =>
      peer.call(
        NodeServiceService.registerNode,
        { ...RegisterNodeRequest.create(), name, ipv4Address: `192.0.2.${place(name)}/24` },
        clientLimits(),
      ),
    remove: ({ peer }, name) => peer.call(NodeServiceService.deleteNode, anyVersion(name), clientLimits()),
    page: async ({ peer }, pages) => {
      const { nodes, nextPageToken } = await peer.call(NodeServiceService.listNodes, pages, clientLimits());
      return { names: nodes.map(({ name }) => name), nextPageToken };
    },
  },
  reservations: {
    make: ({ peer }, name) => {
      const reservation = Reservation.fromPartial({ name, cidrs: ['192.0.2.0/24'] });
      return peer.call(ReservationServiceService.createReservation, { reservation }, clientLimits());
    },
    remove: ({ peer }, name) =>
      peer.call(ReservationServiceService.deleteReservation, anyVersion(name), clientLimits()),
    page: async ({ peer }, pages) => {
      const method = ReservationServiceService.listReservations;
      const { reservations, nextPageToken } = await peer.call(method, pages, clientLimits());
      return { names: reservations.map(({ name }) => name), nextPageToken };
    },
  },
  'request policies': {
    make: ({ peer }, name) => {
      const requestPolicy = RequestPolicy.fromPartial({ name, addresses: { cidrs: ['192.0.2.0/24'] } });
      return peer.call(RequestPolicyServiceService.createRequestPolicy, { requestPolicy }, clientLimits());
    },
    remove: ({ peer }, name) =>
      peer.call(RequestPolicyServiceService.deleteRequestPolicy, anyVersion(name), clientLimits()),
    page: async ({ peer }, pages) => {
      const method = RequestPolicyServiceService.listRequestPolicies;
      const { requestPolicies, nextPageToken } = await peer.call(method, pages, clientLimits());
      return { names: requestPolicies.map(({ name }) => name), nextPageToken };
    },
  },
  handles: {
    make: ({ peer }, name) => {
      const asked = { handleId: name, nodeName: 'node-1', use: AddressUse.ADDRESS_USE_WORKLOAD, ipv4Count: 1 };
      return peer.call(
        AddressServiceService.assignAddresses,
        AssignAddressesRequest.fromPartial(asked),
        clientLimits(),
      );
    },
    remove: ({ peer }, name) =>
      peer.call(HandleServiceService.releaseHandle, { handleId: name, searchAllBlocks: false }, clientLimits()),
    page: async ({ peer }, pages) => {
      const { handles, nextPageToken } = await peer.call(
        HandleServiceService.listHandles,
        { ...pages, prefix: '' },
        clientLimits(),
      );
      return { names: handles.map(({ handleId }) => handleId), nextPageToken };
    },
  },
  endpoints: {
    make: (caller, name) => caller.allocate(name),
    remove: (caller, name) => caller.release(name),
    page: async ({ peer }, pages) => {
      const message = ListEndpointsRequest.fromPartial(pages);
      const { endpoints, nextPageToken } = await peer.call(
        EndpointServiceService.listEndpoints,
        message,
        clientLimits(),
      );
      return { names: endpoints.map(({ attachment }) => attachment?.containerId ?? ''), nextPageToken };
    },
  },
  blocks: {
    ...claims,
    page: async (caller, pages) => {
      const { blocks, nextPageToken } = await caller.listBlocks({ ...pages, poolName: 'default' });
      return { names: blocks.map(({ cidr }) => nameOf(cidr)), nextPageToken };
    },
  },
  affinities: {
    ...claims,
    page: async ({ peer }, pages) => {
      const message = { ...pages, nodeName: 'node-1', poolName: '' };
      const { affinities, nextPageToken } = await peer.call(
        AffinityServiceService.listAffinities,
        message,
        clientLimits(),
      );
      return { names: affinities.map(({ blockCidr }) => nameOf(blockCidr)), nextPageToken };
    },
  },
};

test.each(Object.entries(lists))(
  'pages of %s have what stays once, and what comes behind them, though the last of a page goes',
  async (_, { make, remove, page }) => {
    const { caller } = served;
    for (const name of ['b', 'd', 'f', 'h', 'j']) await make(caller, name);
    const first = await page(caller, { pageSize: 2, pageToken: '' });
    expect(first.names).toEqual(['b', 'd']);
    for (const name of ['d', 'f']) await remove(caller, name);
    for (const name of ['c', 'e']) await make(caller, name);
    const rest: string[] = [];
    for (let pageToken = first.nextPageToken; pageToken !== '';) {
      const { names, nextPageToken } = await page(caller, { pageSize: 2, pageToken });
      rest.push(...names.filter((name) => name !== 'default'));
      pageToken = nextPageToken;
    }
    expect(rest).toEqual(['e', 'h', 'j']);
  },
);

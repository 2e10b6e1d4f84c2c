import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import {
  AddressServiceService,
  AllocateRequest,
  ExplainAllocationRequest,
  ReleaseAddressesRequest,
} from '@podwire/proto/podwire/ipam/v1/address';
import { AffinityServiceService } from '@podwire/proto/podwire/ipam/v1/affinity';
import { BlockServiceService, ListBlocksRequest } from '@podwire/proto/podwire/ipam/v1/block';
import { CertificateServiceService } from '@podwire/proto/podwire/ipam/v1/certificate';
import { ClusterServiceService } from '@podwire/proto/podwire/ipam/v1/cluster';
import { ConfigServiceService } from '@podwire/proto/podwire/ipam/v1/config';
import { EndpointServiceService, ListEndpointsRequest } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import { HistoryServiceService } from '@podwire/proto/podwire/ipam/v1/history';
import {
  BindAddressesRequest,
  LeaseAddressesRequest,
  LeaseServiceService,
  ReturnAddressesRequest,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { AuditServiceService } from '@podwire/proto/podwire/ipam/v1/maintenance';
import {
  AnnouncePodRequest,
  FollowPoliciesRequest,
  NetworkPolicyServiceService,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import { NodeServiceService, RegisterNodeRequest, TunnelKind } from '@podwire/proto/podwire/ipam/v1/node';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';
import { WatchKind, WatchRequest, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { ReleaseServiceService } from '@podwire/proto/podwire/release/v1/release';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import type { RpcService } from '@podwire/shared/rpc/server';
import { certificateSource, CertificateFolder } from '@podwire/shared/testing/certificates';
import { IPAM_SERVER_NAME, ROLES, type Role } from '@podwire/shared/tls/caller';
import type { TlsFiles } from '@podwire/shared/tls/tls-files';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import type { RunningService } from '../service.js';
import { Caller, clientLimits, Place } from '../testing/service.js';

/** The network listener of a real service, called with every role. */

const SERVICES: Readonly<Record<string, RpcService['definition']>> = {
  AddressService: AddressServiceService,
  AffinityService: AffinityServiceService,
  AuditService: AuditServiceService,
  BlockService: BlockServiceService,
  CertificateService: CertificateServiceService,
  ClusterService: ClusterServiceService,
  ConfigService: ConfigServiceService,
  EndpointService: EndpointServiceService,
  HandleService: HandleServiceService,
  HistoryService: HistoryServiceService,
  LeaseService: LeaseServiceService,
  NetworkPolicyService: NetworkPolicyServiceService,
  NodeService: NodeServiceService,
  PoolService: PoolServiceService,
  ReleaseService: ReleaseServiceService,
  RequestPolicyService: RequestPolicyServiceService,
  ReservationService: ReservationServiceService,
  WatchService: WatchServiceService,
};

const METHODS = Object.values(SERVICES).flatMap((definition) => Object.values(definition));

/** The lists of README.md: methods, and whether nodes and readers may call them. */
const RIGHTS = [
  ...readFileSync(join(import.meta.dirname, '..', 'README.md'), 'utf8').matchAll(
    /^- node (yes|own|no), reader (yes|no): ((?:`\w+Service\/\w+`,?\s+)+)/gm,
  ),
].flatMap(([, node = '', reader = '', methods = '']) =>
  [...methods.matchAll(/`(.+?)`/g)].map(([, method = '']) => [method, { node, reader, operator: 'yes' }] as const),
);

/** Text of README.md about the methods in no list. */
const OPERATORS_ALONE = { node: 'no', reader: 'no', operator: 'yes' };

const place = new Place();
const peers: Peer[] = [];
let folder: CertificateFolder;
let service: RunningService;
let local: Caller;
let address: string;

beforeAll(async () => {
  folder = await CertificateFolder.create(join(place.directory, 'certificates'));
  const { ca, identity } = await folder.server();
  service = await place.start({
    PODWIRE_IPAM_LISTEN: `${place.address},127.0.0.1:0`,
    PODWIRE_IPAM_TLS_CERT_FILE: identity?.certificate.path ?? '',
    PODWIRE_IPAM_TLS_KEY_FILE: identity?.key.path ?? '',
    PODWIRE_IPAM_TLS_CLIENT_CA_FILE: ca?.path ?? '',
  });
  address = service.addresses.find((each) => !each.startsWith('unix:')) ?? '';
  local = new Caller(place.address);
});

afterAll(async () => {
  local.close();
  for (const peer of peers) peer.close();
  await service.stop();
  place.remove();
});

function peerWith(files: TlsFiles): Peer {
  const tls = { certificates: certificateSource(files).source, serverName: IPAM_SERVER_NAME };
  const peer = new Peer('podwire-ipam', address, { tls });
  peers.push(peer);
  return peer;
}

const peersOf = new Map<string, Promise<Peer>>();

/** The connection of a caller; podwire-ipam limits how many it may have. */
function peerOf(role: Role, name: string): Promise<Peer> {
  const key = `${role} ${name}`;
  const peer = peersOf.get(key) ?? folder.client(role, name).then(peerWith);
  peersOf.set(key, peer);
  return peer;
}

/** Calls with an empty request. @returns the failure's code; undefined for an answer */
async function call(peer: Peer, method: (typeof METHODS)[number], timeoutMs = 10_000): Promise<string | undefined> {
  const empty = method.requestDeserialize(Buffer.alloc(0));
  const signal = AbortSignal.timeout(timeoutMs);
  try {
    if (method.responseStream) await peer.stream(method, empty, signal).next();
    else await peer.call(method, empty, { deadlineMs: Date.now() + timeoutMs });
    return undefined;
  } catch (error) {
    if (error instanceof Failure) return error.code;
    throw error;
  }
}

const nameOf = ({ path }: { readonly path: string }): string => path.replace(/^\/podwire\.\w+\.v1\./, '');

test('README.md lists each method once, and no unknown one', () => {
  const listed = RIGHTS.map(([method]) => method);
  expect(new Set(listed).size).toBe(listed.length);
  expect(listed.filter((method) => !METHODS.map(nameOf).includes(method))).toEqual([]);
});

describe.each(ROLES)('a caller with the role %s', (role) => {
  test.each(METHODS.map((method) => [nameOf(method), method] as const))('%s', async (name, method) => {
    const code = await call(await peerOf(role, 'worker-1'), method);

    // A request without a node's name is not about the caller's own node.
    const takesNodeName =
      /Allocate|ListEndpoints|NodeService.GetNode|RegisterNode|ConnectNode|ReleaseTunnelAddress|LeaseService|NetworkPolicyService/.test(
        name,
      );
    const right = (new Map(RIGHTS).get(name) ?? OPERATORS_ALONE)[role];
    const isDenied = right === 'no' || (right === 'own' && takesNodeName);
    if (isDenied) expect(code).toBe('ACCESS_DENIED');
    else expect(code).not.toBe('ACCESS_DENIED');
  });
});

describe.each([
  ['without a certificate', () => Promise.resolve(folder.withoutCertificate())],
  [
    'with a certificate of another authority',
    async () => {
      const other = await CertificateFolder.create(join(place.directory, 'other'));
      return { ...folder.withoutCertificate(), identity: (await other.client('operator', 'mallory')).identity };
    },
  ],
  ['with the certificate of podwire-ipam', () => folder.server()],
] as const)('a caller %s', (_, filesOf) => {
  test('is refused by every method', async () => {
    const peer = peerWith(await filesOf());
    const codes = await Promise.all(METHODS.map((method) => call(peer, method, 4000)));
    expect(codes.filter((code) => code === undefined || code.startsWith('INVALID'))).toEqual([]);
  }, 30_000);
});

describe('a node', () => {
  const attachmentOf = (containerId: string) => ({ network: 'net', containerId, interfaceName: 'eth0' });
  const denied = { code: 'ACCESS_DENIED' };

  test('allocates, finds and releases its own addresses', async () => {
    const node = await peerOf('node', 'worker-1');
    const attachment = attachmentOf('own');
    const request = AllocateRequest.fromPartial({ attachment, nodeName: 'worker-1' });

    const { endpoint } = await node.call(AddressServiceService.allocate, request, clientLimits());
    const found = await node.call(AddressServiceService.getEndpoint, { attachment }, clientLimits());
    const listed = await node.call(
      EndpointServiceService.listEndpoints,
      ListEndpointsRequest.fromPartial({ nodeName: 'worker-1' }),
      clientLimits(),
    );
    const released = await node.call(AddressServiceService.release, { attachment }, clientLimits());

    const [given] = endpoint?.addresses ?? [];
    expect(found.endpoint?.addresses).toMatchObject([{ address: given?.address }]);
    expect(listed.endpoints.map(({ attachment: each }) => each?.containerId)).toEqual(['own']);
    expect(released.addresses).toHaveLength(1);
  });

  test("cannot touch another node's attachment and addresses, which stay allocated", async () => {
    const node = await peerOf('node', 'worker-1');
    const held = (await local.allocateAddress('other', { nodeName: 'worker-2' })).split('/')[0] ?? '';
    const attachment = attachmentOf('other');
    const releases = ReleaseAddressesRequest.fromPartial({ releases: [{ address: held, handleId: 'net.other' }] });
    const allocation = AllocateRequest.fromPartial({ attachment, nodeName: 'worker-1' });

    await expect(node.call(AddressServiceService.release, { attachment }, clientLimits())).rejects.toMatchObject(
      denied,
    );
    await expect(node.call(AddressServiceService.getEndpoint, { attachment }, clientLimits())).rejects.toMatchObject({
      ...denied,
      message: expect.stringMatching(
        /^node "worker-1": may not call .*GetEndpoint: attachment .* belongs to node "worker-2"/,
      ),
    });
    await expect(node.call(AddressServiceService.releaseAddresses, releases, clientLimits())).rejects.toMatchObject(
      denied,
    );
    const asOther = ReleaseAddressesRequest.fromPartial({ nodeName: 'worker-2' });
    await expect(node.call(AddressServiceService.releaseAddresses, asOther, clientLimits())).rejects.toMatchObject(
      denied,
    );
    await expect(node.call(AddressServiceService.allocate, allocation, clientLimits())).rejects.toMatchObject(denied);
    const own = { nodeName: 'worker-1' };
    const binding = BindAddressesRequest.fromPartial({ ...own, bindings: [{ attachment }] });
    await expect(node.call(LeaseServiceService.bindAddresses, binding, clientLimits())).rejects.toMatchObject(denied);
    const returned = ReturnAddressesRequest.fromPartial({ ...own, returns: [{ attachment }] });
    await expect(node.call(LeaseServiceService.returnAddresses, returned, clientLimits())).rejects.toMatchObject(
      denied,
    );

    const { endpoint } = await local.getEndpoint('other');
    expect(endpoint?.addresses).toHaveLength(1);
  });

  test.each<[method: string, send: (node: Peer) => Promise<unknown>]>([
    [
      'Allocate',
      (node) => {
        const request = AllocateRequest.fromPartial({ attachment: attachmentOf('x'), nodeName: 'worker-2' });
        return node.call(AddressServiceService.allocate, request, clientLimits());
      },
    ],
    [
      'ExplainAllocation',
      (node) => {
        const request = { attachment: attachmentOf('x'), nodeName: 'worker-2' };
        const message = ExplainAllocationRequest.fromPartial({ request });
        return node.call(AddressServiceService.explainAllocation, message, clientLimits());
      },
    ],
    [
      'ListEndpoints',
      (node) => {
        const request = ListEndpointsRequest.fromPartial({ nodeName: 'worker-2' });
        return node.call(EndpointServiceService.listEndpoints, request, clientLimits());
      },
    ],
    [
      'RegisterNode',
      (node) => {
        const request = RegisterNodeRequest.fromPartial({ name: 'worker-2' });
        return node.call(NodeServiceService.registerNode, request, clientLimits());
      },
    ],
    [
      'AllocateTunnelAddress',
      (node) => {
        const request = { nodeName: 'worker-2', kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV4 };
        return node.call(NodeServiceService.allocateTunnelAddress, request, clientLimits());
      },
    ],
    [
      'LeaseAddresses',
      (node) => {
        const request = LeaseAddressesRequest.fromPartial({ nodeName: 'worker-2' });
        return node.call(LeaseServiceService.leaseAddresses, request, clientLimits());
      },
    ],
    [
      'BindAddresses',
      (node) => {
        const request = BindAddressesRequest.fromPartial({ nodeName: 'worker-2' });
        return node.call(LeaseServiceService.bindAddresses, request, clientLimits());
      },
    ],
    [
      'FollowPolicies',
      (node) => {
        const request = FollowPoliciesRequest.fromPartial({ nodeName: 'worker-2' });
        return node.stream(NetworkPolicyServiceService.followPolicies, request, AbortSignal.timeout(10_000)).next();
      },
    ],
    [
      'AnnouncePod',
      (node) => {
        const request = AnnouncePodRequest.fromPartial({ nodeName: 'worker-2' });
        return node.call(NetworkPolicyServiceService.announcePod, request, clientLimits());
      },
    ],
    [
      'ReturnAddresses',
      (node) => {
        const request = ReturnAddressesRequest.fromPartial({ nodeName: 'worker-2' });
        return node.call(LeaseServiceService.returnAddresses, request, clientLimits());
      },
    ],
  ])('cannot call %s for another node', async (_, send) => {
    await expect(send(await peerOf('node', 'worker-1'))).rejects.toMatchObject(denied);
  });

  test('watches nodes, pools and routes of the cluster, and lists no blocks, which name all pods', async () => {
    const node = await peerOf('node', 'worker-1');
    const request = WatchRequest.fromPartial({ kinds: [WatchKind.WATCH_KIND_ROUTES] });
    const stream = node.stream(WatchServiceService.watch, request, AbortSignal.timeout(10_000));
    await expect(stream.next()).resolves.toMatchObject({ done: false });
    await stream.return();
    const blocks = node.call(BlockServiceService.listBlocks, ListBlocksRequest.create(), clientLimits());
    await expect(blocks).rejects.toMatchObject(denied);
  });
});

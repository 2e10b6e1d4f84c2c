import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { AddressServiceService, AllocateRequest, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { Endpoint, EndpointServiceService, ListEndpointsRequest } from '@podwire/proto/podwire/ipam/v1/endpoint';
import {
  BindAddressesRequest,
  LeaseAddressesRequest,
  LeaseServiceService,
  OpenSessionRequest,
  ReportEndpointsRequest,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { Peer } from '@podwire/shared/rpc/client';
import { certificateSource } from '@podwire/shared/testing/certificates';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { recordingLog } from '@podwire/shared/testing/server';
import { IPAM_SERVER_NAME, LOCAL_CALLER, type Caller } from '@podwire/shared/tls/caller';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { attachment, Caller as LocalClient, clientLimits, Place } from '../testing/service.js';
import { TokenApi } from '../testing/token-api.js';
import type { KubernetesApi } from './api.js';
import { PodNodes } from './pod-nodes.js';

const { signal } = new AbortController();
const NODE: Caller = { kind: 'network', role: 'node', name: 'worker-1' };
const BOOT = '11111111-1111-4111-8111-111111111111';
const WEB = { namespace: 'shop', name: 'web-0', uid: '' };

let folder: string;
let server: TokenApi;
let api: KubernetesApi;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-pods-'));
  server = await TokenApi.start(join(folder, 'account'));
  api = server.connect();
});

afterEach(async () => {
  api.close();
  await server.stop();
  rmSync(folder, { recursive: true });
});

const reads = () => server.requests.filter(({ path }) => path.includes('/pods/')).map(({ path }) => path);

describe('PodNodes', () => {
  let clock: ManualClock;
  let pods: PodNodes;
  let lines: Record<string, unknown>[];

  beforeEach(() => {
    clock = new ManualClock();
    const recording = recordingLog();
    ({ lines } = recording);
    pods = new PodNodes({ api, clock, log: recording.log });
  });

  const warnings = () => lines.map(({ msg }) => msg);

  test("refuses a node's call for a pod of another node, or of none", async () => {
    server.pods.set('shop/web-0', 'worker-2');
    await expect(pods.require(NODE, WEB, signal)).rejects.toMatchObject({
      code: 'ACCESS_DENIED',
      message: 'node "worker-1": pod shop/web-0 is scheduled to node "worker-2"; a node acts for its own pods only',
    });
    server.pods.set('shop/web-0', '');
    await expect(pods.require(NODE, WEB, signal)).rejects.toThrow('pod shop/web-0 is scheduled to no node');
    // A list without a resource version is never stale.
    expect(reads()).toEqual(Array.from({ length: 2 }, () => '/api/v1/namespaces/shop/pods/web-0'));
  });

  test('allows the own pods of a node, and pods that do not exist', async () => {
    server.pods.set('shop/web-0', 'worker-1');
    await pods.require(NODE, WEB, signal);
    await pods.require(NODE, { ...WEB, name: 'gone' }, signal);
    expect(warnings()).toEqual([]);
  });

  test.each<[string, Caller, typeof WEB | undefined]>([
    ['local processes', LOCAL_CALLER, WEB],
    ['operators', { ...NODE, role: 'operator' }, WEB],
    ['requests without a pod', NODE, undefined],
  ])('does not ask about %s', async (_, caller, pod) => {
    server.pods.set('shop/web-0', 'worker-2');
    await pods.require(caller, pod, signal);
    expect(reads()).toEqual([]);
  });

  test.each([403, 500, 503])('allows while the API server answers %i, and asks once in ten seconds', async (status) => {
    server.pods.set('shop/web-0', 'worker-2');
    server.answer = () => ({ status });
    await pods.require(NODE, WEB, signal);
    await pods.require(NODE, WEB, signal);
    expect(reads()).toHaveLength(1);
    clock.advance(10_000);
    await Promise.all([pods.require(NODE, WEB, signal), pods.require(NODE, WEB, signal)]);
    expect(reads()).toHaveLength(2);
    expect(warnings()).toEqual([expect.stringContaining('pods of nodes: recorded without asking the API server: ')]);

    server.answer = () => undefined;
    clock.advance(10_000);
    for (let call = 0; call < 2; call++) await expect(pods.require(NODE, WEB, signal)).rejects.toThrow('worker-2');
    server.answer = () => ({ status });
    await pods.require(NODE, WEB, signal);
    expect(warnings()).toHaveLength(2);
  });

  test('waits a second for an API server that is silent, and then one call in ten seconds does', async () => {
    server.answer = () => new Promise(() => undefined);
    const first = pods.require(NODE, WEB, signal);
    await expect.poll(() => reads().length).toBe(1);
    clock.advance(999);
    expect(
      await Promise.race([first.then(() => 'ended'), new Promise((resolve) => setImmediate(resolve, 'waits'))]),
    ).toBe('waits');
    clock.advance(1);
    await first;
    await pods.require(NODE, WEB, signal);
    clock.advance(10_000);
    const next = pods.require(NODE, WEB, signal);
    // While one call tries again, the rest do not wait.
    await pods.require(NODE, WEB, signal);
    clock.advance(1000);
    await next;
    expect(warnings()).toEqual([
      expect.stringMatching(/recorded without .* API server at .*: no answer within 1000 ms$/),
    ]);
  });

  test('ends with the call, which is not an outage', async () => {
    server.answer = () => new Promise(() => undefined);
    const call = new AbortController();
    const ended = pods.require(NODE, WEB, call.signal);
    await expect.poll(() => reads().length).toBe(1);
    call.abort();
    await expect(ended).rejects.toMatchObject({ code: 'CANCELLED' });
    expect(warnings()).toEqual([]);
    server.answer = () => undefined;
    server.pods.set('shop/web-0', 'worker-2');
    await expect(pods.require(NODE, WEB, signal)).rejects.toThrow('worker-2');
  });
});

describe('podwire-ipam', () => {
  let place: Place;
  let local: LocalClient;
  let node: Peer;
  let stop: () => Promise<void>;

  beforeEach(async () => {
    place = new Place();
    const env = {
      PODWIRE_IPAM_LISTEN: `${place.address},127.0.0.1:0`,
      PODWIRE_IPAM_NODE_TOKENS: 'true',
      PODWIRE_IPAM_AUTHORITY_DIRECTORY: join(folder, 'authority'),
    };
    const service = await place.start(env, undefined, () => server.connect());
    const ca = { setting: 'CA', path: join(folder, 'authority', 'ca.crt') };
    const tls = { certificates: certificateSource({ ca, identity: undefined }).source, serverName: IPAM_SERVER_NAME };
    const token = await server.token();
    node = new Peer('podwire-ipam', service.addresses[1]!, { tls, token: () => token });
    local = new LocalClient(place.address);
    stop = () => service.stop();
  });

  afterEach(async () => {
    node.close();
    local.close();
    await stop();
    place.remove();
  });

  const allocate = (id: string, pod?: typeof WEB) => {
    const request = AllocateRequest.fromPartial({ attachment: attachment(id), nodeName: 'worker-1', pod });
    return node.call(AddressServiceService.allocate, request, clientLimits());
  };

  test('gives a node no address for a pod of another node', async () => {
    server.pods.set('shop/web-0', 'worker-2').set('shop/web-1', 'worker-1');
    await expect(allocate('a', WEB)).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
    for (const block of await local.allBlocks()) expect(block.allocations).toEqual([]);
    await expect(allocate('b', { ...WEB, name: 'web-1' })).resolves.toMatchObject({
      endpoint: { pod: { name: 'web-1' } },
    });
    await expect(allocate('c')).resolves.toBeDefined();
    // The name is one segment of the path, whatever it contains.
    await expect(allocate('d', { ...WEB, name: 'web-0/../web-1' })).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
    expect((await local.allocate('e', { nodeName: 'worker-1', pod: WEB })).endpoint?.pod).toEqual(WEB);
  });

  test('shows a node the podCIDRs of its Node only', async () => {
    await local.allocate('a', { nodeName: 'worker-1' });
    const get = (name: string, withPodCidrs = true) =>
      node.call(NodeServiceService.getNode, { name, withPodCidrs }, clientLimits());
    await expect(get('worker-1')).resolves.toMatchObject({ node: { name: 'worker-1' }, podCidrs: [] });
    server.podCidrs = ['10.1.0.0/24', 'fd01::/64'];
    await expect(get('worker-1')).resolves.toMatchObject({ podCidrs: server.podCidrs });
    await expect(get('worker-1', false)).resolves.toMatchObject({ podCidrs: [] });
    await expect(get('worker-2')).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
    server.answer = () => ({ status: 503 });
    await expect(get('worker-1')).rejects.toMatchObject({ code: 'UNREACHABLE' });
    server.answer = ({ path }) => (path.endsWith('/nodes/worker-1') ? { status: 404 } : undefined);
    await expect(get('worker-1')).resolves.toMatchObject({ podCidrs: [] });
  });

  test('leaves out the endpoint of a pod of another node, and takes no container of another node', async () => {
    server.pods.set('shop/web-0', 'worker-2').set('shop/web-1', 'worker-1');
    const registration = RegisterNodeRequest.fromPartial({ name: 'worker-1', ipv4Address: '192.0.2.7/24' });
    await node.call(NodeServiceService.registerNode, registration, clientLimits());
    const opening = OpenSessionRequest.fromPartial({ nodeName: 'worker-1', bootId: BOOT, machineId: BOOT });
    const { generation } = await node.call(LeaseServiceService.openSession, opening, clientLimits());
    const report = (ids: readonly string[]) => {
      const endpoints = ids.map((id, index) =>
        Endpoint.fromPartial({
          attachment: attachment(id),
          pod: { ...WEB, name: `web-${index}` },
          macAddress: '02:00:5e:00:53:01',
          addresses: [{ address: '198.51.100.7' }],
        }),
      );
      const session = { bootId: BOOT, generation, revision: 0n };
      const message = ReportEndpointsRequest.fromPartial({ nodeName: 'worker-1', session, endpoints });
      return node.call(LeaseServiceService.reportEndpoints, message, clientLimits());
    };
    await expect(report(['a', 'b'])).resolves.toMatchObject({ leftOut: 1 });
    const all = ListEndpointsRequest.fromPartial({});
    const { endpoints } = await local.peer.call(EndpointServiceService.listEndpoints, all, clientLimits());
    expect(endpoints.map(({ pod }) => pod?.name)).toEqual(['web-1']);
    // A recorded endpoint is not asked about again.
    const before = reads().length;
    await report(['a', 'b']);
    expect(reads()).toHaveLength(before + 1);
    await local.allocate('foreign', { nodeName: 'worker-2' });
    await expect(report(['foreign'])).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  });

  test('refuses a binding of a pod of another node alone', async () => {
    server.pods.set('shop/web-0', 'worker-2').set('shop/web-1', 'worker-1');
    const session = await local.openSession('worker-1', BOOT);
    const asked = { nodeName: 'worker-1', bootId: BOOT, family: IpFamily.IP_FAMILY_IPV4, count: 2, session };
    const { addresses } = await node.call(
      LeaseServiceService.leaseAddresses,
      LeaseAddressesRequest.fromPartial(asked),
      clientLimits(),
    );
    const bindings = addresses.map(({ address, sequenceNumber }, index) => ({
      attachment: attachment(`c${index}`),
      pod: { ...WEB, name: `web-${index}` },
      addresses: [{ address, sequenceNumber }],
      attachTime: new Date(),
    }));
    const { results } = await node.call(
      LeaseServiceService.bindAddresses,
      BindAddressesRequest.fromPartial({ nodeName: 'worker-1', session, bindings }),
      clientLimits(),
    );
    expect(results).toMatchObject([
      { refusalCode: 'ACCESS_DENIED', refusal: expect.stringContaining('is scheduled to node "worker-2"') },
      { refusalCode: '', endpoint: { pod: { name: 'web-1' } } },
    ]);
    expect(results[0]?.endpoint).toBeUndefined();
  });
});

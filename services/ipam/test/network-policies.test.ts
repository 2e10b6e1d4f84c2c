import { randomUUID } from 'node:crypto';

import { metrics } from '@opentelemetry/api';
import { AddressServiceService, AllocateRequest, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { LeaseAddressesRequest, LeaseServiceService } from '@podwire/proto/podwire/ipam/v1/lease';
import {
  AnnouncePodRequest,
  FollowPoliciesRequest,
  NetworkPolicyServiceService,
  type AnnouncePodResponse,
  type ExplainPolicyRequest,
  type ExplainPolicyResponse,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import type { Cluster, RawPod } from '../network-policies/testing/cluster.js';
import { allows } from '../network-policies/testing/compiled.js';
import { NodeState } from '../network-policies/testing/node-state.js';
import { Oracle } from '../network-policies/testing/oracle.js';
import type { JsonObject } from '../records/json/json.js';
import type { RunningService } from '../service.js';
import { ObjectServer } from '../testing/object-server.js';
import { attachment, Caller, clientLimits, failureOf, Place } from '../testing/service.js';

/** Nodes follow the network policies of podwire-ipam, in front of an API server. */

const CLUSTER_POLICIES = '/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies';
const ENV = { PODWIRE_IPAM_NODE_CONTROLLER: 'true', PODWIRE_IPAM_MAINTENANCE_INTERVAL_SECONDS: '0' };
const NODES = ['n1', 'n2'];
const BOOT = randomUUID();

let server: ObjectServer;
let place: Place;
let caller: Caller;
let service: RunningService | undefined;
let cluster: Cluster;
/** Addresses that podwire-ipam allocated, by `<namespace>/<name>`. */
let addresses: Map<string, string>;
let stop: AbortController;

beforeEach(async () => {
  server = await ObjectServer.start();
  place = new Place();
  caller = new Caller(place.address);
  cluster = { namespaces: [], pods: [], networkPolicies: [], clusterPolicies: [] };
  addresses = new Map();
  stop = new AbortController();
});

afterEach(async () => {
  stop.abort();
  caller.close();
  await service?.stop();
  service = undefined;
  place.remove();
  await server.stop();
});

async function start(env: Readonly<Record<string, string>> = {}): Promise<void> {
  service = await place.start({ ...ENV, ...env }, undefined, () => new KubernetesApi(server.options));
}

function put(collection: string, object: object): void {
  const plain: JsonObject = JSON.parse(JSON.stringify(object));
  server.put(collection, plain);
}

function putNamespace(name: string, labels: Readonly<Record<string, string>>): void {
  const namespace = { metadata: { name, labels } };
  cluster = { ...cluster, namespaces: [...cluster.namespaces, namespace] };
  put('/api/v1/namespaces', namespace);
}

/** A pod whose node has bound an address of a pool to it. The kubelet has not reported it. */
async function putPod(namespace: string, name: string, labels: Readonly<Record<string, string>>): Promise<void> {
  const nodeName = NODES[addresses.size % NODES.length] ?? '';
  const containers = [{ ports: [{ name: 'http', containerPort: 8000 + (addresses.size % 2) }] }];
  const pod: RawPod = { metadata: { name, namespace, uid: `uid-${name}`, labels }, spec: { nodeName, containers } };
  put(`/api/v1/namespaces/${namespace}/pods`, pod);
  const request = { nodeName, attachment: attachment(`c-${name}`), pod: { namespace, name, uid: `uid-${name}` } };
  const { endpoint } = await caller.peer.call(
    AddressServiceService.allocate,
    AllocateRequest.fromPartial(request),
    clientLimits(),
  );
  const ip = endpoint?.addresses[0]?.address.split('/')[0] ?? '';
  addresses.set(`${namespace}/${name}`, ip);
  cluster = { ...cluster, pods: [...cluster.pods, { ...pod, status: { podIPs: [{ ip }] } }] };
}

interface FollowingNode {
  readonly state: NodeState;
  readonly ended: Promise<unknown>;
}

/** Follows as a node does, and acknowledges each message. */
function follow(nodeName: string): FollowingNode {
  const state = new NodeState((pod) => [addresses.get(pod) ?? ''].filter((each) => each !== ''));
  const read = async (): Promise<void> => {
    const request = FollowPoliciesRequest.fromPartial({ nodeName });
    let acknowledge: (number: bigint) => void = () => undefined;
    const stream = caller.peer.stream(
      NetworkPolicyServiceService.followPolicies,
      request,
      stop.signal,
      (send) => (acknowledge = (number) => send(FollowPoliciesRequest.fromPartial({ acknowledgedNumber: number }))),
    );
    for await (const message of stream) {
      state.apply(message);
      acknowledge(message.number);
    }
  };
  return { state, ended: read().catch((error: unknown) => error) };
}

/** Waits until the nodes judge every connection as the oracle does. */
async function expectOracle(nodes: readonly FollowingNode[]): Promise<void> {
  const oracle = new Oracle(cluster);
  const ends = [...addresses.values(), '192.0.2.9'];
  const attempts = ends.flatMap((source) =>
    ends.flatMap((destination) =>
      [8000, 8001].map((port) => ({ source, destination, protocol: 'TCP', port }) as const),
    ),
  );
  const expected = attempts.map((attempt) => oracle.allows(attempt));
  expect(new Set(expected).size).toBe(2);
  await expect
    .poll(() => attempts.map((attempt) => nodes.every(({ state }) => allows(state, attempt))))
    .toEqual(expected);
}

test('nodes judge connections as the oracle does, through changes of policies, pods and labels', async () => {
  putNamespace('front', { team: 'a' });
  putNamespace('back', { team: 'b' });
  server.undefinedCollections.add(CLUSTER_POLICIES);
  await start();
  for (const [namespace, name, app] of [
    ['front', 'web', 'web'],
    ['front', 'bot', 'bot'],
    ['back', 'api', 'api'],
    ['back', 'db', 'db'],
  ] as const)
    await putPod(namespace, name, { app });
  expect((await failureOf(firstMessage(''))).code).toBe('INVALID_REQUEST');
  const isolated = {
    metadata: { name: 'api', namespace: 'back' },
    spec: {
      podSelector: { matchLabels: { app: 'api' } },
      ingress: [
        {
          from: [{ namespaceSelector: { matchLabels: { team: 'a' } }, podSelector: { matchLabels: { app: 'web' } } }],
          ports: [{ port: 'http' }],
        },
      ],
    },
  };
  put('/apis/networking.k8s.io/v1/namespaces/back/networkpolicies', isolated);
  cluster = { ...cluster, networkPolicies: [isolated] };
  const nodes = await followAll();
  await expectOracle(nodes);

  // Another pod of the allowed kind, on the other node.
  await putPod('front', 'web-2', { app: 'web' });
  await expectOracle(nodes);

  // It is released, and its address is no member any more.
  await caller.release('c-web-2');
  cluster = { ...cluster, pods: cluster.pods.filter(({ metadata }) => metadata.name !== 'web-2') };
  await expectOracle(nodes);

  const egress = { ...isolated, spec: { ...isolated.spec, policyTypes: ['Ingress', 'Egress'], egress: [] } };
  put('/apis/networking.k8s.io/v1/namespaces/back/networkpolicies', egress);
  cluster = { ...cluster, networkPolicies: [egress] };
  await expectOracle(nodes);
});

test('an announced pod is known to other nodes before its lease is bound', async () => {
  putNamespace('back', {});
  const web: RawPod = { metadata: { name: 'web', namespace: 'back', labels: {} }, spec: { nodeName: 'n2' } };
  await start();
  await putPod('back', 'api', { app: 'api' });
  put('/api/v1/namespaces/back/pods', web);
  put('/apis/networking.k8s.io/v1/namespaces/back/networkpolicies', {
    metadata: { name: 'api', namespace: 'back' },
    spec: { podSelector: { matchLabels: { app: 'api' } }, ingress: [{ from: [{ podSelector: {} }] }] },
  });
  const [node] = await followAll();
  const members = (): string[] => node?.state.digests().flatMap(({ id }) => [...node.state.members(id)]) ?? [];
  await expect.poll(members).toEqual([addresses.get('back/api')]);
  const session = await caller.openSession('n2', BOOT);
  const family = IpFamily.IP_FAMILY_IPV4;
  const request = LeaseAddressesRequest.fromPartial({ nodeName: 'n2', bootId: BOOT, family, count: 1, session });
  const { addresses: leased } = await caller.peer.call(LeaseServiceService.leaseAddresses, request, clientLimits());
  const announce = (nodeName: string, uid = ''): Promise<AnnouncePodResponse> => {
    const pod = { namespace: 'back', name: 'web', uid };
    const announcement = AnnouncePodRequest.fromPartial({ nodeName, pod, addresses: leased });
    return caller.peer.call(NetworkPolicyServiceService.announcePod, announcement, clientLimits());
  };
  await announce('n1');
  expect(members()).toEqual([addresses.get('back/api')]);
  expect(await announce('n2', 'earlier')).toEqual({ nodes: 0 });
  expect(await announce('n2')).toEqual({ nodes: 1 });
  expect(members()).toEqual([addresses.get('back/api'), leased[0]?.address]);
  const empty = AnnouncePodRequest.fromPartial({ nodeName: 'n1' });
  const failure = failureOf(caller.peer.call(NetworkPolicyServiceService.announcePod, empty, clientLimits()));
  expect((await failure).message).toMatch(/pod\.namespace.*pod\.name.*addresses must be one, or one of each family/);
});

test('explains connections, and lists policies and nodes', async () => {
  putNamespace('front', {});
  await start();
  await putPod('front', 'web', { app: 'web' });
  await putPod('front', 'bot', { app: 'bot' });
  const web = {
    metadata: { name: 'web', namespace: 'front' },
    spec: { podSelector: { matchLabels: { app: 'web' } }, ingress: [{ ports: [{ port: 'http' }] }] },
  };
  put('/apis/networking.k8s.io/v1/namespaces/front/networkpolicies', web);
  put('/apis/networking.k8s.io/v1/namespaces/front/networkpolicies', { metadata: { name: 'all', namespace: 'front' } });
  await followAll();
  const acknowledged = { following: true, behind: false, behindSince: undefined };
  const { getPolicyStatus, listPolicies } = NetworkPolicyServiceService;
  const status = () => caller.peer.call(getPolicyStatus, {}, clientLimits());
  await expect.poll(status).toMatchObject({
    nodes: NODES.map((name) => ({ name, podCount: 1, restrictedPodCount: 1, ...acknowledged })),
    networkPolicyCount: 2,
    clusterNetworkPolicyCount: 0,
    faultyPolicies: [],
  });

  expect(await explained({ port: 'http' })).toMatchObject({
    allowed: true,
    connections: [{ port: 8000, egress: undefined, ingress: { policy: 'NetworkPolicy front/web', ruleIndex: 0 } }],
    source: { pod: { name: 'bot' }, node: { name: 'n2' } },
    destination: { pod: { name: 'web' }, node: { name: 'n1', ...acknowledged } },
  });
  expect(await explained({ port: '9' })).toMatchObject({
    allowed: false,
    connections: [{ ingress: { policy: '', isolatedBy: ['NetworkPolicy front/all', 'NetworkPolicy front/web'] } }],
  });
  const icmp = await explained({ protocol: 1, source: { end: { $case: 'address', value: '192.0.2.1' } } });
  expect(icmp).toMatchObject({ allowed: false, connections: [{ sourceAddress: '192.0.2.1', port: 0 }] });

  const list = { namespace: 'front', pageSize: 1, pageToken: '' };
  const first = await caller.peer.call(listPolicies, list, clientLimits());
  const second = await caller.peer.call(listPolicies, { ...list, pageToken: first.nextPageToken }, clientLimits());
  expect([...first.policies, ...second.policies]).toMatchObject([
    { name: 'NetworkPolicy front/all', podCount: 2, ingressRuleCount: 0, egressRuleCount: undefined },
    { name: 'NetworkPolicy front/web', podCount: 1, ingressRuleCount: 1 },
  ]);
  expect(second.nextPageToken).toBe('');
});

test('refuses malformed connections and unknown pods', async () => {
  putNamespace('front', {});
  await start();
  await putPod('front', 'web', {});
  await followAll();
  const end = (namespace: string, name: string) => ({ end: { $case: 'pod', value: { namespace, name } } }) as const;
  const faults = explained({ source: undefined, destination: end('', 'web'), protocol: 256, port: '' });
  expect((await failureOf(faults)).message).toMatch(/protocol.*source.*destination\.pod\.namespace/);
  const ports = ['', '0', '65536'].map(async (port) => (await failureOf(explained({ port }))).code);
  expect(await Promise.all(ports)).toEqual(['INVALID_REQUEST', 'INVALID_REQUEST', 'INVALID_REQUEST']);
  expect((await failureOf(explained({ protocol: 1, port: '80' }))).message).toMatch(/has no ports/);
  expect((await failureOf(explained({ source: end('front', 'gone'), port: '80' }))).code).toBe('ENDPOINT_NOT_FOUND');
});

function explained(request: Partial<ExplainPolicyRequest>): Promise<ExplainPolicyResponse> {
  const pod = (name: string) => ({ end: { $case: 'pod', value: { namespace: 'front', name } } }) as const;
  const { protocol = 6 } = request;
  const all = { source: pod('bot'), destination: pod('web'), port: '', ...request, protocol };
  return caller.peer.call(NetworkPolicyServiceService.explainPolicy, all, clientLimits());
}

test('metrics count policies, and nodes that follow or are behind', async () => {
  const read = new ReadMetrics('podwire.ipam.policies');
  putNamespace('back', {});
  put('/apis/networking.k8s.io/v1/namespaces/back/networkpolicies', { metadata: { name: 'a', namespace: 'back' } });
  await start();
  await followAll();
  const expected = [' 1', '.nodes state=behind 0', '.nodes state=following 2'];
  await expect.poll(() => read.read()).toEqual(expected);
  metrics.disable();
});

test('streams end with UNAVAILABLE when podwire-ipam stops', async () => {
  await start();
  const [node] = await followAll();
  const stopped = service?.stop();
  service = undefined;
  await expect(node?.ended).resolves.toMatchObject({ code: 'UNREACHABLE' });
  await stopped;
});

test('a second stream of a node ends the first', async () => {
  await start();
  const [first] = await followAll();
  const second = follow('n1');
  await expect(first?.ended).resolves.toMatchObject({ code: 'SESSION_SUPERSEDED' });
  await expect.poll(() => second.state.isComplete).toBe(true);
});

test('nodes wait until everything is read, and the reason is named', async () => {
  server.undefinedCollections.add('/apis/networking.k8s.io/v1/networkpolicies');
  await start();
  await expect.poll(async () => (await failureOf(firstMessage('n1'))).message).toMatch(/NetworkPolicies \(.*404/);
  expect((await failureOf(firstMessage('n1'))).code).toBe('UNREACHABLE');
});

test('without an API server, or with the setting off, no node follows', async () => {
  await start({ PODWIRE_IPAM_NETWORK_POLICIES: 'false' });
  expect((await failureOf(firstMessage('n1'))).code).toBe('POLICIES_NOT_SERVED');
  expect((await failureOf(explained({ port: '80' }))).code).toBe('POLICIES_NOT_SERVED');
  expect(server.list('/api/v1/pods')).toEqual([]);
});

/** Follows with both nodes once everything is read. */
async function followAll(): Promise<readonly FollowingNode[]> {
  await expect
    .poll(() =>
      firstMessage('probe').then(
        () => 'served',
        () => 'refused',
      ),
    )
    .toBe('served');
  const nodes = NODES.map(follow);
  await expect.poll(() => nodes.every(({ state }) => state.isComplete)).toBe(true);
  return nodes;
}

async function firstMessage(nodeName: string): Promise<void> {
  const end = new AbortController();
  const request = FollowPoliciesRequest.fromPartial({ nodeName });
  const stream = caller.peer.stream(NetworkPolicyServiceService.followPolicies, request, end.signal);
  await stream.next();
  end.abort();
}

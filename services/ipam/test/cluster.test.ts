import { randomUUID } from 'node:crypto';

import {
  CallNodeRequest,
  ClusterServiceService,
  ConnectNodeRequest,
  ListNodeStatesRequest,
  NodeContact,
  type ConnectNodeResponse,
  type NodeCall,
} from '@podwire/proto/podwire/ipam/v1/cluster';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { encodeFailure } from '@podwire/shared/failure/status';
import { Peer } from '@podwire/shared/rpc/client';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { KubernetesApi } from '../api-server/api.js';
import { ObjectServer } from '../testing/object-server.js';
import { Caller, clientLimits, failureOf, Place } from '../testing/service.js';
import type { RunningService } from '../service.js';

/** Nodes report their state to podwire-ipam, and execute calls that operators make through it. */

let place: Place;
let service: RunningService;
let caller: Caller;
let nodes: FakeNode[];

beforeEach(async () => {
  place = new Place();
  service = await place.start();
  caller = new Caller(place.address);
  nodes = [];
});

afterEach(async () => {
  for (const node of nodes) node.end();
  caller.close();
  await service.stop();
  place.remove();
});

/** A node with a connection of its own. It answers a call with the body of the request, in one part for each letter. */
class FakeNode {
  readonly #peer = new Peer('podwire-ipam', place.address);
  readonly #stop = new AbortController();
  readonly #name: string;
  first: ConnectNodeResponse | undefined;
  readonly calls: NodeCall[] = [];
  /** Replaces the answer. */
  onCall: ((call: NodeCall) => void) | undefined;
  send: (message: ConnectNodeRequest) => void = () => undefined;

  constructor(name: string) {
    this.#name = name;
    nodes.push(this);
  }

  async connect(release = '1.0.0'): Promise<void> {
    const { connectNode } = ClusterServiceService;
    const request = ConnectNodeRequest.fromPartial({ nodeName: this.#name, report: { release, ready: true } });
    const stream = this.#peer.stream(connectNode, request, this.#stop.signal, (send) => (this.send = send));
    const { value } = await stream.next();
    this.first = value ?? undefined;
    void this.#serve(stream).catch(() => undefined);
  }

  report(release: string): void {
    this.send(ConnectNodeRequest.fromPartial({ report: { release } }));
  }

  answer(callNumber: bigint, part: string, error?: Failure): void {
    const isLast = part === '';
    const bytes = { part: Buffer.from(part), error: error ? encodeFailure(error) : Buffer.alloc(0) };
    this.send(ConnectNodeRequest.fromPartial({ answer: { callNumber, isLast, ...bytes } }));
  }

  end(): void {
    this.#stop.abort();
    this.#peer.close();
  }

  async #serve(stream: AsyncIterable<ConnectNodeResponse>): Promise<void> {
    for await (const { call } of stream) {
      if (!call) continue;
      this.calls.push(call);
      if (this.onCall) this.onCall(call);
      else for (const letter of Array.from(String(call.request?.body)).concat('')) this.answer(call.number, letter);
    }
  }
}

async function register(name: string): Promise<void> {
  const request = RegisterNodeRequest.fromPartial({ name, ipv4Address: '192.0.2.7/24' });
  await caller.peer.call(NodeServiceService.registerNode, request, clientLimits());
}

async function states(page: Partial<ListNodeStatesRequest> = {}) {
  const request = ListNodeStatesRequest.fromPartial(page);
  return (await caller.peer.call(ClusterServiceService.listNodeStates, request, clientLimits())).nodes;
}

const stateOf = async (name: string) => (await states()).find((each) => each.name === name);

async function call(nodeName: string, body = 'abc', timeoutMs = 10_000): Promise<string> {
  const request = CallNodeRequest.fromPartial({
    nodeName,
    timeoutMs,
    request: { path: '/x', body: Buffer.from(body) },
  });
  let answer = '';
  const { signal } = new AbortController();
  for await (const { part } of caller.peer.stream(ClusterServiceService.callNode, request, signal))
    answer += part.toString();
  return answer;
}

test('a connected node shows its last report; after its end it is silent, with the report', async () => {
  await register('n1');
  const node = new FakeNode('n1');
  await node.connect();
  expect(await stateOf('n1')).toMatchObject({ contact: NodeContact.NODE_CONTACT_CONNECTED, report: { ready: true } });

  node.report('2.0.0');
  await expect.poll(() => stateOf('n1')).toMatchObject({ report: { release: '2.0.0' } });

  node.end();
  await expect.poll(() => stateOf('n1')).toMatchObject({ contact: NodeContact.NODE_CONTACT_SILENT });
  expect((await stateOf('n1'))?.report?.release).toBe('2.0.0');
});

test('a registered node that never connected is silent; a node that is not registered is listed while it is connected', async () => {
  await register('n1');
  const node = new FakeNode('n2');
  await node.connect();
  expect((await states()).map(({ name, contact }) => [name, contact])).toEqual([
    ['n1', NodeContact.NODE_CONTACT_SILENT],
    ['n2', NodeContact.NODE_CONTACT_CONNECTED],
  ]);
  node.end();
  await expect.poll(async () => (await states()).map(({ name }) => name)).toEqual(['n1']);
});

test('a node with a session that is not connected is recent', async () => {
  await caller.openSession('n1', randomUUID());
  expect(await stateOf('n1')).toMatchObject({ contact: NodeContact.NODE_CONTACT_RECENT });
});

test('of two connections of a node, the later one counts, and the end of the earlier one changes nothing', async () => {
  const [earlier, later] = [new FakeNode('n1'), new FakeNode('n1')];
  await earlier.connect('1.0.0');
  await later.connect('2.0.0');
  earlier.report('1.0.1');
  expect(await call('n1')).toBe('abc');
  earlier.end();
  expect(await call('n1', 'later')).toBe('later');
  expect(later.calls).toHaveLength(2);
  expect(await stateOf('n1')).toMatchObject({
    contact: NodeContact.NODE_CONTACT_CONNECTED,
    report: { release: '2.0.0' },
  });
});

test('when the later connection of a node ends, the earlier one counts again', async () => {
  const [earlier, later] = [new FakeNode('n1'), new FakeNode('n1')];
  await earlier.connect('1.0.0');
  await later.connect('2.0.0');
  earlier.report('1.0.1');
  later.end();
  await expect.poll(() => stateOf('n1')).toMatchObject({ report: { release: '1.0.1' } });
  expect(await stateOf('n1')).toMatchObject({ contact: NodeContact.NODE_CONTACT_CONNECTED });
  expect(await call('n1')).toBe('abc');
});

test('calls at once get their own answers', async () => {
  await new FakeNode('n1').connect();
  const bodies = ['first', 'second', 'third'];
  expect(await Promise.all(bodies.map((body) => call('n1', body)))).toEqual(bodies);
});

test('a failure of the node arrives with its code, after the parts before it', async () => {
  const node = new FakeNode('n1');
  node.onCall = ({ number }) => {
    node.answer(number, 'part');
    node.answer(number, '', new Failure('ATTACHMENT_NOT_FOUND', 'no such attachment'));
  };
  await node.connect();
  expect(await failureOf(call('n1'))).toMatchObject({ code: 'ATTACHMENT_NOT_FOUND', message: 'no such attachment' });
});

test('a call fails for a node that is unknown, silent, or gone during the call', async () => {
  await register('n1');
  expect((await failureOf(call('nope'))).code).toBe('NODE_NOT_FOUND');
  expect((await failureOf(call('n1'))).message).toMatch(/^node "n1": it is not connected to this podwire-ipam/);
  const node = new FakeNode('n1');
  node.onCall = () => node.end();
  await node.connect();
  expect((await failureOf(call('n1'))).message).toMatch(
    /^node "n1": its connection ended; a change may have been made/,
  );
});

test('a node that does not answer in time fails the call, and later parts of its answer are dropped', async () => {
  const node = new FakeNode('n1');
  node.onCall = () => undefined;
  await node.connect();
  expect(await failureOf(call('n1', 'late', 20))).toMatchObject({ code: 'DEADLINE_EXCEEDED' });
  expect(node.calls[0]?.timeoutMs).toBe(20);
  node.answer(node.calls[0]?.number ?? 0n, 'late');
  node.onCall = undefined;
  expect(await call('n1', 'next')).toBe('next');
});

test('a node executes a limited number of calls at once', async () => {
  const node = new FakeNode('n1');
  node.onCall = () => undefined;
  await node.connect();
  const open = Array.from({ length: 16 }, () => failureOf(call('n1', 'x', 2000)));
  await expect.poll(() => node.calls.length).toBe(16);
  expect((await failureOf(call('n1'))).message).toMatch(/^node "n1": it executes 16 calls already/);
  node.end();
  await Promise.all(open);
});

test.each([
  ['without a report', { nodeName: 'n1' }, 'report: is missing'],
  ['without a name', { report: {} }, 'node_name'],
])('a connection %s is refused', async (_, request, text) => {
  const { signal } = new AbortController();
  const first = ConnectNodeRequest.fromPartial(request);
  const refused = await failureOf(caller.peer.stream(ClusterServiceService.connectNode, first, signal).next());
  expect(refused.violations.map(({ field, reason }) => `${field}: ${reason}`).join()).toContain(text);
});

/** A connected node, on a podwire-ipam with an API server. */
async function connectBesideApi(
  report: NonNullable<Parameters<typeof ConnectNodeRequest.fromPartial>[0]['report']>,
  work: (api: ObjectServer, send: (message: ConnectNodeRequest) => void) => Promise<void>,
): Promise<void> {
  const api = await ObjectServer.start();
  const other = new Place();
  const kubernetes = () => new KubernetesApi(api.options);
  const started = await other.start({ PODWIRE_IPAM_NODE_CONTROLLER: 'true' }, undefined, kubernetes);
  const peer = new Peer('podwire-ipam', other.address);
  const stop = new AbortController();
  try {
    let send: (message: ConnectNodeRequest) => void = () => undefined;
    const first = ConnectNodeRequest.fromPartial({ nodeName: 'n1', report });
    const { connectNode } = ClusterServiceService;
    await peer.stream(connectNode, first, stop.signal, (opened) => (send = opened)).next();
    await work(api, send);
  } finally {
    stop.abort();
    peer.close();
    await started.stop();
    other.remove();
    await api.stop();
  }
}

test('conditions of a node become Events of its Node; a reconnection repeats none', async () => {
  const status = (...reasons: readonly string[]) => ({
    status: { conditions: reasons.map((reason) => ({ reason, message: `message of ${reason}` })) },
  });
  await connectBesideApi(status('IpamUnreachable', 'ForwardDropped'), async (api, send) => {
    send(ConnectNodeRequest.fromPartial({ report: status('ForwardDropped') }));
    send(ConnectNodeRequest.fromPartial({ report: status() }));
    const notes = () =>
      api
        .list('/apis/events.k8s.io/v1/namespaces/default/events')
        .map(({ type, reason, note }) => [type, reason, note]);
    await expect.poll(notes).toEqual([
      ['Warning', 'ForwardDropped', 'message of ForwardDropped'],
      ['Normal', 'ForwardDroppedEnded', 'ForwardDropped ended'],
    ]);
  });
});

test('a failure that only a node finds is an Event of its pod', async () => {
  await connectBesideApi({}, async (api, send) => {
    for (const [name, nodeName] of Object.entries({ 'web-0': 'n1', elsewhere: 'n2' }))
      api.put('/api/v1/namespaces/apps/pods', { metadata: { namespace: 'apps', name }, spec: { nodeName } });
    const failed = (name: string, code: string) => ({
      ...{ pod: { namespace: 'apps', name, uid: `uid-${name}` }, code, message: `message of ${code}`, count: 2 },
    });
    const failedPods = [
      failed('elsewhere', 'KERNEL_REFUSED'),
      failed('web-0', 'POOLS_EXHAUSTED'),
      failed('web-0', 'STORE_UNAVAILABLE'),
      failed('web-0', 'OF_A_LATER_RELEASE'),
      failed('web-0', 'KERNEL_REFUSED'),
    ];
    send(ConnectNodeRequest.fromPartial({ failedPods }));
    const found = () =>
      api.list('/apis/events.k8s.io/v1/namespaces/apps/events').map(({ regarding, reason, action, note }) => {
        return [Object(regarding).name, reason, action, note];
      });
    await expect.poll(found).toEqual([['web-0', 'KernelRefused', 'Attach', 'message of KERNEL_REFUSED']]);
  });
});

test('the service describes its process and its datastore', async () => {
  await new FakeNode('n1').connect();
  const info = await caller.peer.call(ClusterServiceService.getClusterInfo, {}, clientLimits());
  expect(info).toMatchObject({ store: 'embedded', leader: '', instance: nodes[0]?.first?.instance });
  expect(nodes[0]?.first?.hasReplicas).toBe(false);
  expect(info.storeRevision).toBeGreaterThan(0n);
});

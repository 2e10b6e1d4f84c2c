import { createServer, type Server } from 'node:http';
import { join } from 'node:path';

import { ClusterServiceService, HttpResponse, NodeReport, NodeRequest } from '@podwire/proto/podwire/ipam/v1/cluster';
import { ListPodsResponse, PodServiceService, RepairPodRequest } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { ConnectNodeRequest, ConnectNodeResponse, NodeCall } from '@podwire/proto/podwire/ipam/v1/cluster';
import { Failure } from '@podwire/shared/failure/failure';
import { decodeFailure } from '@podwire/shared/failure/status';
import { Peer } from '@podwire/shared/rpc/client';
import { RpcServer, type RpcServerOptions } from '@podwire/shared/rpc/server';
import { systemClock } from '@podwire/shared/runtime/clock';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { recordingLog, TestServers } from '@podwire/shared/testing/server';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { ClusterLink } from './cluster-link.js';
import { OperatorCalls } from './operator-calls.js';

let servers: TestServers;
let ipam: FakeIpam;
let clock: ManualClock;
let link: ClusterLink;
let release: string;
let execute: (request: NodeRequest) => Promise<Uint8Array>;
let logged: ReturnType<typeof recordingLog>;
const stops: (() => unknown)[] = [];

beforeEach(async () => {
  servers = new TestServers();
  ipam = new FakeIpam();
  await ipam.start();
  clock = new ManualClock();
  logged = recordingLog();
  release = '1.0.0';
  execute = (request) => Promise.resolve(Buffer.from(`${request.path} ${String(request.body)}`));
  const connect = (): Peer => new Peer('podwire-ipam', servers.address('ipam'));
  const shared = connect();
  link = new ClusterLink({
    ...{ nodeName: 'n1', ipam: shared, connect, clock, random: () => 0.5, log: logged.log },
    report: () => NodeReport.fromPartial({ release }),
    async *execute(request) {
      yield await execute(request);
    },
  });
  stops.push(
    () => shared.close(),
    () => ipam.stop(),
    () => link.stop(),
  );
});

afterEach(async () => {
  for (const stop of stops.splice(0).reverse()) await stop();
  await servers.clear();
});

async function serve(name: string, services: RpcServerOptions['services']): Promise<() => Promise<void>> {
  const limits = { defaultCallTimeoutMs: 5000, drainTimeoutMs: 0 };
  const options = { ...limits, log: recordingLog().log, clock: systemClock, services };
  const server = new RpcServer({ addresses: [servers.address(name)], ...options });
  await server.listen();
  return () => server.stop();
}

/** Several podwire-ipam behind one address: each connection leads to the next one of `instances`. */
class FakeIpam {
  instances = ['a'];
  refusal: Failure | undefined;
  /** Names of the processes that connections led to. */
  readonly connected: string[] = [];
  readonly received: ConnectNodeRequest[] = [];
  readonly #calls: NodeCall[] = [];
  #send: () => void = () => undefined;
  #end = new AbortController();
  #stop: () => Promise<void> = () => Promise.resolve();

  async start(): Promise<void> {
    this.#stop = await serve('ipam', (_, streaming) => [
      {
        name: 'podwire.ipam.v1.ClusterService',
        definition: { connectNode: ClusterServiceService.connectNode },
        implementation: {
          connectNode: streaming.duplex(ClusterServiceService.connectNode, (first, { signal }, later) => {
            if (this.refusal) throw this.refusal;
            this.received.push(first);
            later((message) => this.received.push(message));
            return this.#serve(signal);
          }),
        },
      },
    ]);
  }

  stop(): Promise<void> {
    return this.#stop();
  }

  /** Ends all streams. */
  end(): void {
    this.#end.abort();
    this.#end = new AbortController();
    this.#send();
  }

  call(call: Partial<NodeCall>): void {
    this.#calls.push({ number: 1n, timeoutMs: 1000, request: undefined, ...call });
    this.#send();
  }

  async *#serve(signal: AbortSignal): AsyncGenerator<ConnectNodeResponse> {
    const instance = this.instances[this.connected.length % this.instances.length] ?? '';
    this.connected.push(instance);
    yield { instance, hasReplicas: this.instances.length > 1, call: undefined };
    const { signal: ended } = this.#end;
    while (!signal.aborted && !ended.aborted) {
      const call = this.#calls.shift();
      if (call) yield { instance: '', hasReplicas: false, call };
      else
        await new Promise<void>((resolve) => {
          this.#send = resolve;
          signal.addEventListener('abort', () => resolve(), { once: true });
        });
    }
  }
}

async function connected(): Promise<void> {
  link.start();
  await expect.poll(() => ipam.received.length).toBe(1);
}

/** Advances the clock while a condition does not hold. */
async function advanceUntil(holds: () => boolean): Promise<void> {
  await expect
    .poll(() => {
      if (!holds()) clock.advance(1000);
      return holds();
    })
    .toBe(true);
}

test('the node reports its state at the beginning, and then only what changed', async () => {
  await connected();
  expect(ipam.received[0]).toMatchObject({ nodeName: 'n1', report: { release: '1.0.0' } });
  clock.advance(5000);
  clock.advance(5000);
  release = '1.0.1';
  await advanceUntil(() => ipam.received.length > 1);
  expect(ipam.received[1]).toMatchObject({ nodeName: '', report: { release: '1.0.1' } });
});

test('failed pods are reported to one of several podwire-ipam, with their number', async () => {
  ipam.instances = ['a', 'b'];
  const pod = { namespace: 'apps', name: 'web-0', uid: 'u-1' };
  link.addFailed(pod, { code: 'KERNEL_REFUSED', message: 'earlier' });
  await connected();
  await advanceUntil(() => ipam.connected.length === 2);
  link.addFailed(pod, { code: 'KERNEL_REFUSED', message: 'latest' });
  link.addFailed({ ...pod, name: 'web-1' }, { code: 'INVALID_CONFIG', message: 'wrong' });
  const failed = () => ipam.received.flatMap(({ failedPods }) => failedPods);
  await advanceUntil(() => failed().some(({ code }) => code === 'INVALID_CONFIG'));
  for (let second = 0; second < 20; second++) clock.advance(1000);
  await new Promise((resolve) => setTimeout(resolve, 50));
  const counts = failed().map(({ pod: each, code, count }) => [each?.name, code, count]);
  expect(counts.filter(([name]) => name === 'web-1')).toEqual([['web-1', 'INVALID_CONFIG', 1]]);
  expect(failed().reduce((sum, { code, count }) => sum + (code === 'KERNEL_REFUSED' ? count : 0), 0)).toBe(2);
});

test('after the end of the stream the node connects again', async () => {
  await connected();
  ipam.end();
  await advanceUntil(() => ipam.connected.length === 2);
  expect(ipam.received[1]).toMatchObject({ nodeName: 'n1' });
});

test('ends while podwire-ipam does not answer', async () => {
  await ipam.stop();
  link.start();
  await new Promise((resolve) => setTimeout(resolve, 50));
  await link.stop();
});

test('a refusal is logged once, and the node tries again', async () => {
  ipam.refusal = new Failure('ACCESS_DENIED', 'node "n1": may not');
  link.start();
  await expect.poll(() => logged.lines.length).toBe(1);
  expect(logged.lines[0]?.msg).toBe('podwire-ipam does not show this node\'s state: node "n1": may not; trying again');
  for (let second = 0; second < 30; second++) clock.advance(1000);
  ipam.refusal = undefined;
  await advanceUntil(() => ipam.connected.length === 1);
  expect(logged.lines).toHaveLength(1);
});

test('of several podwire-ipam the node connects to each one, and seeks less often once it knows all', async () => {
  ipam.instances = ['a', 'a', 'b', 'a'];
  await connected();
  await advanceUntil(() => ipam.connected.includes('b'));
  const before = ipam.connected.length;
  for (let minute = 0; minute < 60; minute++) {
    clock.advance(60_000);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  const searches = ipam.connected.length - before;
  expect(searches).toBeGreaterThan(3);
  expect(searches).toBeLessThan(25);
});

test('a call is executed, and a long answer arrives in parts', async () => {
  execute = () => Promise.resolve(Buffer.alloc(150_000, 'x'));
  await connected();
  ipam.call({ number: 7n, request: NodeRequest.fromPartial({ path: '/x' }) });
  await expect.poll(() => ipam.received.length).toBe(5);
  const answers = ipam.received.slice(1).map(({ answer }) => answer);
  expect(answers.map((answer) => answer?.part.length)).toEqual([65_536, 65_536, 18_928, 0]);
  expect(answers.map((answer) => answer?.isLast)).toEqual([false, false, false, true]);
  expect(answers.every((answer) => answer?.callNumber === 7n)).toBe(true);
});

test('a failure of a call is answered with its code', async () => {
  execute = () => Promise.reject(new Failure('ATTACHMENT_NOT_FOUND', 'none'));
  await connected();
  ipam.call({ request: NodeRequest.fromPartial({ path: '/x' }) });
  await expect.poll(() => ipam.received.length).toBe(2);
  expect(decodeFailure(ipam.received[1]?.answer?.error ?? Buffer.alloc(0))).toMatchObject({
    ...{ code: 'ATTACHMENT_NOT_FOUND', message: 'none' },
  });
});

let calls: OperatorCalls;

async function startLocal(): Promise<void> {
  const stop = await serve('dataplane', (unary) => [
    {
      name: 'podwire.dataplane.v1.PodService',
      definition: PodServiceService,
      implementation: {
        listPods: unary(PodServiceService.listPods, () =>
          Promise.resolve(ListPodsResponse.fromPartial({ nextPageToken: 'next' })),
        ),
        repairPod: unary(PodServiceService.repairPod, () =>
          Promise.reject(new Failure('ATTACHMENT_NOT_FOUND', 'none')),
        ),
      },
    },
  ]);
  const cniSocket = join(servers.folder, 'cni.sock');
  const http: Server = createServer((request, response) => {
    let body = '';
    request.on('data', (chunk: Buffer) => (body += chunk.toString()));
    request.once('end', () => response.writeHead(410).end(`${request.method ?? ''} ${request.url ?? ''} ${body}`));
  });
  await new Promise<void>((resolve) => http.listen(cniSocket, resolve));
  calls = new OperatorCalls({ dataplane: servers.address('dataplane'), cniSocket, clock: systemClock });
  stops.push(
    stop,
    () => http.close(),
    () => calls.close(),
  );
}

async function call(request: Partial<NodeRequest>): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  for await (const part of calls.execute(NodeRequest.fromPartial(request), 5000)) parts.push(part);
  return Buffer.concat(parts);
}

test('calls of the dataplane pass as they are', async () => {
  await startLocal();
  const answer = await call({ path: PodServiceService.listPods.path });
  expect(ListPodsResponse.decode(answer).nextPageToken).toBe('next');
  const body = Buffer.from(RepairPodRequest.encode(RepairPodRequest.fromPartial({})).finish());
  await expect(call({ path: PodServiceService.repairPod.path, body })).rejects.toMatchObject({
    ...{ code: 'ATTACHMENT_NOT_FOUND', message: 'none' },
  });
});

test('requests to the server of CNI commands pass with status and body', async () => {
  await startLocal();
  const answer = await call({ path: '/journal/discard', httpMethod: 'POST', body: Buffer.from('7') });
  const { status, body } = HttpResponse.decode(answer);
  expect([status, body.toString()]).toEqual([410, 'POST /journal/discard 7']);
});

test.each([
  ['AttachPod', { path: PodServiceService.attachPod.path }],
  ['a method of another service', { path: '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo' }],
  ['ADD', { path: '/cni', httpMethod: 'POST', httpHeaders: { 'cni-command': 'ADD' } }],
  ['DEL', { path: '/cni', httpMethod: 'POST', httpHeaders: { 'cni-command': 'DEL' } }],
  ['an unknown route', { path: '/journal', httpMethod: 'DELETE' }],
])('the node refuses %s', async (_, request) => {
  await startLocal();
  await expect(call(request)).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
});

test('STATUS passes', async () => {
  await startLocal();
  const request = { path: '/cni', httpMethod: 'POST', httpHeaders: { 'cni-command': 'STATUS' } };
  expect(HttpResponse.decode(await call(request)).status).toBe(410);
});

import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { EtcdServer } from '@podwire/ipam/engine/testing/etcd-server';
import { AddressServiceService, AllocateRequest, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import {
  BindAddressesRequest,
  LeaseAddressesRequest,
  LeaseServiceService,
  OpenSessionRequest,
  ReturnAddressesRequest,
  type NodeSession,
  type OpenSessionResponse,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { expect, onTestFinished, test, vi } from 'vitest';

import { Replica } from '../history/replica.js';
import { CalicoWriter } from '../support/calico-writer.js';
import { Cluster } from '../support/cluster.js';
import { callIpam, failureOf, storedLeases } from '../support/ipam-client.js';
import { errorOf, LivePods, type LivePod } from '../support/live-pods.js';
import { NETWORK } from '../support/pods.js';
import { podwirectl } from '../support/podwirectl.js';
import type { Stack } from '../support/stack.js';

/** Every address has one owner, with two replicas of podwire-ipam on etcd, beside Calico's tools, and with late calls. */

vi.setConfig({ testTimeout: 240_000, hookTimeout: 60_000 });

const SHORT_DEADLINES = { PODWIRE_NODE_ADD_TIMEOUT_MS: '3000', PODWIRE_NODE_CLEAN_UP_TIMEOUT_MS: '2000' };

/** Time for what nodes and podwire-ipam do in the background, in milliseconds. */
const PATIENCE = { timeout: 90_000, interval: 200 };

const START_TIMEOUT_MS = 60_000;

interface Scene {
  readonly etcd: EtcdServer;
  readonly replicas: readonly Replica[];
  /** Sockets of the replicas. */
  readonly sockets: readonly [string, string];
  readonly calico: CalicoWriter;
  readonly nodes: readonly Stack[];
  readonly cluster: Cluster;
  readonly pods: LivePods;
}

interface SceneOptions {
  readonly cidr: string;
  readonly blockSize: number;
  readonly nodesCount: number;
}

/** An etcd, two replicas, and nodes that use them in turns. */
async function startScene({ cidr, blockSize, nodesCount }: SceneOptions): Promise<Scene> {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-owners-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const etcd = await EtcdServer.start();
  onTestFinished(() => etcd.dispose());
  const env = {
    PODWIRE_IPAM_STORE: 'etcd',
    PODWIRE_IPAM_ETCD_ENDPOINTS: etcd.url,
    PODWIRE_IPAM_DEFAULT_POOL_CIDR: cidr,
    PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: String(blockSize),
  };
  const [first, second] = ['first', 'second'].map((name) => new Replica({ name, folder, env }));
  const replicas = [first!, second!];
  onTestFinished(async () => {
    await Promise.all(replicas.map((replica) => replica.stop()));
  });
  await startReplicas(replicas);
  const sockets = [first!.socket, second!.socket] as const;
  const subnets = Array.from({ length: nodesCount }, () => 'a' as const);
  const cluster = new Cluster({ subnets, ipamSockets: sockets, env: SHORT_DEADLINES });
  onTestFinished(() => cluster.destroy());
  await cluster.start([]);
  const nodes = cluster.nodes.map(({ stack }) => stack);
  return { etcd, replicas, sockets, calico: new CalicoWriter(etcd), nodes, cluster, pods: new LivePods() };
}

async function startReplicas(replicas: readonly Replica[]): Promise<void> {
  for (const replica of replicas) replica.start();
  await Promise.all(replicas.map((replica) => replica.ready(START_TIMEOUT_MS)));
}

/** Waits until a node holds leases. @returns them */
async function leasesOf(socket: string, nodeName: string): Promise<string[]> {
  await expect.poll(async () => (await storedLeases(socket, nodeName)).length, PATIENCE).toBeGreaterThan(0);
  return storedLeases(socket, nodeName);
}

/** Addresses in the datastore. */
const recorded = ({ etcd }: Scene) => [...etcd.dump('/calico/ipam/v2/')];

type Free = (scene: Scene, leases: readonly string[]) => Promise<void>;

const freedBy: Readonly<Record<string, Free>> = {
  'Calico’s tools free': ({ calico }, leases) => calico.releaseAll(leases),
  'podwirectl frees': async ({ sockets }, leases) => {
    for (const lease of leases) await podwirectl(sockets[1], 'release', 'address', lease, '--yes');
  },
};

test.each(Object.entries(freedBy))(
  'leases that %s go to no other node while theirs may give them out',
  async (_, free) => {
    const scene = await startScene({ cidr: '10.65.0.0/27', blockSize: 28, nodesCount: 2 });
    const { nodes, pods, sockets } = scene;
    const [first, second] = [nodes[0]!, nodes[1]!];
    await Promise.all([pods.startAll(first, 3), pods.startAll(second, 1)]);
    await pods.expectStored(sockets[0]);
    await free(scene, await leasesOf(sockets[0], 'node-1'));
    // Nearly all of the 32 addresses, so that each one is used.
    await Promise.all([pods.startAll(first, 20), pods.startAll(second, 5)]);
    pods.expectDistinct();
    await pods.expectStored(sockets[0]);
  },
);

test('a pod whose lease Calico’s tools free before podwire-ipam knows the pod keeps the address', async () => {
  const { replicas, sockets, calico, nodes, pods } = await startScene({
    ...{ cidr: '10.65.0.0/26', blockSize: 28, nodesCount: 1 },
  });
  await pods.start(nodes[0]!);
  await pods.expectStored(sockets[0]);
  const leases = await leasesOf(sockets[0], 'node-1');
  await Promise.all(replicas.map((replica) => replica.kill()));
  for (let count = 0; count < 2; count++) expect(await pods.tryAdd(nodes[0]!)).toMatchObject({ exitCode: 0 });
  await calico.releaseAll(leases);
  await startReplicas(replicas);
  await pods.expectStored(sockets[0]);
  await pods.startAll(nodes[0]!, 20);
  await pods.expectStored(sockets[0]);
});

test('under the lock of a migration no ADD takes a lease and DELs succeed; after it pods start again', async () => {
  const scene = await startScene({ cidr: '10.65.0.0/24', blockSize: 26, nodesCount: 1 });
  const { sockets, calico, nodes, pods } = scene;
  const [stack] = nodes;
  const [deleted] = await pods.startAll(stack!, 2);
  await expect.poll(async () => (await storedLeases(sockets[0], 'node-1')).length, PATIENCE).toBeGreaterThanOrEqual(8);
  await pods.expectStored(sockets[0]);

  await calico.lock();
  const attachment = { network: 'net', containerId: 'locked', interfaceName: 'eth0' };
  const request = AllocateRequest.fromPartial({ attachment, nodeName: 'node-1' });
  for (const socket of sockets) {
    const allocate = () => callIpam(socket, AddressServiceService.allocate, request);
    await expect
      .poll(() => allocate().catch((error: unknown) => error), PATIENCE)
      .toMatchObject({ code: 'STORE_LOCKED' });
  }
  // Both replicas know the lock; an ADD may be faster than the message to the node.
  const early = await addUntilRefused(pods, stack!);
  expect(early.length).toBeLessThanOrEqual(3);
  const before = recorded(scene);
  for (let count = 0; count < 3; count++)
    expect(errorOf(await pods.tryAdd(stack!))).toMatchObject({ code: 11, text: expect.stringMatching(/lock/i) });
  await pods.stop(deleted!);
  expect(recorded(scene)).toEqual(before);
  pods.expectDistinct();

  await calico.unlock();
  await pods.startAll(stack!, 3);
  await callIpam(sockets[0], AddressServiceService.release, { attachment });
  await pods.expectStored(sockets[1]);
});

async function addUntilRefused(pods: LivePods, stack: Stack): Promise<LivePod[]> {
  const before = pods.living.length;
  while ((await pods.tryAdd(stack)).exitCode === 0);
  return pods.living.slice(before);
}

/** A process of a node that talks to podwire-ipam. */
class Caller {
  readonly #bootId: string;
  readonly #socket: string;
  readonly #machineId: string;
  generation = 0n;

  constructor(socket: string, machineId: string, bootId: string = randomUUID()) {
    this.#socket = socket;
    this.#machineId = machineId;
    this.#bootId = bootId;
  }

  async open(expectedGeneration: bigint, nodeAddress = ''): Promise<OpenSessionResponse> {
    const named = { nodeName: 'node-9', machineId: this.#machineId, bootId: this.#bootId };
    const request = OpenSessionRequest.fromPartial({ ...named, expectedGeneration, nodeAddress });
    const answer = await callIpam(this.#socket, LeaseServiceService.openSession, request);
    if (answer.opened) this.generation = answer.generation;
    return answer;
  }

  async lease(count: number) {
    const family = IpFamily.IP_FAMILY_IPV4;
    const request = LeaseAddressesRequest.fromPartial({ ...this.#named, bootId: this.#bootId, family, count });
    return (await callIpam(this.#socket, LeaseServiceService.leaseAddresses, request)).addresses;
  }

  async bind(containerId: string, allocation: Allocation) {
    const bindings = [{ attachment: attachmentOf(containerId), addresses: [allocation], attachTime: new Date() }];
    const request = BindAddressesRequest.fromPartial({ ...this.#named, bindings });
    return (await callIpam(this.#socket, LeaseServiceService.bindAddresses, request)).results;
  }

  async giveBack(containerId: string | undefined, { address, sequenceNumber }: Allocation) {
    const ended = containerId === undefined ? {} : { attachment: attachmentOf(containerId), detachTime: new Date() };
    const returns = [{ allocation: { address, sequenceNumber }, ...ended }];
    const request = ReturnAddressesRequest.fromPartial({ ...this.#named, returns });
    return callIpam(this.#socket, LeaseServiceService.returnAddresses, request);
  }

  get #named(): { readonly nodeName: string; readonly session: NodeSession } {
    return { nodeName: 'node-9', session: { bootId: this.#bootId, generation: this.generation, revision: 0n } };
  }
}

interface Allocation {
  readonly address: string;
  readonly sequenceNumber: bigint;
}

const attachmentOf = (containerId: string) => ({ network: NETWORK, containerId, interfaceName: 'eth0' });

test('calls of a former boot, of a former process and of another machine are refused, and change nothing', async () => {
  const scene = await startScene({ cidr: '10.65.0.0/24', blockSize: 28, nodesCount: 0 });
  const [one, other] = scene.sockets;
  const node = RegisterNodeRequest.fromPartial({ name: 'node-9', ipv4Address: '192.0.2.99/24' });
  await callIpam(one, NodeServiceService.registerNode, node);
  const machineId = randomUUID();

  const former = new Caller(one, machineId);
  expect(await former.open(0n, '192.0.2.99')).toMatchObject({ opened: true, generation: 1n });
  const [bound, lease] = await former.lease(4);
  expect(await former.bind('former', bound!)).toMatchObject([{ refusalCode: '' }]);
  const bootId = randomUUID();
  const process = new Caller(other, machineId, bootId);
  expect(await process.open(1n, '192.0.2.99')).toMatchObject({ opened: true, generation: 2n });
  const formerProcess = Object.assign(new Caller(one, machineId, bootId), { generation: 2n });
  expect(await process.open(2n, '192.0.2.99')).toMatchObject({ opened: true, generation: 3n });
  const [ownBound, ...ownLeases] = await process.lease(4);
  expect(await process.bind('present', ownBound!)).toMatchObject([{ refusalCode: '' }]);

  const before = recorded(scene);
  for (const late of [former, formerProcess]) {
    const calls = [
      () => late.lease(8),
      () => late.bind('late', lease!),
      () => late.bind('late', ownLeases[0]!),
      () => late.giveBack(undefined, ownLeases[0]!),
      () => late.giveBack('present', ownBound!),
    ];
    for (const call of calls) expect(await failureOf(call())).toMatchObject({ code: 'SESSION_SUPERSEDED' });
    expect(await late.open(late.generation - 1n)).toMatchObject({ opened: false, generation: 3n });
  }
  const twin = await failureOf(new Caller(one, randomUUID()).open(3n, '192.0.2.77'));
  expect(twin).toMatchObject({ code: 'NODE_NAME_TAKEN' });
  expect(['192.0.2.99', '192.0.2.77'].filter((address) => !twin.message.includes(address))).toEqual([]);
  expect(recorded(scene)).toEqual(before);
  expect((await process.lease(0)).map(({ address }) => address).sort()).toEqual(
    ownLeases.map(({ address }) => address).sort(),
  );
});

test('after the reboot of a node, late calls of its former boot free nothing, and no address is given twice', async () => {
  const { sockets, nodes, cluster, pods } = await startScene({ cidr: '10.65.0.0/26', blockSize: 28, nodesCount: 1 });
  const [stack] = nodes;
  const before = await pods.startAll(stack!, 3);
  await pods.expectStored(sockets[0]);
  const former = stack!.bootId;
  await cluster.powerCycle(0);
  pods.endAll(stack!);
  await stack!.start('node');
  await pods.startAll(stack!, 2);
  await pods.expectStored(sockets[0]);
  await leasesOf(sockets[0], 'node-1');

  for (const generation of [1n, 2n, 3n, 4n]) {
    const session = { bootId: former, generation, revision: 0n };
    const [nodeName, family] = ['node-1', IpFamily.IP_FAMILY_IPV4];
    const lease = LeaseAddressesRequest.fromPartial({ nodeName, bootId: former, family, count: 12, session });
    const leasing = callIpam(sockets[1], LeaseServiceService.leaseAddresses, lease);
    expect(await failureOf(leasing)).toMatchObject({ code: 'SESSION_SUPERSEDED' });
    const bindings = before.map(({ pod, addresses }) => ({
      attachment: attachmentOf(pod.containerId),
      addresses: [{ address: addresses[0]!, sequenceNumber: 1n }],
      attachTime: new Date(),
    }));
    const bind = BindAddressesRequest.fromPartial({ nodeName, bindings, session });
    const binding = callIpam(sockets[1], LeaseServiceService.bindAddresses, bind);
    expect(await failureOf(binding)).toMatchObject({ code: 'SESSION_SUPERSEDED' });
  }
  await pods.startAll(stack!, 30);
  pods.expectDistinct();
  await pods.expectStored(sockets[1]);
});

test('in a pool in which Calico’s plugin allocates, a node keeps at most two leases', async () => {
  const scene = await startScene({ cidr: '10.65.0.0/26', blockSize: 26, nodesCount: 1 });
  const { sockets, calico, nodes, pods } = scene;
  const [stack] = nodes;
  await pods.startAll(stack!, 2);
  await pods.expectStored(sockets[0]);
  expect((await leasesOf(sockets[0], 'node-1')).length).toBeGreaterThan(2);
  const calicos = await calico.allocate('calico-1', ['calico-0']);
  // They use up leases, so that the node asks for more.
  await pods.startAll(stack!, 4);
  const leases = async () => (await storedLeases(sockets[0], 'node-1')).length;
  await expect.poll(leases, PATIENCE).toBeLessThanOrEqual(2);

  const wanted = Array.from({ length: 64 }, (_, index) => `calico-${index + 1}`);
  calicos.push(...(await calico.allocate('calico-1', wanted)));
  expect(calicos.length).toBeGreaterThanOrEqual(64 - pods.living.length - 2);
  pods.expectDistinct();
  const shared = pods.living.flatMap(({ addresses }) => addresses).filter((address) => calicos.includes(address));
  expect(shared).toEqual([]);
  expect(await leases()).toBeLessThanOrEqual(2);
});

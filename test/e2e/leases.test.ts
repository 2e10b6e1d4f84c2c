import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { AddressServiceService, AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { LeaseServiceService } from '@podwire/proto/podwire/ipam/v1/lease';
import { Peer } from '@podwire/shared/rpc/client';
import { afterEach, describe, expect, test } from 'vitest';

import { GrpcProxy } from '../support/grpc-proxy.js';
import { allocations, attachedPods, auditFindings, settled } from '../support/leftovers.js';
import { podwirectl } from '../support/podwirectl.js';
import { callCni, makePod, NETWORK, removePod, type CniAnswer, type Pod } from '../support/pods.js';
import { pings, rpc } from '../support/programs.js';
import { Stack } from '../support/stack.js';

/** Addresses that podwire-node gives to pods before podwire-ipam knows the pods. */

/** Time that an ADD waits without podwire-ipam and without leases. */
const SHORT_DEADLINES = { PODWIRE_NODE_ADD_TIMEOUT_MS: '3000', PODWIRE_NODE_CLEAN_UP_TIMEOUT_MS: '2000' };

const SMALL_POOL = { ...SHORT_DEADLINES, PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/26' };

const LEASES = 'podwire-lease.node-1';

interface Holder {
  readonly handle: string;
  readonly address: string;
}

let node: LeasingNode | undefined;

afterEach(async () => {
  await node?.destroy();
  node = undefined;
});

/** A node, and the pods that were made for it. */
class LeasingNode {
  readonly stack: Stack;
  readonly #pods: Pod[] = [];

  constructor(env: Readonly<Record<string, string>> = {}) {
    this.stack = new Stack({ env });
  }

  call(command: string, pod: Pod): Promise<CniAnswer> {
    return callCni({ command, pod, socket: this.stack.sockets.node });
  }

  pods(name: string, count: number): Pod[] {
    const made = Array.from({ length: count }, (_, index) => makePod(`${name}-${index}`));
    this.#pods.push(...made);
    return made;
  }

  async add(pod: Pod): Promise<Holder> {
    const answer = await this.call('ADD', pod);
    expect(answer, answer.stdout + this.stack.log('node')).toMatchObject({ exitCode: 0 });
    return holderOf(pod, answer);
  }

  addAll(pods: readonly Pod[]): Promise<Holder[]> {
    return Promise.all(pods.map((pod) => this.add(pod)));
  }

  /** Adds pods, one after another, until one is refused. */
  async addUntilRefused(name: string): Promise<{ readonly added: [Pod, Holder][]; readonly refusal: CniAnswer }> {
    const added: [Pod, Holder][] = [];
    for (;;) {
      const [pod] = this.pods(`${name}-${added.length}`, 1);
      const answer = await this.call('ADD', pod!);
      if (answer.exitCode !== 0) return { added, refusal: answer };
      added.push([pod!, holderOf(pod!, answer)]);
    }
  }

  /** Number of leases that podwire-node has for the next pods. */
  leaseCount(): number {
    const status = rpc(this.stack.sockets.dataplane, 'podwire.dataplane.v1.NodeService/GetNodeStatus');
    const { leaseCount = 0 }: { readonly leaseCount?: number } = JSON.parse(JSON.stringify(status));
    return leaseCount;
  }

  async del(pod: Pod): Promise<void> {
    expect(await this.call('DEL', pod)).toEqual({ exitCode: 0, stdout: '', stderr: '' });
  }

  /** Checks that podwire-ipam has exactly these pods, that they answer, and that an audit finds nothing. */
  async expectExactly(holders: readonly Holder[]): Promise<void> {
    const { stack } = this;
    const allocated = (await allocations(stack)).map(({ handleId, address }) => ({ handle: handleId, address }));
    const sorted = (list: readonly Holder[]) => list.toSorted((a, b) => (a.handle < b.handle ? -1 : 1));
    expect(sorted(allocated)).toEqual(sorted(holders));
    const { endpoints = [] } = this.#ask('EndpointService/ListEndpoints');
    const ofEndpoints = endpoints.flatMap(({ attachment: { network, containerId }, addresses }) =>
      addresses.map(({ address }) => ({ handle: `${network}.${containerId}`, address: address.split('/')[0]! })),
    );
    expect(sorted(ofEndpoints)).toEqual(sorted(holders));
    const { handles = [] } = this.#ask('HandleService/ListHandles');
    const ofPods = handles.map(({ handleId }) => handleId).filter((id) => id !== LEASES);
    expect(ofPods.toSorted()).toEqual(holders.map(({ handle }) => handle).toSorted());
    expect((await attachedPods(stack)).map(({ attachment }) => `${NETWORK}.${attachment!.containerId}`).sort()).toEqual(
      holders.map(({ handle }) => handle).sort(),
    );
    expect(await auditFindings(stack)).toEqual([]);
    for (const { address } of holders) expect(pings(address, stack.netnsPath), address).toBe(true);
  }

  async destroy(): Promise<void> {
    await this.stack.destroy();
    this.#pods.forEach(removePod);
  }

  #ask(method: string): Listing {
    return JSON.parse(JSON.stringify(rpc(this.stack.sockets.ipam, `podwire.ipam.v1.${method}`, { pageSize: 1000 })));
  }
}

interface Listing {
  readonly endpoints?: readonly {
    readonly attachment: { readonly network: string; readonly containerId: string };
    readonly addresses: readonly { readonly address: string }[];
  }[];
  readonly handles?: readonly { readonly handleId: string }[];
}

function holderOf({ containerId }: Pod, { stdout }: CniAnswer): Holder {
  const { ips }: { readonly ips: readonly { readonly address: string }[] } = JSON.parse(stdout);
  return { handle: `${NETWORK}.${containerId}`, address: ips[0]!.address.split('/')[0]! };
}

function expectDistinct(holders: readonly Holder[]): void {
  expect(new Set(holders.map(({ address }) => address)).size).toBe(holders.length);
}

/** Checks that pods still have their addresses. @returns the addresses of all pods */
async function expectHeld(stack: Stack, holders: readonly Holder[]): Promise<Holder[]> {
  const held = (await allocations(stack)).map(({ address, handleId }) => ({ address, handle: handleId }));
  expect(held).toEqual(expect.arrayContaining([...holders]));
  return held;
}

/** The share of one of two nodes in the small pool: less would be kept for it. */
const SHARE = 8;

/** Checks that another node gets every address of the small pool but the pods', and no further one. */
async function expectUsedUp({ sockets }: Stack, podsCount: number): Promise<void> {
  const ipam = new Peer('podwire-ipam', `unix:${sockets.ipam}`);
  const allocate = async (index: number) => {
    const attachment = { network: 'net', containerId: `other-${index}`, interfaceName: 'eth0' };
    const request = AllocateRequest.fromPartial({ attachment, nodeName: 'node-2' });
    await ipam.call(AddressServiceService.allocate, request, { deadlineMs: Date.now() + 60_000 });
  };
  for (let index = 0; index < 64 - podsCount; index++) await allocate(index);
  await expect(allocate(64)).rejects.toThrow('10.65.0.0/26');
  ipam.close();
}

test('without podwire-ipam, pods come until the leases are used up, and go; then IPAM has the living ones', async () => {
  node = new LeasingNode(SHORT_DEADLINES);
  const { stack } = node;
  await stack.start();
  const [first] = node.pods('lease-first', 1);
  const firstHolder = await node.add(first!);
  await settled(stack);
  // The first pod of a new node may come before its leases. The low mark: a refill begins when so many are left.
  await expect.poll(() => node!.leaseCount()).toBeGreaterThan(4);
  await stack.kill('ipam');
  const { added, refusal } = await node.addUntilRefused('lease-down');
  expect(added.length).toBeGreaterThanOrEqual(4);
  const error: { readonly code: number; readonly msg: string; readonly details?: string } = JSON.parse(refusal.stdout);
  expect(error.code).toBe(11);
  expect(`${error.msg} ${error.details}`).toMatch(/podwire-ipam.*no leased address is left/s);
  const [[deletedPod] = [], ...living] = added;
  for (const pod of [first!, deletedPod!]) await node.del(pod);
  const holders = living.map(([, holder]) => holder);
  expectDistinct([firstHolder, ...added.map(([, holder]) => holder)]);
  await stack.start('ipam');
  await node.expectExactly(holders);
  for (const [pod] of living) await node.del(pod);
  await node.expectExactly([]);
}, 240_000);

test('a podwire-node that is killed right after its answers binds all, and gives no address twice', async () => {
  node = new LeasingNode();
  const { stack } = node;
  await stack.start();
  const before = await node.addAll(node.pods('lease-kill', 10));
  await stack.kill('node');
  await stack.start('node');
  const after = await node.addAll(node.pods('lease-next', 10));
  await stack.kill('node');
  await stack.start('node');
  expectDistinct([...before, ...after]);
  await node.expectExactly([...before, ...after]);
}, 240_000);

test('with its records emptied by hand, the next process keeps the addresses of pods, and gives new pods different ones', async () => {
  node = new LeasingNode();
  const { stack } = node;
  await stack.start();
  const boundPods = node.pods('lease-bound', 3);
  const bound = await node.addAll(boundPods);
  await settled(stack);
  await expect.poll(() => node!.leaseCount()).toBeGreaterThan(4);
  await stack.kill('ipam');
  const unboundPods = node.pods('lease-unbound', 3);
  const unbound = await node.addAll(unboundPods);
  await stack.kill('node');
  for (const name of readdirSync(stack.recordsDirectory)) rmSync(join(stack.recordsDirectory, name));
  await stack.start();
  const newPods = await node.addAll(node.pods('lease-other', 20));
  const holders = [...bound, ...unbound, ...newPods];
  expectDistinct(holders);
  await expect.poll(async () => (await allocations(node!.stack)).length, { timeout: 60_000 }).toBe(holders.length);
  await node.expectExactly(holders);
  for (const pod of [...boundPods, ...unboundPods]) await node.del(pod);
  await expect.poll(async () => (await allocations(node!.stack)).length, { timeout: 60_000 }).toBe(newPods.length);
  await node.expectExactly(newPods);
}, 240_000);

describe.each([26, 29])('of a pool of 64 addresses in blocks of /%i', (blockSize) => {
  test('another node gets every address that no pod has, although a node holds leases', async () => {
    node = new LeasingNode({ ...SMALL_POOL, PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: String(blockSize) });
    const { stack } = node;
    await stack.start();
    const own = node.pods(`lease-scarce-${blockSize}`, SHARE);
    const holders: Holder[] = [];
    for (const pods of [own.slice(0, 4), own.slice(4)]) {
      holders.push(...(await node.addAll(pods)));
      await settled(stack);
      await expect.poll(() => node!.leaseCount()).toBeGreaterThan(0);
    }
    await expectUsedUp(stack, own.length);
    expect(stack.log('node')).toContain('recalls the leased addresses');
    const held = await expectHeld(stack, holders);
    expectDistinct(held);
    expect(held).toHaveLength(64);
    const [late] = node.pods(`lease-late-${blockSize}`, 1);
    expect(JSON.parse((await node.call('ADD', late!)).stdout)).toMatchObject({ code: 11 });
    await node.del(own[0]!);
    await settled(stack);
    await node.add(late!);
  }, 240_000);
});

test('an operator makes a node return its leases, and the next pod is added nevertheless', async () => {
  node = new LeasingNode();
  const { stack } = node;
  await stack.start();
  const [first, second] = node.pods('lease-return', 2);
  const holders = [await node.add(first!)];
  await expect.poll(() => node!.leaseCount()).toBeGreaterThan(0);
  const { exitCode, output } = await podwirectl(stack.sockets.ipam, 'leases', 'return', '--node', 'node-1');
  expect({ exitCode, output }).toEqual({
    exitCode: 0,
    output: expect.stringMatching(/^returned \d+ leased addresses/),
  });
  expect((await podwirectl(stack.sockets.ipam, 'leases')).output).toBe('leases: none\n');
  expect(node.leaseCount()).toBe(0);
  holders.push(await node.add(second!));
  await node.expectExactly(holders);
}, 120_000);

test('another node gets the leases whose answers were lost too', async () => {
  const path = join(mkdtempSync(join(tmpdir(), 'podwire-proxy-')), 'ipam.sock');
  node = new LeasingNode({ ...SMALL_POOL, PODWIRE_NODE_IPAM_ADDRESS: `unix:${path}` });
  const { stack } = node;
  const proxy = await GrpcProxy.start(path, stack.sockets.ipam);
  try {
    await stack.start();
    const holders: Holder[] = [];
    for (const pod of node.pods('lease-known', 3)) {
      holders.push(await node.add(pod));
      // Until podwire-ipam has bound it, its address counts as a lease towards the limit.
      await settled(stack);
    }
    const count = (text: string) => {
      const blocks = JSON.stringify(rpc(stack.sockets.ipam, 'podwire.ipam.v1.BlockService/ListBlocks'));
      return blocks.split(`"handleId":"${text}`).length - 1;
    };
    const counts = () => [count(NETWORK), count(LEASES)];
    await expect.poll(() => node!.leaseCount()).toBeGreaterThanOrEqual(5);
    const { bindAddresses, leaseAddresses } = LeaseServiceService;
    proxy.answerless = new Set([leaseAddresses.path]);
    holders.push(...(await node.addAll(node.pods('lease-lost', 4))));
    // An eighth of the free addresses: more leases than the node knows.
    await expect.poll(counts, { timeout: 60_000 }).toEqual([7, 7]);
    proxy.answerless = new Set([leaseAddresses.path, bindAddresses.path]);
    holders.push(...(await node.addAll(node.pods('lease-unbound', 1))));
    await expect.poll(counts, { timeout: 60_000 }).toEqual([8, 6]);
    proxy.answerless = new Set();
    proxy.cut();
    await expectUsedUp(stack, holders.length);
    await expectHeld(stack, holders);
  } finally {
    await proxy.close();
    rmSync(dirname(path), { recursive: true });
  }
}, 240_000);

test('without leases, podwire-ipam has the pod before the answer, and no node holds a lease', async () => {
  node = new LeasingNode({ ...SHORT_DEADLINES, PODWIRE_NODE_LEASES_HIGH: '0' });
  const { stack } = node;
  await stack.start();
  for (const pod of node.pods('lease-off', 3)) {
    const { handle, address } = await node.add(pod);
    const listed = JSON.stringify(rpc(stack.sockets.ipam, 'podwire.ipam.v1.BlockService/ListBlocks'));
    expect(listed).toContain(`"address":"${address}","handleId":"${handle}"`);
    expect(listed).not.toContain('podwire-lease');
  }
  await stack.kill('ipam');
  const [refused] = node.pods('lease-off-down', 1);
  const { exitCode, stdout } = await node.call('ADD', refused!);
  expect([exitCode, JSON.parse(stdout)]).toEqual([1, expect.objectContaining({ code: 11 })]);
}, 120_000);

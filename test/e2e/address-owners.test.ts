import { readdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';

import { AddressServiceService, AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { DeleteNodeRequest, NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { expect, onTestFinished, test, vi } from 'vitest';

import { Cluster } from '../support/cluster.js';
import { callIpam, failureOf, storedAddresses, storedLeases, tenuresOf } from '../support/ipam-client.js';
import { errorOf, LivePods, type LivePod } from '../support/live-pods.js';
import { NETWORK } from '../support/pods.js';
import { podwirectl } from '../support/podwirectl.js';
import { rpc } from '../support/programs.js';
import { Stack } from '../support/stack.js';

/** Every address has one owner, whatever happens to datastore, nodes and machines: judged by the pods' own interfaces. */

vi.setConfig({ testTimeout: 240_000, hookTimeout: 60_000 });

/** Time after which an ADD without an address fails while podwire-ipam is down. */
const SHORT_DEADLINES = { PODWIRE_NODE_ADD_TIMEOUT_MS: '3000', PODWIRE_NODE_CLEAN_UP_TIMEOUT_MS: '2000' };

/** 64 addresses. */
const SMALL_POOL = { ...SHORT_DEADLINES, PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/26' };

/** Time for what nodes and podwire-ipam do in the background, in milliseconds. */
const PATIENCE = { timeout: 90_000, interval: 200 };

function newStack(env: Readonly<Record<string, string>>): Stack {
  const stack = new Stack({ env });
  onTestFinished(() => stack.destroy());
  return stack;
}

async function startCluster(pools: readonly object[], env = {}): Promise<Cluster> {
  const cluster = new Cluster({ subnets: ['a', 'a'], env: { ...SHORT_DEADLINES, ...env } });
  onTestFinished(() => cluster.destroy());
  await cluster.start(pools);
  return cluster;
}

const leasesOf = ({ sockets }: Stack, nodeName = 'node-1') => storedLeases(sockets.ipam, nodeName);

async function expectLeases(stack: Stack): Promise<void> {
  await expect.poll(async () => (await leasesOf(stack)).length, PATIENCE).toBeGreaterThan(0);
}

const namesOf = (pods: readonly LivePod[]) => pods.map(({ pod }) => pod.name);

const missingIn = (text: string, names: readonly string[]) => names.filter((name) => !text.includes(name));

test('after the restore of an older datastore, pods keep their addresses and routes, and no address is given twice', async () => {
  const pools = [
    { name: 'pods', cidr: '10.65.0.0/26', blockSize: 28 },
    { name: 'pods-6', cidr: 'fd65::/116', blockSize: 123 },
  ];
  // Fewer leases than pods that start after the backup.
  const { nodes } = await startCluster(pools, { PODWIRE_NODE_LEASES_LOW: '1', PODWIRE_NODE_LEASES_HIGH: '3' });
  const [first, second] = [nodes[0]!.stack, nodes[1]!.stack];
  const socket = first.sockets.ipam;
  const pods = new LivePods({ isDualStack: true });
  const both = (count: number) => Promise.all([first, second].map((stack) => pods.startAll(stack, count)));
  const [[deletedLater] = []] = await both(3);
  await pods.expectStored(socket);
  const backup = join(first.folder, 'backup.jsonl');
  await first.stop('ipam');
  first.ipamCommand('export', backup);
  await first.start('ipam');

  await both(5);
  await pods.stop(deletedLater!);
  await pods.expectStored(socket);
  await first.stop('ipam');
  renameSync(first.storeDirectory, join(first.folder, 'lost-store'));
  first.ipamCommand('import', backup);
  await first.start('ipam');

  await both(6);
  pods.expectDistinct();
  await pods.expectStored(socket);
  for (const stack of [first, second]) await pods.expectReachable(stack);
});

test('neither the deletion of a running node nor a release takes addresses from its pods, also with --force', async () => {
  const { nodes } = await startCluster([{ name: 'pods', cidr: '10.65.0.0/26', blockSize: 28 }]);
  const [first, second] = [nodes[0]!.stack, nodes[1]!.stack];
  const socket = first.sockets.ipam;
  const pods = new LivePods();
  const own = await pods.startAll(first, 3);
  await pods.startAll(second, 1);
  await pods.expectStored(socket);

  const deletion = DeleteNodeRequest.fromPartial({ name: 'node-1' });
  const refusal = await failureOf(callIpam(socket, NodeServiceService.deleteNode, deletion));
  expect([refusal.code, missingIn(refusal.message, namesOf(own))]).toEqual(['NODE_IN_USE', []]);
  const [{ pod, addresses }] = [own[0]!];
  const ofOne = [
    ['release', 'address', addresses[0]!],
    ['ipam', 'release', `--ip=${addresses[0]!}`],
    ['delete', 'handle', `${NETWORK}.${pod.containerId}`],
  ];
  const ofAll = [
    ['delete', 'node', 'node-1'],
    ['delete', 'ippool', 'pods', '--release-addresses'],
  ];
  for (const [commands, concerned] of [[ofOne, own.slice(0, 1)] as const, [ofAll, own] as const])
    for (const command of commands) {
      const { exitCode, output } = await podwirectl(socket, ...command, '--yes');
      expect([command, exitCode === 0, missingIn(output, namesOf(concerned))]).toEqual([command, false, []]);
    }
  await pods.expectStored(socket);

  for (const command of [...ofOne.slice(0, 1), ...ofOne.slice(2), ofAll[0]!]) {
    const concerned = command === ofAll[0] ? own : own.slice(0, 1);
    const { output } = await podwirectl(socket, ...command, '--force', '--yes');
    expect([command, missingIn(output, namesOf(concerned))]).toEqual([command, []]);
  }
  // More than are left in the node's own blocks, which only a deletion would give to the other node.
  await Promise.all([pods.startAll(first, 4), pods.startAll(second, 30)]);
  await pods.expectStored(socket);
});

test('of two machines with one node name one serves; the other one refuses ADDs and names both', async () => {
  const names = ['node-1', 'node-1'];
  const cluster = new Cluster({ subnets: ['a', 'a'], names, env: SHORT_DEADLINES });
  onTestFinished(() => cluster.destroy());
  await cluster.start([{ name: 'pods', cidr: '10.65.0.0/26', blockSize: 28 }]);
  const pods = new LivePods();
  const [one, other] = cluster.nodes;
  const serving = await vi.waitFor(async () => {
    for (const node of [one!, other!]) if ((await pods.tryAdd(node.stack)).exitCode === 0) return node;
    throw new Error('neither machine serves');
  }, PATIENCE);
  const refused = serving === one ? other! : one!;
  const socket = one!.stack.sockets.ipam;
  const both = [one!.ipv4, other!.ipv4];

  for (let round = 0; round < 5; round++) {
    const [added, answer] = await Promise.all([pods.tryAdd(serving.stack), pods.tryAdd(refused.stack)]);
    expect(added, added.stdout).toMatchObject({ exitCode: 0 });
    expect(missingIn(errorOf(answer).text, both)).toEqual([]);
  }
  pods.expectDistinct();
  const conditions = () => {
    const status = rpc(refused.stack.sockets.dataplane, 'podwire.dataplane.v1.NodeService/GetNodeStatus');
    const { conditions: found = [] }: { conditions?: readonly object[] } = JSON.parse(JSON.stringify(status));
    return found.map((each) => JSON.stringify(each)).filter((text) => text.includes('NodeNameTaken'));
  };
  await expect.poll(() => conditions().filter((text) => missingIn(text, both).length === 0), PATIENCE).toHaveLength(1);
  // The machine that serves continues after a restart, and the other one still gets no address.
  await serving.stack.kill('node');
  await serving.stack.start('node');
  await pods.start(serving.stack);
  expect((await pods.tryAdd(refused.stack)).exitCode).toBe(1);
  await pods.expectStored(socket);
});

test.each([
  ['one podwire-node', false],
  ['two podwire-nodes, one after the other', true],
])(
  'without podwire-ipam, pods come and go for five rounds of %s; later bindings and history are right',
  async (_, isRestarted) => {
    const stack = newStack({ ...SHORT_DEADLINES, PODWIRE_NODE_LEASES_LOW: '2', PODWIRE_NODE_LEASES_HIGH: '6' });
    await stack.start();
    const pods = new LivePods();
    await pods.start(stack);
    await expect.poll(async () => (await leasesOf(stack)).length, PATIENCE).toBeGreaterThanOrEqual(4);
    await pods.expectStored(stack.sockets.ipam);
    const leases = await leasesOf(stack);
    await stack.kill('ipam');

    /** Holders of each address, in the order of their ADDs. */
    const holders = new Map<string, string[]>();
    /** Addresses of deleted pods, the earliest first. */
    const freed: string[] = [];
    for (let round = 0; round < 5; round++) {
      const added: LivePod[] = [];
      for (let count = 0; count < 4; count++) {
        const pod = pods.make();
        const answer = await pods.tryAdd(stack, pod);
        expect(answer, `round ${round}: ${answer.stdout}`).toMatchObject({ exitCode: 0 });
        const living = pods.living.at(-1)!;
        added.push(living);
        const [address = ''] = living.addresses;
        // Leases first, then the address that has been free for longest.
        if (freed.includes(address)) expect(address).toBe(freed.shift());
        holders.set(address, [...(holders.get(address) ?? []), `${NETWORK}.${pod.containerId}`]);
      }
      pods.expectDistinct();
      if (isRestarted && round === 2) {
        await stack.kill('node');
        await stack.start('node');
      }
      if (round === 4) break;
      for (const each of added) {
        await pods.stop(each);
        freed.push(each.addresses[0]!);
      }
    }
    expect([...holders.keys()].sort()).toEqual(leases);

    await stack.start('ipam');
    await pods.expectStored(stack.sockets.ipam);
    for (const [address, expected] of holders) {
      const tenures = await tenuresOf(stack.sockets.ipam, address);
      const ofPods = tenures.filter(({ handleId }) => handleId.startsWith(NETWORK));
      expect([address, ofPods.map(({ handleId }) => handleId)]).toEqual([address, expected]);
      const times = ofPods.flatMap(({ allocateTime, releaseTime }) => [allocateTime, releaseTime]);
      const known = times.flatMap((time) => (time === undefined ? [] : [time.getTime()]));
      expect(known, address).toEqual(known.toSorted((a, b) => a - b));
      const isHeld = pods.living.some(({ addresses }) => addresses.includes(address));
      expect([address, ofPods.map(({ releaseTime }) => releaseTime === undefined)]).toEqual([
        address,
        expected.map((_, index) => isHeld && index === expected.length - 1),
      ]);
    }
  },
);

/** Pods of a StatefulSet: pods of the same name replace one another's endpoints. */
const startSet = (pods: LivePods, stack: Stack) =>
  Promise.all(['web-0', 'web-1', 'web-2'].map((name) => pods.start(stack, name)));

/** Waits until podwire-ipam has so many addresses of pods. */
async function expectCount({ sockets }: Stack, count: number): Promise<void> {
  await expect.poll(async () => (await storedAddresses(sockets.ipam)).length, PATIENCE).toBe(count);
}

test('an address without a pod on the node is returned without a call, although endpoints of later pods hide it', async () => {
  const stack = newStack(SHORT_DEADLINES);
  await stack.start();
  const { ipam } = stack.sockets;
  const pods = new LivePods();
  const first = await startSet(pods, stack);
  await pods.expectStored(ipam);
  await startSet(pods, stack);
  await expectCount(stack, 6);

  await stack.kill('ipam');
  for (const each of first) await pods.stop(each);
  await stack.kill('node');
  for (const name of readdirSync(stack.recordsDirectory)) rmSync(join(stack.recordsDirectory, name));
  await stack.start('ipam');
  // This Allocate arrives after the DEL of its pod was answered.
  const late = AllocateRequest.fromPartial({
    attachment: { network: NETWORK, containerId: 'late', interfaceName: 'eth0' },
    nodeName: 'node-1',
    netns: { bootId: stack.bootId, inode: 4_026_532_999n },
  });
  await callIpam(ipam, AddressServiceService.allocate, late);
  await stack.start('node');
  await pods.expectStored(ipam);
});

test('an address of a former boot is returned without a call, although endpoints of later pods hide it', async () => {
  const stack = newStack(SHORT_DEADLINES);
  await stack.start();
  const pods = new LivePods();
  await startSet(pods, stack);
  await pods.expectStored(stack.sockets.ipam);
  await startSet(pods, stack);
  await expectCount(stack, 6);
  await stack.powerCycle();
  pods.endAll(stack);
  await stack.start();
  await startSet(pods, stack);
  await pods.expectStored(stack.sockets.ipam);
});

test('the refusal of an exhausted pool names the node that holds leases, until when, and what helps', async () => {
  const stack = newStack(SMALL_POOL);
  await stack.start();
  const pods = new LivePods();
  await pods.start(stack);
  await expectLeases(stack);
  await pods.expectStored(stack.sockets.ipam);
  await stack.kill('node');
  const leases = await leasesOf(stack);
  const allocate = (index: number, nodeName = 'node-2') => {
    const attachment = { network: 'net', containerId: `other-${index}`, interfaceName: 'eth0' };
    const request = AllocateRequest.fromPartial({ attachment, nodeName });
    return callIpam(stack.sockets.ipam, AddressServiceService.allocate, request);
  };
  for (let index = leases.length + 1; index < 64; index++) await allocate(index);
  // Leases within the share of their node serve only a node with less than its own.
  const refusal = await failureOf(allocate(64, 'node-3'));
  expect(refusal).toMatchObject({ code: 'POOLS_EXHAUSTED' });
  expect(refusal.message).toContain('node-1');
  expect(refusal.message).toMatch(/\d\d:\d\d/);
  expect(refusal.message).toContain('podwirectl delete node');
  expect(await leasesOf(stack)).toEqual(leases);
  pods.expectDistinct();
  expect(await storedAddresses(stack.sockets.ipam)).toHaveLength(64 - leases.length);
});

test('a node that gets another name gives out none of the leases of its former name', async () => {
  const stack = newStack(SMALL_POOL);
  await stack.start();
  const pods = new LivePods();
  await pods.start(stack);
  await expectLeases(stack);
  await pods.expectStored(stack.sockets.ipam);
  const former = await leasesOf(stack);
  for (const name of ['ipam', 'node'] as const) await stack.kill(name);
  stack.configure({ PODWIRE_NODE_NAME: 'node-2' });
  await stack.start('node');
  expect(errorOf(await pods.tryAdd(stack))).toMatchObject({ code: 11, text: expect.stringContaining('podwire-ipam') });

  await stack.start('ipam');
  const later = await pods.startAll(stack, 5);
  expect(later.flatMap(({ addresses }) => addresses).filter((address) => former.includes(address))).toEqual([]);
  await expect.poll(() => storedAddresses(stack.sockets.ipam), PATIENCE).toHaveLength(6);
  pods.expectDistinct();
});

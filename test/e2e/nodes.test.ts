import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';

import type { Cluster, Node } from '../support/cluster.js';
import { callCni } from '../support/pods.js';
import { pings, rpc, run } from '../support/programs.js';
import {
  cleanUp,
  expectAddressesSeen,
  expectAllToReachEachOther,
  IPV4_POOL,
  IPV6_POOL,
  routesOf,
  silentPairs,
  startCluster,
  VXLAN_ALWAYS,
  VXLAN_CROSS_SUBNET,
  wire,
  type Wired,
} from './cluster-pods.js';

// Up to nine processes start, on a machine with other load.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 240_000 });

describe('pods of several nodes reach each other, and outside hosts with their node’s address', () => {
  afterEach(cleanUp);

  test('without encapsulation, in one subnet', async () => {
    const made = await startCluster({ subnets: ['a', 'a', 'a'] }, [IPV4_POOL]);
    const wired = await Promise.all(made.nodes.map((node) => wire(node)));
    expect(wired.map(({ addresses }) => addresses.length)).toEqual([1, 1, 1]);
    await expectAllToReachEachOther(wired);
    await expectAddressesSeen(made, wired);
  });

  test('on both families, by VXLAN always, and then between subnets only', async () => {
    const pools = [IPV4_POOL, IPV6_POOL];
    const made = await startCluster(
      { subnets: ['a', 'a', 'b'] },
      pools.map((pool) => ({ ...pool, ...VXLAN_ALWAYS })),
    );
    const wired = await Promise.all(made.nodes.map((node) => wire(node, pools.length)));
    expect(wired.map(({ addresses }) => addresses.length)).toEqual([2, 2, 2]);
    await expectAllToReachEachOther(wired);
    await expectAddressesSeen(made, wired);
    expect(devices(made.nodes[0]!)).toEqual({ eth0: 0, 'vxlan4.podwire': 2, 'vxlan6.podwire': 2 });

    for (const pool of pools) made.ipam('PoolService/UpdatePool', { pool: { ...pool, ...VXLAN_CROSS_SUBNET } });
    const beside = { eth0: 2, 'vxlan4.podwire': 1, 'vxlan6.podwire': 1 };
    await expect.poll(() => made.nodes.slice(0, 2).map(devices), { timeout: 90_000 }).toEqual([beside, beside]);
    await expectAllToReachEachOther(wired);
    await expectAddressesSeen(made, wired);
  });
});

describe('a node whose interface is recreated', () => {
  afterEach(cleanUp);

  test('is reached by neighbours and other hosts at once, though they know its earlier MAC address', async () => {
    const pools = [IPV4_POOL, IPV6_POOL].map((pool) => ({ ...pool, ...VXLAN_CROSS_SUBNET }));
    const made = await startCluster({ subnets: ['a', 'a', 'b'] }, pools);
    const wired = await Promise.all(made.nodes.map((node) => wire(node, pools.length)));
    await expectAllToReachEachOther(wired);
    const [replaced, neighbour, other] = wired;
    // One way only: a host that the node asks learns its address.
    const silent = () =>
      [neighbour!, other!].flatMap(({ name, pod }) =>
        replaced!.addresses.filter((address) => !pings(address, pod.netns)).map((address) => `${name} → ${address}`),
      );
    // Their entries last longer than the test takes.
    const believing = [made.routerNetns, made.nodes[1]!.stack.netns];
    for (const netns of believing) run('nsenter', `--net=/run/netns/${netns}`, 'sh', '-c', BELIEVE);
    expect(silent()).toEqual([]);

    made.replaceUplink(0);
    await vi.waitFor(() => expect(silent()).toEqual([]), { timeout: 60_000, interval: 200 });
  });
});

/** Neighbours are asked again, and stay known for ten minutes. */
const BELIEVE =
  'for file in /proc/sys/net/ipv[46]/neigh/*/base_reachable_time_ms; do echo 1200000 > "$file"; done; ip neigh flush all';

/** The number of routes to pods of other nodes, by outgoing interface. */
function devices(node: Node): Record<string, number> {
  const through = (device: string) =>
    routesOf(node).filter((route) => route.includes(' via ') && route.includes(` dev ${device} `));
  return Object.fromEntries(['eth0', 'vxlan4.podwire', 'vxlan6.podwire'].map((name) => [name, through(name).length]));
}

async function detach({ stack }: Node, { pod }: Wired): Promise<void> {
  const answer = await callCni({ command: 'DEL', pod, socket: stack.sockets.node, config: {} });
  expect(answer).toMatchObject({ exitCode: 0 });
}

/** Routes to its pod, to the other node's block, and the blackhole of its own, which may come last, as pods reach each other without it. */
async function allRoutesOf(node: Node): Promise<string[]> {
  await expect.poll(() => routesOf(node), { timeout: 60_000 }).toHaveLength(3);
  return routesOf(node);
}

describe('a node of a cluster', () => {
  let made: Cluster;
  let wired: Wired[];

  beforeAll(async () => {
    made = await startCluster({ subnets: ['a', 'b'] }, [{ ...IPV4_POOL, ...VXLAN_ALWAYS }]);
    wired = await Promise.all(made.nodes.map((node) => wire(node)));
    await expectAllToReachEachOther(wired);
    await expectAddressesSeen(made, wired);
  });

  afterAll(cleanUp);

  test('keeps its routes while podwire-ipam is down, and applies changes once it is reachable', async () => {
    const [first, second] = [made.nodes[0]!, made.nodes[1]!];
    const before = await allRoutesOf(second);

    await first.stack.kill('ipam');
    await second.stack.kill('node');
    await second.stack.start('node');
    expect(routesOf(second)).toEqual(before);
    expect(silentPairs(wired)).toEqual([]);

    await first.stack.start('ipam');
    const later = await wire(second);
    await expectAllToReachEachOther([...wired, later]);
    expect(routesOf(second)).toEqual(expect.arrayContaining(before));
    await detach(second, later);
  });

  test('repairs routes that were removed from the kernel', async () => {
    const [first] = made.nodes;
    const before = await allRoutesOf(first!);
    const status = () => rpc(first!.stack.sockets.dataplane, 'podwire.dataplane.v1.NodeService/GetNodeStatus');
    const there = { tunnels: 1, peers: 1, routes: before.length - 1 };
    const settled = { routingState: 'ROUTING_STATE_AS_WANTED', wanted: there, present: there, attachmentCount: 1 };
    // The wanted state is known from before podwire-ipam was down; until it listens again may take longer.
    await vi.waitFor(
      () => {
        const found = status();
        expect(found).toMatchObject(settled);
        expect(found).not.toHaveProperty('conditions');
      },
      { timeout: 60_000, interval: 200 },
    );

    run('ip', '-n', first!.stack.netns, 'route', 'flush', 'proto', '87', 'type', 'unicast', 'dev', 'vxlan4.podwire');
    await expect.poll(() => routesOf(first!), { timeout: 30_000 }).toEqual(before);
    run('ip', '-n', first!.stack.netns, 'link', 'delete', 'vxlan4.podwire');
    await expectAllToReachEachOther(wired);
    await expect.poll(() => routesOf(first!), { timeout: 30_000 }).toEqual(before);

    // The last pool with encapsulation ends with its pods, though the nodes' tunnels had addresses of it.
    made.ipam('PoolService/DeletePool', { name: IPV4_POOL.name });
    for (const [at, each] of wired.entries()) await detach(made.nodes[at]!, each);
    await expect.poll(() => made.ipam('PoolService/ListPools'), { timeout: 90_000, interval: 500 }).toEqual({});
    const tunnels = () => made.nodes.map(({ stack }) => stack.ip('-br', 'link', 'show', 'type', 'vxlan').trim());
    await expect.poll(tunnels, { timeout: 30_000 }).toEqual(['', '']);
    await expect.poll(() => made.nodes.map(routesOf), { timeout: 30_000 }).toEqual([[], []]);
  });
});

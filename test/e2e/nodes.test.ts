import { afterEach, describe, expect, test, vi } from 'vitest';

import { callCni } from '../support/pods.js';
import { rpc, run } from '../support/programs.js';
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
} from './cluster-pods.fixture.js';

// Up to nine processes start, on a machine that does other things as well.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 60_000 });

afterEach(cleanUp);

describe('pods of several nodes reach each other, and what is outside with their node’s address', () => {
  test.each([
    ['without encapsulation, in one subnet', ['a', 'a', 'a'], [IPV4_POOL]],
    ['by VXLAN always, in two subnets', ['a', 'a', 'b'], [{ ...IPV4_POOL, ...VXLAN_ALWAYS }]],
    ['by VXLAN between subnets', ['a', 'a', 'b'], [{ ...IPV4_POOL, ...VXLAN_CROSS_SUBNET }]],
    [
      'on both families, by VXLAN always',
      ['a', 'a', 'b'],
      [
        { ...IPV4_POOL, ...VXLAN_ALWAYS },
        { ...IPV6_POOL, ...VXLAN_ALWAYS },
      ],
    ],
    [
      'on both families, by VXLAN between subnets',
      ['a', 'b', 'b'],
      [
        { ...IPV4_POOL, ...VXLAN_CROSS_SUBNET },
        { ...IPV6_POOL, ...VXLAN_CROSS_SUBNET },
      ],
    ],
  ] as const)('%s', async (_, subnets, pools) => {
    const made = await startCluster({ subnets }, pools);
    const wired = await Promise.all(made.nodes.map((node) => wire(node, pools.length)));
    expect(wired.map(({ addresses }) => addresses.length)).toEqual(subnets.map(() => pools.length));
    await expectAllToReachEachOther(wired);
    await expectAddressesSeen(made, wired);
  });
});

describe('a node of a cluster', () => {
  test('keeps its routes while podwire-ipam is away, and applies what changed meanwhile once it is back', async () => {
    const made = await startCluster({ subnets: ['a', 'b'] }, [{ ...IPV4_POOL, ...VXLAN_ALWAYS }]);
    const [first, second] = [made.nodes[0]!, made.nodes[1]!];
    const wired = [await wire(first), await wire(second)];
    await expectAllToReachEachOther(wired);
    const before = routesOf(second);

    await first.stack.kill('ipam');
    await second.stack.kill('dataplane');
    await second.stack.start('dataplane');
    expect(routesOf(second)).toEqual(before);
    expect(silentPairs(wired)).toEqual([]);

    await first.stack.start('ipam');
    const later = await wire(second);
    await expectAllToReachEachOther([...wired, later]);
    expect(routesOf(second)).toEqual(expect.arrayContaining(before));
  });

  test('mends what somebody took out of the kernel', async () => {
    const made = await startCluster({ subnets: ['a', 'b'] }, [{ ...IPV4_POOL, ...VXLAN_ALWAYS }]);
    const wired = await Promise.all(made.nodes.map((node) => wire(node)));
    await expectAllToReachEachOther(wired);
    const [first] = made.nodes;
    const before = routesOf(first!);
    const status = () => rpc(first!.stack.sockets.dataplane, 'podwire.dataplane.v1.NodeService/GetNodeStatus');
    const there = { tunnels: 1, peers: 1, routes: before.length - 1 };
    await expect
      .poll(status, { timeout: 30_000 })
      .toMatchObject({ routingState: 'ROUTING_STATE_AS_WANTED', wanted: there, present: there, attachmentCount: 1 });
    expect(status()).not.toHaveProperty('conditions');

    run('ip', '-n', first!.stack.netns, 'route', 'flush', 'proto', '87', 'type', 'unicast', 'dev', 'vxlan4.podwire');
    await expect.poll(() => routesOf(first!), { timeout: 30_000 }).toEqual(before);
    run('ip', '-n', first!.stack.netns, 'link', 'delete', 'vxlan4.podwire');
    await expectAllToReachEachOther(wired);
    expect(routesOf(first!)).toEqual(before);

    // The last pool that is encapsulated ends with its pods, though the nodes' tunnels had addresses of it.
    made.ipam('PoolService/DeletePool', { name: IPV4_POOL.name });
    for (const [at, { pod }] of wired.entries()) {
      const { sockets } = made.nodes[at]!.stack;
      expect(await callCni({ command: 'DEL', pod, socket: sockets.plugin, config: {} })).toMatchObject({ exitCode: 0 });
    }
    await expect.poll(() => made.ipam('PoolService/ListPools'), { timeout: 90_000, interval: 500 }).toEqual({});
    const tunnels = () => made.nodes.map(({ stack }) => stack.ip('-br', 'link', 'show', 'type', 'vxlan').trim());
    await expect.poll(tunnels, { timeout: 30_000 }).toEqual(['', '']);
    expect(made.nodes.map(routesOf)).toEqual([[], []]);
  });
});

import { expect, vi } from 'vitest';

import { AddressServer, seenAddress } from '../support/address-server.js';
import { Cluster, type ClusterOptions, type Node } from '../support/cluster.js';
import { callCni, makePod, removePod, type Pod } from '../support/pods.js';
import { pings } from '../support/programs.js';

/** Pods of clusters: created through the shim, and checked by their reachable peers. */

export interface Wired {
  readonly name: string;
  readonly pod: Pod;
  /** IPv4 before IPv6. */
  readonly addresses: readonly string[];
}

interface CniResult {
  readonly ips: readonly { readonly address: string }[];
}

/** The objects of a test, last first. */
const cleanups: (() => unknown)[] = [];

/** Clean-up after each test. */
export async function cleanUp(): Promise<void> {
  for (const remove of cleanups.splice(0).reverse()) await remove();
}

export async function startCluster(options: ClusterOptions, pools: readonly object[]): Promise<Cluster> {
  const made = new Cluster(options);
  cleanups.push(() => made.destroy());
  await made.start(pools);
  return made;
}

let pods = 0;

/**
 * A pod on a node. While the node is being registered, an ADD fails with the retryable code 11.
 * @param families - the number of families that it has addresses of
 */
export async function wire({ name, stack }: Node, families = 1): Promise<Wired> {
  const pod = makePod(`nodes-${pods++}`);
  cleanups.push(() => removePod(pod));
  const both = { ipam: { type: 'podwire-ipam', assign_ipv4: 'true', assign_ipv6: 'true' } };
  const config = families > 1 ? both : {};
  const add = () => callCni({ command: 'ADD', pod, socket: stack.sockets.node, config });
  const answer = await vi.waitFor(
    async () => {
      const given = await add();
      expect(given, given.stdout).toMatchObject({ exitCode: 0, stderr: '' });
      return given;
    },
    { timeout: 60_000, interval: 500 },
  );
  const { ips }: CniResult = JSON.parse(answer.stdout);
  return { name, pod, addresses: ips.map(({ address }) => address.split('/')[0]!) };
}

/** Every pair that does not reach each other, `node-1 → node-2 10.65.1.2`. */
export function silentPairs(wired: readonly Wired[]): string[] {
  return wired.flatMap((from) =>
    wired
      .filter((to) => to !== from)
      .flatMap((to) =>
        to.addresses
          .filter((address) => !pings(address, from.pod.netns))
          .map((address) => `${from.name} → ${to.name} ${address}`),
      ),
  );
}

const ROUTES_COME = { timeout: 90_000, interval: 500 };

/** Routes appear once every node knows every block. */
export async function expectAllToReachEachOther(wired: readonly Wired[]): Promise<void> {
  await vi.waitFor(() => expect(silentPairs(wired)).toEqual([]), ROUTES_COME);
}

/** Outside hosts never see a pod's address, other pods do: once each node has its rules for that, which are set beside its routes. */
export async function expectAddressesSeen(
  { nodes, outside, outsideNetns }: Cluster,
  wired: readonly Wired[],
): Promise<void> {
  const [first, ...rest] = wired;
  const servers = await Promise.all([outsideNetns, first!.pod.netns].map((netns) => AddressServer.start(netns)));
  try {
    const outsideAddresses = [outside.ipv4, outside.ipv6].slice(0, first!.addresses.length);
    for (const [index, { pod }] of wired.entries()) {
      const { ipv4, ipv6 } = nodes[index]!;
      const seen = () => outsideAddresses.map((address) => seenAddress(address, pod.netns));
      await vi.waitFor(() => expect(seen()).toEqual([ipv4, ipv6].slice(0, outsideAddresses.length)), ROUTES_COME);
    }
    for (const { pod, addresses } of rest) {
      const seen = () => first!.addresses.map((address) => seenAddress(address, pod.netns));
      await vi.waitFor(() => expect(seen()).toEqual(addresses), ROUTES_COME);
    }
  } finally {
    await Promise.all(servers.map((server) => server.stop()));
  }
}

/** Podwire's routes of a node, one a line, in order. */
export function routesOf({ stack }: Node): string[] {
  const lines = ['-4', '-6'].flatMap((family) => stack.ip(family, 'route', 'show', 'proto', '87').split('\n'));
  return lines
    .map((line) => line.trim())
    .filter((line) => line !== '')
    .sort();
}

export const IPV4_POOL = { name: 'pods', cidr: '10.65.0.0/16', natOutgoing: true };
export const IPV6_POOL = { name: 'pods-6', cidr: 'fd65::/48', natOutgoing: true };
export const VXLAN_ALWAYS = { vxlanMode: 'ENCAPSULATION_MODE_ALWAYS' };
export const VXLAN_CROSS_SUBNET = { vxlanMode: 'ENCAPSULATION_MODE_CROSS_SUBNET' };

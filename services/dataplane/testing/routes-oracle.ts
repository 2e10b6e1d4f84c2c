import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, prefixesOverlap, type Prefix } from '@podwire/shared/net/prefix';

import type { Cluster, ClusterBlock, ClusterNode } from '../cluster/cluster.js';
import type { NodeKernel } from '../routes/kernel.js';
import { ownerOf, TUNNEL_DEVICES } from '../routes/observed.js';
import { formatNodeRoute } from '../routes/step.js';
import type { NodeFacts, NodeRoute, WantedNode } from '../routes/wanted.js';

/**
 * The next hop of a node's packets for one address, computed for each address from the rules of the design instead of from
 * routes.
 */

/** Input of the oracle. */
interface OracleInput {
  readonly selfName: string;
  /** This node's last registration. */
  readonly self: ClusterNode | undefined;
  readonly cluster: Cluster;
  readonly facts: NodeFacts;
}

/** `local`: the pod's own route; `drop`; `via G dev D`, `dev D`; `none`: no route of Podwire. */
export function expectedHop(target: Address, world: OracleInput): string {
  const holders = [...world.cluster.blocks.values()].filter((block) => holds(block.cidr, target)).sort(byText);
  const users = holders.flatMap((block) => {
    const borrower = block.borrowed.filter(({ address }) => address.value === target.value).map((use) => use.nodeName);
    const lone = bits(target) === block.cidr.length && block.nodeName !== undefined ? [block.nodeName] : [];
    return [...lone, ...borrower.filter((name) => name !== block.nodeName)].map((name) => ({ name, block }));
  });
  if (users.some(({ name }) => name === world.selfName)) return 'local';
  for (const { name, block } of users) {
    const hop = hopTo(name, { block, target: { ...target, length: bits(target) } }, world);
    if (hop !== undefined) return hop;
  }
  for (const block of holders.filter(({ cidr }) => cidr.length < bits(target)).sort(longestFirst)) {
    if (block.nodeName === undefined) continue;
    if (block.nodeName === world.selfName) {
      if (world.facts.connected.some((subnet) => prefixesOverlap(subnet, block.cidr))) continue;
      return 'drop';
    }
    const hop = hopTo(block.nodeName, { block, target: block.cidr }, world);
    if (hop !== undefined) return hop;
  }
  return 'none';
}

/** The next hop by the longest matching route. */
export function routedHop(target: Address, routes: Iterable<[string, NodeRoute, Prefix]>): string {
  let best: { readonly route: NodeRoute; readonly length: number } | undefined;
  for (const [, route, prefix] of routes) {
    if (holds(prefix, target) && prefix.length > (best?.length ?? -1)) best = { route, length: prefix.length };
  }
  if (!best) return 'none';
  if (best.route.type === 'blackhole') return 'drop';
  return `${best.route.gateway === undefined ? '' : `via ${best.route.gateway} `}dev ${best.route.device}`;
}

interface HopTarget {
  readonly block: ClusterBlock;
  /** The block, or one address of it. */
  readonly target: Prefix;
}

function hopTo(name: string, { block, target }: HopTarget, { self, cluster, facts }: OracleInput): string | undefined {
  const v6 = target.family === 6;
  const peer = cluster.nodes.get(name);
  const there = v6 ? peer?.ipv6 : peer?.ipv4;
  const here = v6 ? self?.ipv6 : self?.ipv4;
  const pool = cluster.pools.get(block.poolName ?? '');
  const mode = !pool || pool.loadBalancerOnly ? 'none' : pool.encapsulation;
  if (!there || !here || there.address.value === here.address.value) return undefined;
  if (target.length === bits(target) && target.value === there.address.value) return undefined;
  const parent = facts.parents[target.family];
  const isNear = holds(here.subnet, there.address);
  const isDirect = mode === 'none' || (mode.endsWith('-cross-subnet') && isNear && parent !== undefined);
  const direct = `via ${formatAddress(there.address)} dev ${parent}`;
  if (mode === 'none') return isNear && parent !== undefined && facts.routing === 'native' ? direct : undefined;
  const end = v6 ? peer?.vxlanIpv6?.address : peer?.vxlanIpv4?.address;
  const isEnd = target.length === bits(target) && end?.value === target.value;
  const isLoop = holds(target, there.address);
  if (mode.startsWith('ipip')) {
    if (isDirect) return direct;
    return v6 || !facts.hasIpip || isLoop ? undefined : `via ${formatAddress(there.address)} dev ipip.podwire`;
  }
  const device = v6 ? 'vxlan6.podwire' : 'vxlan4.podwire';
  if (isEnd && facts.hasVxlan && !isLoop) return `dev ${device}`;
  if (isDirect) return direct;
  return !facts.hasVxlan || !end || isLoop ? undefined : `via ${formatAddress(end)} dev ${device}`;
}

function bits({ family }: Address): number {
  return family === 4 ? 32 : 128;
}

/** Whether a prefix contains an address, by counting from its first address. */
function holds(prefix: Prefix, address: Address): boolean {
  const size = 2n ** BigInt(bits(prefix) - prefix.length);
  return prefix.family === address.family && address.value >= prefix.value && address.value < prefix.value + size;
}

function byText(a: ClusterBlock, b: ClusterBlock): number {
  return formatPrefix(a.cidr) < formatPrefix(b.cidr) ? -1 : 1;
}

function longestFirst(a: ClusterBlock, b: ClusterBlock): number {
  return b.cidr.length - a.cidr.length;
}

/** The differences between a kernel and its wanted state: reads the kernel and compares line by line. */
export async function differences(kernel: NodeKernel, wanted: WantedNode): Promise<string[]> {
  const sysctls = wanted.sysctls.map(({ key }) => key);
  const seen = await kernel.observe({ sysctls, isWanted: () => false });
  const there = [
    ...seen.routes
      .filter((route) => ownerOf(route) === 'node')
      .map((route) => `${formatNodeRoute(route)} ${route.metric}`),
    ...[...seen.devices.values()]
      .filter(({ name }) => TUNNEL_DEVICES.includes(name))
      .map((found) => JSON.stringify(found)),
    ...seen.addresses
      .filter(({ device }) => TUNNEL_DEVICES.includes(device))
      .map(({ device, address }) => `address ${device} ${address}`),
    ...seen.neighbours.map(({ device, address, mac }) => `neighbour ${device} ${address} ${mac}`),
    ...seen.forwarding.map(({ device, mac, nodeAddress }) => `forwarding ${device} ${mac} ${nodeAddress}`),
    ...[...seen.sysctls].map(([key, value]) => `sysctl ${key} ${value ?? 'missing'}`),
  ];
  const meant = [
    ...[...wanted.routes.values()].map(
      (route) => `${formatNodeRoute(route)} ${route.destination.includes(':') ? 1024 : 0}`,
    ),
    ...wanted.tunnels.map((tunnel) => JSON.stringify(asSeen(tunnel))),
    ...wanted.tunnels.flatMap(({ name, address }) => (address === undefined ? [] : [`address ${name} ${address}`])),
    ...wanted.peers.map(({ device, tunnelAddress, mac }) => `neighbour ${device} ${tunnelAddress} ${mac}`),
    ...wanted.peers.map(({ device, mac, nodeAddress }) => `forwarding ${device} ${mac} ${nodeAddress}`),
    ...wanted.sysctls.map(({ key, value }) => `sysctl ${key.join('/')} ${value}`),
  ];
  return [
    ...without(there, meant).map((line) => `too much: ${line}`),
    ...without(meant, there).map((line) => `missing: ${line}`),
  ];
}

/** The lines that are not among the removed ones, counted. */
function without(lines: readonly string[], removed: readonly string[]): string[] {
  const left = [...removed];
  return lines.filter((line) => {
    const place = left.indexOf(line);
    if (place >= 0) left.splice(place, 1);
    return place < 0;
  });
}

function asSeen(tunnel: WantedNode['tunnels'][number]): unknown {
  const { name, kind, mtuBytes, local } = tunnel;
  if (tunnel.kind === 'ipip') {
    return { name, kind, up: true, mac: null, mtuBytes, tunnel: { kind, local } };
  }
  const { vni, port, parent, mac } = tunnel;
  return {
    name,
    kind,
    up: true,
    mac,
    mtuBytes,
    tunnel: { kind, vni, port, local, parent, isLearning: false, isExternal: false },
  };
}

import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { parsePrefix, prefixOf, splitCidr, type Prefix } from '@podwire/shared/net/prefix';

import type { Cluster, ClusterBlock, ClusterNode, ClusterPool, ClusterView, NodeAddress } from '../cluster/cluster.js';
import { RoutePlanner } from '../routes/planner.js';
import type { NodeRoute, VxlanPeer, WantedNode, WantedTunnel } from '../routes/wanted.js';
import type { NodeFacts } from '../routing/facts.js';

/** Clusters in few words, and what is wanted of a node as `ip` and `bridge` print it. */

function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} is no address`);
  return parsed;
}

export function prefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text}: ${parsed.fault}`);
  return parsed.prefix;
}

/** `192.0.2.1/24`: an address and the subnet it is in. */
function nodeAddress(cidr: string): NodeAddress {
  const parts = splitCidr(cidr);
  if (!parts) throw new Error(`${cidr} is no CIDR`);
  return { address: parts.address, subnet: prefixOf(parts.address, parts.length) };
}

interface NodeText {
  readonly ipv4?: string;
  readonly ipv6?: string;
  readonly vxlan4?: string;
  readonly vxlan6?: string;
  readonly ipip?: string;
  readonly mac?: string;
  readonly asNumber?: number;
}

export function node(name: string, text: NodeText): ClusterNode {
  return {
    name,
    ipv4: text.ipv4 === undefined ? undefined : nodeAddress(text.ipv4),
    ipv6: text.ipv6 === undefined ? undefined : nodeAddress(text.ipv6),
    vxlanIpv4: text.vxlan4 === undefined ? undefined : { address: address(text.vxlan4), mac: text.mac },
    vxlanIpv6: text.vxlan6 === undefined ? undefined : { address: address(text.vxlan6), mac: text.mac },
    ipip: text.ipip === undefined ? undefined : address(text.ipip),
    asNumber: text.asNumber,
  };
}

export function pool(name: string, cidr: string, rest: Partial<ClusterPool> = {}): ClusterPool {
  return { name, cidr: prefix(cidr), encapsulation: 'none', natOutgoing: false, loadBalancerOnly: false, ...rest };
}

/** @param borrowed - address → node */
export function block(
  cidr: string,
  {
    pool: poolName,
    node: nodeName,
    borrowed = {},
  }: { pool?: string; node?: string; borrowed?: Record<string, string> },
): ClusterBlock {
  const users = Object.entries(borrowed).map(([text, user]) => ({ address: address(text), nodeName: user }));
  return { cidr: prefix(cidr), poolName, nodeName, borrowed: users };
}

export interface ClusterText {
  readonly nodes?: readonly ClusterNode[];
  readonly pools?: readonly ClusterPool[];
  readonly blocks?: readonly ClusterBlock[];
}

export function cluster({ nodes = [], pools = [], blocks = [] }: ClusterText): Cluster {
  return {
    nodes: new Map(nodes.map((each) => [each.name, each])),
    pools: new Map(pools.map((each) => [each.name, each])),
    blocks: new Map(blocks.map((each) => [`${formatAddress(each.cidr)}/${each.cidr.length}`, each])),
  };
}

export function view(self: string, text: ClusterText): ClusterView {
  return { self, cluster: cluster(text) };
}

/** A node with both families on eth0, 1500 bytes, all of the kernel, and no router. */
export function facts(rest: Partial<NodeFacts> = {}): NodeFacts {
  return {
    parents: { 4: 'eth0', 6: 'eth0' },
    mtuBytes: 1500,
    hasVxlan: true,
    hasIpip: true,
    routing: 'native',
    routed: [],
    ...rest,
  };
}

/** `10.1.0.0/26 via 10.1.0.1 dev vxlan4.podwire onlink`, without length where it is that of one address. */
function routeText({ destination, type, device, gateway, onlink }: NodeRoute): string {
  const to = destination.replace(/^(\d+\.\d+\.\d+\.\d+)\/32$|^(.*)\/128$/, '$1$2');
  if (type === 'blackhole') return `blackhole ${to}`;
  return `${to}${gateway === undefined ? '' : ` via ${gateway}`} dev ${device}${onlink ? ' onlink' : ''}`;
}

export function routeTexts(wanted: WantedNode): string[] {
  return [...wanted.routes.values()].map(routeText).sort();
}

export function tunnelText(tunnel: WantedTunnel): string {
  const dev = tunnel.kind === 'vxlan' && tunnel.parent !== undefined ? ` dev ${tunnel.parent}` : '';
  const id = tunnel.kind === 'vxlan' ? ` id ${tunnel.vni} dstport ${tunnel.port}` : '';
  const mac = tunnel.kind === 'vxlan' ? ` address ${tunnel.mac}` : '';
  const of = `${tunnel.kind}${id} local ${tunnel.local}${dev}`;
  return `${tunnel.name} mtu ${tunnel.mtuBytes}${mac} type ${of} inet ${tunnel.address}`;
}

export function peerText({ device, tunnelAddress, mac, nodeAddress: to }: VxlanPeer): string {
  return `${tunnelAddress} lladdr ${mac} dev ${device}; ${mac} dst ${to}`;
}

export function reasons(wanted: WantedNode): string[] {
  return wanted.conditions.map(({ reason }) => reason).sort();
}

/** What is wanted of a node whose planner has seen nothing before. */
export function planNode(seen: ClusterView, given: NodeFacts): WantedNode {
  return new RoutePlanner().update(seen, { blocks: 'all', others: true }, given).wanted;
}

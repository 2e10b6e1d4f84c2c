import type { Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { Condition } from '../conditions/conditions.js';

/** Name of Podwire's VXLAN device for tunnels over a family. */
export const VXLAN_DEVICE: Readonly<Record<Family, string>> = { 4: 'vxlan4.podwire', 6: 'vxlan6.podwire' };

/** Name of Podwire's IPIP device. */
export const IPIP_DEVICE = 'ipip.podwire';

/** Calico's VNI, so that both kinds of nodes reach each other during a migration. */
export const VXLAN_VNI = 4096;

/** A VXLAN device without learning: every peer is programmed (`ip link add … type vxlan id … dstport … local … dev … nolearning`). */
export interface WantedVxlan {
  readonly kind: 'vxlan';
  readonly name: string;
  readonly vni: number;
  readonly port: number;
  /** Source address of tunnel packets, without length. */
  readonly local: string;
  /** Name of the interface with {@link local}; undefined while unknown: the routing table decides. */
  readonly parent: string | undefined;
  readonly mac: Mac;
  readonly mtuBytes: number;
  /** The tunnel's address as a CIDR of full length; undefined: none is allocated. */
  readonly address: string | undefined;
}

/** An IPIP device; each route gives its far end (`ip link add … type ipip local …`). */
interface WantedIpip {
  readonly kind: 'ipip';
  readonly name: string;
  readonly local: string;
  readonly mtuBytes: number;
  readonly address: string | undefined;
}

export type WantedTunnel = WantedVxlan | WantedIpip;

/** A route of the node in the main table, of Podwire's own protocol. */
export interface NodeRoute {
  /** CIDR. */
  readonly destination: string;
  readonly type: 'unicast' | 'blackhole';
  /** Name of the link; undefined for blackholes. */
  readonly device: string | undefined;
  /** Gateway without length; undefined when the destination is on the link. */
  readonly gateway: string | undefined;
  /** The gateway is on the link even without a route to it. */
  readonly onlink: boolean;
  /** Preferred source address of the node itself, without length; undefined: the kernel chooses. */
  readonly source: string | undefined;
}

/** A VXLAN peer: a permanent neighbour entry and a permanent FDB entry. */
export interface VxlanPeer {
  readonly device: string;
  /** The peer's tunnel address, the gateway of its routes; without length. */
  readonly tunnelAddress: string;
  readonly mac: Mac;
  /** The peer's node address, the destination of tunnel packets; without length. */
  readonly nodeAddress: string;
}

/** A setting of the whole node. */
export interface NodeSysctl {
  readonly key: readonly string[];
  readonly value: string;
}

/** The wanted state of this node's kernel for packets between nodes, unordered. */
export interface WantedNode {
  readonly tunnels: readonly WantedTunnel[];
  /** Routes by destination, one each. */
  readonly routes: ReadonlyMap<string, NodeRoute>;
  readonly peers: readonly VxlanPeer[];
  readonly sysctls: readonly NodeSysctl[];
  readonly conditions: readonly Condition[];
}

/** Programs routes to the blocks of pools without encapsulation: this dataplane, or BIRD from BGP. */
export type RoutingMode = 'native' | 'bird' | 'none';

/** The inputs of routes besides the cluster: this node's interfaces, kernel and settings. */
export interface NodeFacts {
  /** Name of the interface with the node's address of the family; undefined while unknown. */
  readonly parents: Readonly<Record<Family, string | undefined>>;
  /** MTU of the node's network, before any encapsulation. */
  readonly mtuBytes: number;
  /** Whether the kernel supports VXLAN devices. */
  readonly hasVxlan: boolean;
  /** Whether the kernel supports IPIP devices. */
  readonly hasIpip: boolean;
  readonly routing: RoutingMode;
  /**
   * Destinations that the node's main table, without Podwire's routes, sends to a router, including the default route. These need
   * no route between subnets: the network routes them.
   */
  readonly routed: readonly Prefix[];
  /** Subnets of the addresses of the node's interfaces. */
  readonly connected: readonly Prefix[];
}

export function equalFacts(a: NodeFacts, b: NodeFacts): boolean {
  return (
    a.parents[4] === b.parents[4] &&
    a.parents[6] === b.parents[6] &&
    a.mtuBytes === b.mtuBytes &&
    a.hasVxlan === b.hasVxlan &&
    a.hasIpip === b.hasIpip &&
    a.routing === b.routing &&
    equalLists(a.routed, b.routed) &&
    equalLists(a.connected, b.connected)
  );
}

function equalLists(a: readonly Prefix[], b: readonly Prefix[]): boolean {
  return a.length === b.length && a.every((prefix, index) => equalPrefixes(prefix, b[index]));
}

function equalPrefixes(a: Prefix, b: Prefix | undefined): boolean {
  return a.family === b?.family && a.value === b.value && a.length === b.length;
}

import type { Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { Condition } from '../conditions/conditions.js';

/** Name of Podwire's VXLAN device for tunnels over a family. */
export const VXLAN_DEVICE: Readonly<Record<Family, string>> = { 4: 'vxlan4.podwire', 6: 'vxlan6.podwire' };

/** Name of Podwire's IPIP device. */
export const IPIP_DEVICE = 'ipip.podwire';

/** As Calico's, so that both kinds of nodes reach each other during a migration. */
export const VXLAN_VNI = 4096;

/** A VXLAN device without learning: every peer is programmed (`ip link add … type vxlan id … dstport … local … dev … nolearning`). */
export interface WantedVxlan {
  readonly kind: 'vxlan';
  readonly name: string;
  readonly vni: number;
  readonly port: number;
  /** The node's address that tunnel packets come from, without length. */
  readonly local: string;
  /** Name of the interface that has {@link local}; undefined while that is not known: the routing table decides. */
  readonly parent: string | undefined;
  readonly mac: Mac;
  readonly mtuBytes: number;
  /** The tunnel's address as a CIDR of full length; undefined: none is allocated. */
  readonly address: string | undefined;
}

/** An IPIP device whose far end is given by each route (`ip link add … type ipip local …`). */
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
  /** Without length; undefined when the destination is on the link. */
  readonly gateway: string | undefined;
  /** The gateway is on the link though no route says so. */
  readonly onlink: boolean;
  /** Source address that the node itself prefers when it sends there, without length; undefined: the kernel chooses. */
  readonly source: string | undefined;
}

/** How a VXLAN device reaches another node: a permanent neighbour entry and a permanent FDB entry. */
export interface VxlanPeer {
  readonly device: string;
  /** The peer's tunnel address, which is the gateway of its routes; without length. */
  readonly tunnelAddress: string;
  readonly mac: Mac;
  /** The peer's node address, which tunnel packets go to; without length. */
  readonly nodeAddress: string;
}

/** A setting of the whole node. */
export interface NodeSysctl {
  readonly key: readonly string[];
  readonly value: string;
}

/** All that is wanted of this node's kernel for packets between nodes, in no particular order. */
export interface WantedNode {
  readonly tunnels: readonly WantedTunnel[];
  /** By destination: one route each. */
  readonly routes: ReadonlyMap<string, NodeRoute>;
  readonly peers: readonly VxlanPeer[];
  readonly sysctls: readonly NodeSysctl[];
  readonly conditions: readonly Condition[];
}

/** Who programs routes to the blocks of pools without encapsulation: this dataplane, or BIRD with what BGP tells it. */
export type RoutingMode = 'native' | 'bird';

/** What routes depend on besides the cluster: this node's interfaces, kernel and settings. */
export interface NodeFacts {
  /** Name of the interface that has the node's address of the family; undefined while that is not known. */
  readonly parents: Readonly<Record<Family, string | undefined>>;
  /** Of the node's network, before any encapsulation. */
  readonly mtuBytes: number;
  /** Whether the kernel can make VXLAN devices. */
  readonly hasVxlan: boolean;
  /** Whether the kernel can make IPIP devices. */
  readonly hasIpip: boolean;
  readonly routing: RoutingMode;
  /**
   * Destinations that the node's main table, Podwire's own routes left out, sends to a router; the default route is one of
   * them. What lies in them needs no route between subnets: the network is asked.
   */
  readonly routed: readonly Prefix[];
}

export function equalFacts(a: NodeFacts, b: NodeFacts): boolean {
  return (
    a.parents[4] === b.parents[4] &&
    a.parents[6] === b.parents[6] &&
    a.mtuBytes === b.mtuBytes &&
    a.hasVxlan === b.hasVxlan &&
    a.hasIpip === b.hasIpip &&
    a.routing === b.routing &&
    a.routed.length === b.routed.length &&
    a.routed.every((prefix, place) => equalPrefixes(prefix, b.routed[place]))
  );
}

function equalPrefixes(a: Prefix, b: Prefix | undefined): boolean {
  return a.family === b?.family && a.value === b.value && a.length === b.length;
}

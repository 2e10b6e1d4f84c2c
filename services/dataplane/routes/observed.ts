import { IPIP_DEVICE, VXLAN_DEVICE } from './wanted.js';

/** Whose a route of the main table is. */
type RouteOwner =
  /** The node's side of Podwire: what {@link WantedNode} is about. */
  | 'node'
  /** The pods' side of Podwire: a route out of a pod's host interface. */
  | 'pod'
  | 'foreign';

/** A route as it is compared with a wanted one; every {@link NodeRoute} is one. */
export interface ObservedRoute {
  /** CIDR. */
  readonly destination: string;
  readonly type: 'unicast' | 'blackhole' | 'other';
  /** Name of the link; undefined for routes without one, or with several. */
  readonly device: string | undefined;
  readonly gateway: string | undefined;
  readonly onlink: boolean;
  readonly source: string | undefined;
}

/** A route of the main table as the kernel shows it. */
export interface SeenRoute extends ObservedRoute {
  readonly protocol: number;
  /** As the kernel shows it; 1024 is what IPv6 makes of none. */
  readonly metric: number;
}

/** The attributes with which a tunnel device is made, which are the same for as long as it lives. */
type ObservedTunnel =
  | {
      readonly kind: 'vxlan';
      readonly vni: number;
      readonly port: number;
      readonly local: string | undefined;
      readonly parent: string | undefined;
      /** The far end of packets to unknown MAC addresses; Podwire's have none. */
      readonly remote: string | undefined;
      readonly isLearning: boolean;
      /** Each packet brings its tunnel along. */
      readonly isExternal: boolean;
    }
  | { readonly kind: 'ipip'; readonly local: string | undefined; readonly remote: string | undefined };

/** A link of the node. */
export interface ObservedDevice {
  readonly name: string;
  /** `vxlan`, `ipip`, `veth`, …; null for the loopback and physical devices. */
  readonly kind: string | null;
  /** The administrator's wish. */
  readonly up: boolean;
  readonly mac: string | null;
  readonly mtuBytes: number;
  /** Undefined for all but VXLAN and IPIP devices. */
  readonly tunnel: ObservedTunnel | undefined;
}

export interface DeviceAddress {
  readonly device: string;
  /** With its prefix length. */
  readonly address: string;
}

/** A permanent neighbour entry on one of Podwire's tunnel devices. */
export interface PeerNeighbour {
  readonly device: string;
  readonly address: string;
  readonly mac: string;
}

/** A forwarding entry of one of Podwire's VXLAN devices: packets to a MAC address go to a node. One may have several. */
export interface PeerForwarding {
  readonly device: string;
  readonly mac: string;
  readonly nodeAddress: string;
}

/** Which kinds of tunnels the kernel can make. */
export interface NodeAbilities {
  readonly hasVxlan: boolean;
  readonly hasIpip: boolean;
}

/** What is there of what a {@link WantedNode} speaks of, and what stands in its way. */
export interface ObservedNode {
  /** By name: all links but those of pods. */
  readonly devices: ReadonlyMap<string, ObservedDevice>;
  /** All but those of link scope, which the kernel gives by itself. */
  readonly addresses: readonly DeviceAddress[];
  /** The node's own routes, and those of others that the scope asks for. */
  readonly routes: readonly SeenRoute[];
  /** Destinations that routes of others send to a router; CIDRs. */
  readonly routed: readonly string[];
  readonly neighbours: readonly PeerNeighbour[];
  readonly forwarding: readonly PeerForwarding[];
  /** By `keyText`: the value, or null when there is no such key. */
  readonly sysctls: ReadonlyMap<string, string | null>;
}

/** Names of the devices that are Podwire's by their name alone. */
export const TUNNEL_DEVICES: readonly string[] = [VXLAN_DEVICE[4], VXLAN_DEVICE[6], IPIP_DEVICE];

/** The kind of device that Podwire makes under one of its names. */
export function kindOfTunnel(name: string): 'vxlan' | 'ipip' {
  return name === IPIP_DEVICE ? 'ipip' : 'vxlan';
}

/** Begins the names that are derived for pods' host interfaces. */
const POD_INTERFACE_PREFIX = 'podw';

/** Begins the alias of every pod's host interface, whatever its name. */
const POD_ALIAS_PREFIX = 'podwire:';

/** Whether a link is a pod's host interface: by its alias, or, while it has none yet, by its name. */
export function isPodInterface(link: { readonly name: string; readonly alias: string | null }): boolean {
  const isAliased = link.alias?.startsWith(POD_ALIAS_PREFIX) ?? false;
  return isAliased || link.name.startsWith(POD_INTERFACE_PREFIX);
}

/** Protocol of the routes that Podwire made; the pods' side has the same. */
export const NODE_ROUTE_PROTOCOL = 87;

/**
 * Whose a route of the main table is, by the route alone: what is known of links may be older than the route. Podwire routes to a
 * pod on the link, by an interface that is no tunnel; a node's routes have a gateway, leave by a tunnel, or lead nowhere.
 */
export function ownerOf(route: Pick<SeenRoute, 'protocol' | 'type' | 'device' | 'gateway'>): RouteOwner {
  if (route.protocol !== NODE_ROUTE_PROTOCOL) return 'foreign';
  const isOnLink = route.type === 'unicast' && route.gateway === undefined && route.device !== undefined;
  return isOnLink && !TUNNEL_DEVICES.includes(route.device) ? 'pod' : 'node';
}

/** Whether a route sends packets to a router that Podwire does not name. */
export function isRouted(route: Pick<SeenRoute, 'protocol' | 'type' | 'device' | 'gateway'>): boolean {
  const hasRouter = route.gateway !== undefined || route.device === undefined;
  return route.type === 'unicast' && hasRouter && ownerOf(route) === 'foreign';
}

/** Metric of routes for which none is given, by family: what Podwire's routes have, and where others collide with them. */
export function isDefaultMetric({ destination, metric }: Pick<SeenRoute, 'destination' | 'metric'>): boolean {
  return metric === (destination.includes(':') ? 1024 : 0);
}

export function equalRoutes(a: ObservedRoute, b: ObservedRoute): boolean {
  return (
    a.type === b.type &&
    a.device === b.device &&
    a.gateway === b.gateway &&
    a.onlink === b.onlink &&
    a.source === b.source &&
    a.destination === b.destination
  );
}

/** A change as the kernel announced it: what is there after it, or, when `deleted`, what is not there any more. */
export type NodeChange =
  | { readonly object: 'route'; readonly deleted: boolean; readonly route: SeenRoute }
  | { readonly object: 'device'; readonly deleted: boolean; readonly device: ObservedDevice }
  | ({ readonly object: 'address'; readonly deleted: boolean } & DeviceAddress)
  | ({ readonly object: 'neighbour'; readonly deleted: boolean } & PeerNeighbour)
  | ({ readonly object: 'forwarding'; readonly deleted: boolean } & PeerForwarding)
  /**
   * Something about a pod's host interface, of this name. Meddled with: it is gone, or another than it was while it was up, which no
   * wiring does to the wire that it makes.
   */
  | { readonly object: 'pod-interface'; readonly name: string; readonly isMeddledWith: boolean }
  /** Changes were lost. */
  | { readonly object: 'overrun' };

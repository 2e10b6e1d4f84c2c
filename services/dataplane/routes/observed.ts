import { IPIP_DEVICE, VXLAN_DEVICE } from './wanted.js';

/** Owner of a route of the main table. */
type RouteOwner =
  /** Podwire's node side: the subject of {@link WantedNode}. */
  | 'node'
  /** Podwire's pod side: a route by a pod's host interface. */
  | 'pod'
  | 'foreign';

/** The compared attributes of a route; every {@link NodeRoute} is one. */
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

/** A route of the main table as the kernel reports it. */
export interface KernelRoute extends ObservedRoute {
  readonly protocol: number;
  /** Metric as the kernel reports it; IPv6 uses 1024 when none was given. */
  readonly metric: number;
}

/** The attributes of a tunnel device that are fixed at creation. */
type ObservedTunnel =
  | {
      readonly kind: 'vxlan';
      readonly vni: number;
      readonly port: number;
      readonly local: string | undefined;
      readonly parent: string | undefined;
      /** The far end of packets to unknown MAC addresses; Podwire's devices have none. */
      readonly remote: string | undefined;
      readonly isLearning: boolean;
      /** The route of each packet determines its tunnel. */
      readonly isExternal: boolean;
    }
  | { readonly kind: 'ipip'; readonly local: string | undefined; readonly remote: string | undefined };

/** A link of the node. */
export interface ObservedDevice {
  readonly name: string;
  /** `vxlan`, `ipip`, `veth`, …; null for the loopback and physical devices. */
  readonly kind: string | null;
  /** Administrative state. */
  readonly up: boolean;
  readonly mac: string | null;
  readonly mtuBytes: number;
  /** Tunnel; undefined for all but VXLAN and IPIP devices. */
  readonly tunnel: ObservedTunnel | undefined;
}

export interface DeviceAddress {
  readonly device: string;
  /** Address with its prefix length. */
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

/** Kinds of tunnels that the kernel supports. */
export interface NodeAbilities {
  readonly hasVxlan: boolean;
  readonly hasIpip: boolean;
}

/** The observed objects of a {@link WantedNode}, and possible conflicts. */
export interface ObservedNode {
  /** All links by name, except links of pods. */
  readonly devices: ReadonlyMap<string, ObservedDevice>;
  /** All addresses except link-scope ones, which the kernel creates. */
  readonly addresses: readonly DeviceAddress[];
  /** Podwire's routes, and the foreign ones within the requested scope. */
  readonly routes: readonly KernelRoute[];
  /** Destinations that foreign routes send to a router; CIDRs. */
  readonly routed: readonly string[];
  readonly neighbours: readonly PeerNeighbour[];
  readonly forwarding: readonly PeerForwarding[];
  /** Values by `keyText`, null when there is no such key. */
  readonly sysctls: ReadonlyMap<string, string | null>;
}

/** Names reserved for Podwire's devices. */
export const TUNNEL_DEVICES: readonly string[] = [VXLAN_DEVICE[4], VXLAN_DEVICE[6], IPIP_DEVICE];

/** The kind of Podwire's device with a given name. */
export function kindOfTunnel(name: string): 'vxlan' | 'ipip' {
  return name === IPIP_DEVICE ? 'ipip' : 'vxlan';
}

/** Prefix of the derived names of pods' host interfaces. */
const POD_INTERFACE_PREFIX = 'podw';

/** Prefix of the alias of every pod's host interface. */
const POD_ALIAS_PREFIX = 'podwire:';

/** Whether a link is a pod's host interface: by its alias, or, before that is set, by its name. */
export function isPodInterface(link: { readonly name: string; readonly alias: string | null }): boolean {
  const isAliased = link.alias?.startsWith(POD_ALIAS_PREFIX) ?? false;
  return isAliased || link.name.startsWith(POD_INTERFACE_PREFIX);
}

/** Protocol of Podwire's routes; the pods' side uses the same. */
export const NODE_ROUTE_PROTOCOL = 87;

/**
 * The owner of a route of the main table, determined from the route alone, as known links may be outdated. Podwire routes to a pod on
 * the link, by an interface that is no tunnel; a node's routes have a gateway, leave by a tunnel, or are blackholes.
 */
export function ownerOf(route: Pick<KernelRoute, 'protocol' | 'type' | 'device' | 'gateway'>): RouteOwner {
  if (route.protocol !== NODE_ROUTE_PROTOCOL) return 'foreign';
  const isOnLink = route.type === 'unicast' && route.gateway === undefined && route.device !== undefined;
  return isOnLink && !TUNNEL_DEVICES.includes(route.device) ? 'pod' : 'node';
}

/** Whether a route sends packets to a router other than Podwire's nodes. */
export function isRouted(route: Pick<KernelRoute, 'protocol' | 'type' | 'device' | 'gateway'>): boolean {
  const hasRouter = route.gateway !== undefined || route.device === undefined;
  return route.type === 'unicast' && hasRouter && ownerOf(route) === 'foreign';
}

/** Default metric by family, of Podwire's routes and of foreign ones that collide with them. */
export function isDefaultMetric({ destination, metric }: Pick<KernelRoute, 'destination' | 'metric'>): boolean {
  return metric === (destination.includes(':') ? 1024 : 0);
}

export function equalRoutes(a: ObservedRoute | undefined, b: ObservedRoute | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return (
    a.type === b.type &&
    a.device === b.device &&
    a.gateway === b.gateway &&
    a.onlink === b.onlink &&
    a.source === b.source &&
    a.destination === b.destination
  );
}

/** A change from a notification of the kernel: the new state, or, when `deleted`, the old one. */
export type NodeChange =
  | { readonly object: 'route'; readonly deleted: boolean; readonly route: KernelRoute }
  | { readonly object: 'device'; readonly deleted: boolean; readonly device: ObservedDevice }
  | ({ readonly object: 'address'; readonly deleted: boolean } & DeviceAddress)
  | ({ readonly object: 'neighbour'; readonly deleted: boolean } & PeerNeighbour)
  | ({ readonly object: 'forwarding'; readonly deleted: boolean } & PeerForwarding)
  /**
   * A change of a pod's host interface with this name. Interference: the interface is gone, or changed while it was up. Wiring
   * does neither.
   */
  | { readonly object: 'pod-interface'; readonly name: string; readonly isInterference: boolean }
  /** Notifications were lost. */
  | { readonly object: 'overrun' };

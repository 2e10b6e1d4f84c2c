import { ROUTE_PROTOCOL, tableOf, type WantedEnd } from './network.js';
import type { RootQdisc } from './token-bucket.js';
import type { Rule, SysctlKey } from './step.js';

/** A link as the kernel reports it. */
export interface ObservedLink {
  readonly name: string;
  readonly index: number;
  /** `veth`, `bridge`, …; null for the loopback and physical devices. */
  readonly kind: string | null;
  /** Null when the device has no six-byte address. */
  readonly mac: string | null;
  readonly mtuBytes: number;
  /** Transmit queue length in packets. */
  readonly txQueueLength: number;
  /** Number of transmit queues. */
  readonly queueCount: number;
  readonly alias: string | null;
  /** Administrative state. */
  readonly up: boolean;
  /** Carrier: it is up, and so is the other end of a veth pair. */
  readonly running: boolean;
  /** Index of a veth end's peer in another namespace. */
  readonly peerIndex: number | undefined;
}

/** A route. */
export interface ObservedRoute {
  readonly destination: string;
  /** Name and alias of its link; null for routes without a link, or with several. */
  readonly device: string | null;
  readonly deviceAlias: string | null;
  readonly gateway: string | undefined;
  readonly onlink?: true;
  readonly metric: number;
  /** Scope as `ip route` names it. */
  readonly scope: string;
  readonly protocol: number;
  readonly unicast: boolean;
  /** Number of its table; undefined: the main one. */
  readonly table?: number;
}

interface ObservedNeighbour {
  readonly address: string;
  readonly mac: string | null;
  readonly permanent: boolean;
}

/** The relevant objects in one of the two namespaces for one attachment. */
export interface ObservedEnd {
  readonly link: ObservedLink | undefined;
  /** Undefined: the kernel's default. */
  readonly qdisc: RootQdisc | undefined;
  /** CIDRs on the link; link-local ones only if wanted, as the kernel creates further ones by itself. */
  readonly addresses: readonly string[];
  /**
   * Routes of the main table: Podwire's by the link, and any to a wanted destination with any metric. On the
   * node, foreign routes may be omitted when none can precede the link's own. In the pod also the link's own table.
   */
  readonly routes: readonly ObservedRoute[];
  /** Podwire's rules in the pod that lead to the link's own table; read only when the link is not the pod's first. */
  readonly rules: readonly Rule[];
  /** Whether Podwire has routes in the pod by an older link than this one, or while this one does not exist. */
  readonly hasEarlierLink: boolean;
  /** Entries on the link: permanent ones, and entries of wanted addresses. */
  readonly neighbours: readonly ObservedNeighbour[];
  /** Values by {@link keyText}, null when there is no such key. A key that was not read is absent. */
  readonly sysctls: ReadonlyMap<string, string | null>;
}

export interface Observed {
  readonly host: ObservedEnd;
  readonly pod: ObservedEnd;
}

/** A sysctl's path as a lookup key. */
export function keyText(key: SysctlKey): string {
  return key.join('/');
}

/** The first 10 bits of IPv6's link-local addresses (RFC 4291, section 2.5.6), as text prefixes. */
const LINK_LOCAL = /^fe[89ab]/;

/** Whether an address on the link belongs to {@link ObservedEnd.addresses}. */
export function isAddressOf({ addresses }: WantedEnd, cidr: string): boolean {
  return !LINK_LOCAL.test(cidr) || addresses.includes(cidr);
}

/** Whether a route of the namespace belongs to {@link ObservedEnd.routes}. */
export function isRouteOf(
  { link, routes }: WantedEnd,
  route: Pick<ObservedRoute, 'destination' | 'device' | 'protocol' | 'table'>,
): boolean {
  if (route.table !== undefined) return route.table === tableOf(link.name);
  const isOwn = route.device === link.name && route.protocol === ROUTE_PROTOCOL;
  return isOwn || routes.some(({ destination }) => destination === route.destination);
}

/** Whether a rule of the namespace belongs to {@link ObservedEnd.rules} of the link that has the table. */
export function isRuleOf(table: number, rule: Pick<Rule, 'table' | 'protocol'>): boolean {
  return rule.table === table && rule.protocol === ROUTE_PROTOCOL;
}

/** Whether an entry on the link belongs to {@link ObservedEnd.neighbours}. */
export function isNeighbourOf({ neighbours }: WantedEnd, { address, permanent }: ObservedNeighbour): boolean {
  return permanent || neighbours.some((neighbour) => neighbour.address === address);
}

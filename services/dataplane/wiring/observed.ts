import { ROUTE_PROTOCOL, tableOf, type WantedEnd } from './network.js';
import type { Rule, SysctlKey } from './step.js';

/** A link as the kernel shows it. */
export interface ObservedLink {
  readonly name: string;
  readonly index: number;
  /** `veth`, `bridge`, …; null for the loopback and physical devices. */
  readonly kind: string | null;
  /** Null where the device has none of six bytes. */
  readonly mac: string | null;
  readonly mtuBytes: number;
  /** Packets that may wait to be sent. */
  readonly txQueueLength: number;
  /** Of transmit queues. */
  readonly queueCount: number;
  readonly alias: string | null;
  /** The administrator's wish. */
  readonly up: boolean;
  /** Whether it can carry packets: it is up, and so is the other end of a veth pair. */
  readonly running: boolean;
  /** For an end of a veth pair whose other end is in another namespace: that end's index there. */
  readonly peerIndex: number | undefined;
}

/** A route. */
export interface ObservedRoute {
  readonly destination: string;
  /** Name of its link, and the link's alias; null for routes without a link, or with several. */
  readonly device: string | null;
  readonly deviceAlias: string | null;
  readonly gateway: string | undefined;
  readonly onlink?: true;
  readonly metric: number;
  /** As `ip route` names scopes. */
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

/** What is in one of the two namespaces, as far as it matters for one attachment. */
export interface ObservedEnd {
  readonly link: ObservedLink | undefined;
  /** CIDRs on the link; of the link-local ones only those that are wanted, as the kernel makes others when it likes. */
  readonly addresses: readonly string[];
  /**
   * Of the main table Podwire's routes by the link, and routes by any link to a wanted destination, whatever their metric; on the
   * node, those of others may be absent where none can go before the link's own. In the pod, all of the table that is the link's own.
   */
  readonly routes: readonly ObservedRoute[];
  /** In the pod: Podwire's that lead to the link's own table; read only where the link is not the pod's first. */
  readonly rules: readonly Rule[];
  /** In the pod: Podwire has routes by a link that was there before this one, or while this one is not there. */
  readonly isLater: boolean;
  /** Entries on the link: permanent ones, and those of wanted addresses. */
  readonly neighbours: readonly ObservedNeighbour[];
  /** By {@link keyText}: the value, or null when there is no such key. A key that was not read is absent. */
  readonly sysctls: ReadonlyMap<string, string | null>;
}

export interface Observed {
  readonly host: ObservedEnd;
  readonly pod: ObservedEnd;
}

/** A sysctl's path as one text, to look it up by. */
export function keyText(key: SysctlKey): string {
  return key.join('/');
}

/** The first 10 bits of IPv6's link-local addresses (RFC 4291, section 2.5.6), as they begin in text. */
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

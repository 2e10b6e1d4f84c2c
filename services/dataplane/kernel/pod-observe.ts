import type { Link, Namespace, Route, SysctlReading } from '@podwire/netlink';

import { isSourceRule, ROUTE_PROTOCOL, tableOf, type WantedEnd } from '../wiring/network.js';
import {
  isAddressOf,
  isNeighbourOf,
  isRouteOf,
  isRuleOf,
  keyText,
  type ObservedEnd,
  type ObservedLink,
  type ObservedRoute,
} from '../wiring/observed.js';
import { QDISC_HANDLE, type RootQdisc } from '../wiring/token-bucket.js';
import { isSecondaryInterface } from '../wiring/source-routing.js';
import type { Rule, SysctlKey } from '../wiring/step.js';
import { failureOfNetlink, hasErrno } from './refusal.js';

/** Routing table `main` (RT_TABLE_MAIN, linux/rtnetlink.h). */
export const MAIN_TABLE = 254;

/** The link has a carrier: for a veth, both ends are up (IFF_LOWER_UP, linux/if.h). */
const IFF_LOWER_UP = 0x10000;

/** A link by name or index, or undefined when there is none. */
export async function getLink(
  namespace: Pick<Namespace, 'sequence'>,
  link: { readonly name: string } | { readonly index: number },
): Promise<Link | undefined> {
  const [outcome] = await namespace.sequence([{ type: 'link.get', link }]);
  if (outcome?.ok) return outcome.link;
  if (outcome === undefined || hasErrno(outcome.error, 'ENODEV')) return undefined;
  throw failureOfNetlink(outcome.error);
}

export function toObservedLink(link: Link): ObservedLink {
  const { name, index, kind, mac, mtuBytes, txQueueLength, up, flags, linkedIndex, linkedNamespaceId } = link;
  return {
    name,
    index,
    kind,
    mac,
    mtuBytes,
    txQueueLength,
    queueCount: link.txQueueCount,
    alias: link.alias,
    up,
    running: up && (flags & IFF_LOWER_UP) !== 0,
    peerIndex: linkedNamespaceId === null ? undefined : (linkedIndex ?? undefined),
  };
}

/** Requests that read a namespace. */
export type Listing = Pick<Namespace, 'addresses' | 'neighbours' | 'routes' | 'readSysctls' | 'sequence'>;

/** Requests that read a pod's namespace. */
export type PodListing = Listing & Pick<Namespace, 'rules'>;

/** Reads the node's end of the wire and its surroundings. */
export async function observeHost(namespace: Listing, wanted: WantedEnd): Promise<ObservedEnd> {
  const link = await getLink(namespace, { name: wanted.link.name });
  const listed = listAround(namespace, wanted, link?.index);
  return { rules: [], hasEarlierLink: false, ...(await observeEnd(namespace, { wanted, link, listed })) };
}

/** Reads the pod's end of the wire and its surroundings. Reads its rules only when the link is not the pod's first. */
export async function observePod(namespace: PodListing, wanted: WantedEnd): Promise<ObservedEnd> {
  const { name } = wanted.link;
  const link = await getLink(namespace, { name });
  // Reads all tables, as there are few routes.
  const listed = namespace.routes();
  const end = await observeEnd(namespace, { wanted, link, listed });
  const around = { hasEarlierLink: (await listed).some((route) => isByEarlierLink(route, link)), ...end };
  return { rules: isSecondaryInterface(wanted, around) ? await listRules(namespace, tableOf(name)) : [], ...around };
}

/** Podwire's rules of one table. */
export async function listRules(namespace: Pick<Namespace, 'rules'>, table: number): Promise<Rule[]> {
  const rules = await namespace.rules();
  return rules
    .filter((rule) => isRuleOf(table, rule))
    .map(({ source, priority, protocol }) => ({ source, table, priority, protocol }));
}

/** Podwire's rules of tables without a route and without a link. Reads links and routes only when there is such a rule. */
export async function listOrphanRules(namespace: Pick<Namespace, 'rules' | 'links' | 'routes'>): Promise<Rule[]> {
  const own = (await namespace.rules()).filter(isSourceRule);
  if (own.length === 0) return [];
  // Links after routes: a link that is created in between may have no routes in the first list.
  const routes = await namespace.routes();
  const links = await namespace.links();
  const used = new Set([...routes.map(({ table }) => table), ...links.map(({ name }) => tableOf(name))]);
  return own
    .filter(({ table }) => !used.has(table))
    .map(({ source, table, priority, protocol }) => ({ source, table, priority, protocol }));
}

function isByEarlierLink({ outputIndex, protocol, table }: Route, own: Link | undefined): boolean {
  const isEarlier = outputIndex !== null && outputIndex < (own?.index ?? Number.POSITIVE_INFINITY);
  return isEarlier && protocol === ROUTE_PROTOCOL && table === MAIN_TABLE;
}

/** Kinds that the kernel gives a veth by itself. */
const DEFAULT_QDISCS: readonly string[] = ['noqueue', 'noop'];

/** The link says which kind of root qdisc it has, so that only a `tbf` takes a request. */
async function readRootQdisc(
  namespace: Pick<Namespace, 'sequence'>,
  { index, rootQdisc: kind }: Pick<Link, 'index' | 'rootQdisc'>,
): Promise<RootQdisc | undefined> {
  if (kind === null || DEFAULT_QDISCS.includes(kind)) return undefined;
  if (kind !== 'tbf') return { kind, bucket: undefined };
  const [outcome] = await namespace.sequence([{ type: 'qdisc.get', link: { index } }]);
  if (outcome?.ok === false && !hasErrno(outcome.error, 'ENODEV')) throw failureOfNetlink(outcome.error);
  const qdisc = outcome?.ok ? outcome.qdisc : undefined;
  return qdisc && { kind: qdisc.kind, bucket: qdisc.handle === QDISC_HANDLE ? (qdisc.tbf ?? undefined) : undefined };
}

interface EndReading {
  readonly wanted: WantedEnd;
  /** The attachment's link; undefined when there is none. */
  readonly link: Link | undefined;
  /** The routes to filter for relevant ones. */
  readonly listed: Promise<readonly Route[]>;
}

async function observeEnd(namespace: Listing, { wanted, link, listed }: EndReading) {
  const onLink = { index: link?.index ?? 0 };
  const [qdisc, addresses, neighbours, routes, sysctls] = await Promise.all([
    link && readRootQdisc(namespace, link),
    link ? namespace.addresses(onLink) : [],
    link ? namespace.neighbours(onLink) : [],
    listed.then((all) => toObservedRoutes(namespace, { wanted, ownIndex: link?.index, listed: all })),
    readSysctls(
      namespace,
      wanted.sysctls.map((sysctl) => sysctl.key),
    ),
  ]);
  return {
    link: link && toObservedLink(link),
    qdisc,
    addresses: addresses.map(({ address }) => address).filter((address) => isAddressOf(wanted, address)),
    routes,
    neighbours: neighbours
      .map(({ address, mac, permanent }) => ({ address, mac, permanent }))
      .filter((neighbour) => isNeighbourOf(wanted, neighbour)),
    sysctls,
  };
}

/** Reads sysctls; null for keys that are not there. */
export async function readSysctls(
  namespace: Pick<Namespace, 'readSysctls'>,
  keys: readonly SysctlKey[],
): Promise<ReadonlyMap<string, string | null>> {
  const readings = await namespace.readSysctls(keys);
  return new Map(
    readings.map((reading, position): [string, string | null] => [keyText(keys[position] ?? []), valueOf(reading)]),
  );
}

function valueOf(reading: SysctlReading): string | null {
  if (reading.ok) return reading.value;
  if (hasErrno(reading.error, 'ENOENT')) return null;
  throw failureOfNetlink(reading.error);
}

interface RoutesReading {
  readonly wanted: WantedEnd;
  /** Index of the attachment's link; undefined when there is none. */
  readonly ownIndex: number | undefined;
  readonly listed: readonly Route[];
}

async function toObservedRoutes(
  namespace: Listing,
  { wanted, ownIndex, listed }: RoutesReading,
): Promise<ObservedRoute[]> {
  const ofLink = ({ outputIndex }: Route) => ownIndex !== undefined && outputIndex === ownIndex;
  const matter = listed.filter((route) => {
    const { destination, protocol } = route;
    const device = ofLink(route) ? wanted.link.name : null;
    return isRouteOf(wanted, { destination, protocol, device, ...tableFor(route) });
  });
  const devices = await linksOf(namespace, matter);
  return matter.map((route) => {
    const device = route.outputIndex === null ? undefined : devices.get(route.outputIndex);
    return {
      destination: route.destination,
      device: device?.name ?? null,
      deviceAlias: device?.alias ?? null,
      gateway: route.gateway ?? undefined,
      ...(route.onlink && { onlink: true }),
      metric: route.metric,
      scope: String(route.scope),
      protocol: route.protocol,
      unicast: route.routeType === 'unicast',
      ...tableFor(route),
    };
  });
}

/** The main table is the default. */
function tableFor({ table }: Route): { readonly table?: number } {
  return table === MAIN_TABLE ? {} : { table };
}

/**
 * A node has a route for each block of the cluster. So it reads only the routes by the link, and foreign ones only when they
 * could matter: when the link's own route is missing, or is not of the best possible metric, so that another could precede it.
 */
async function listAround(namespace: Listing, wanted: WantedEnd, ownIndex: number | undefined): Promise<Route[]> {
  const own = ownIndex === undefined ? [] : await namespace.routes({ table: MAIN_TABLE, index: ownIndex });
  const isSettled = (destination: string) =>
    own.some((route) => route.destination === destination && route.family === 4 && route.metric === 0);
  const doubtful = new Set(wanted.routes.map(({ destination }) => destination).filter((cidr) => !isSettled(cidr)));
  const probed = await Promise.all(
    [...doubtful].map((destination) => namespace.routes({ table: MAIN_TABLE, destination })),
  );
  return [...own, ...probed.flat().filter(({ outputIndex }) => outputIndex === null || outputIndex !== ownIndex)];
}

/** The outgoing links of routes, by index. Vanished ones are absent. */
async function linksOf(namespace: Listing, routes: readonly Route[]): Promise<ReadonlyMap<number, Link>> {
  const indexes = new Set(routes.flatMap(({ outputIndex }) => outputIndex ?? []));
  const links = await Promise.all([...indexes].map((index) => getLink(namespace, { index })));
  return new Map(links.flatMap((link): [number, Link][] => (link ? [[link.index, link]] : [])));
}

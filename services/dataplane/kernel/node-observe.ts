import { NetlinkError, type Family, type FdbEntry, type Namespace, type Neighbour, type Route } from '@podwire/netlink';

import type { NodeScope } from '../routes/kernel.js';
import {
  isPodInterface,
  isRouted,
  ownerOf,
  TUNNEL_DEVICES,
  type ObservedNode,
  type PeerForwarding,
  type PeerNeighbour,
  type SeenRoute,
} from '../routes/observed.js';
import type { NodeLinks } from './netlink/node-links.js';
import { MAIN_TABLE, readSysctls } from './pod-observe.js';

/** Routes that are looked at before others have their turn. */
const PART_COUNT = 1000;

/** What a kernel without IPv6 answers when it is asked for its routes. */
const WITHOUT_FAMILY = ['EOPNOTSUPP', 'EAFNOSUPPORT'];

const FAMILIES: readonly Family[] = [4, 6];

/** Reads everything of a node. The names of links are put in `links`. */
export async function observeNode(namespace: Namespace, links: NodeLinks, scope: NodeScope): Promise<ObservedNode> {
  const all = await namespace.links();
  links.reset(all);
  const tunnels = all.filter(({ name }) => TUNNEL_DEVICES.includes(name));
  const addresses = await namespace.addresses();
  const routes: SeenRoute[] = [];
  const routed: string[] = [];
  for (const family of FAMILIES) {
    await eachPart(await listRoutes(namespace, family), (listed) => {
      const route = toSeenRoute(listed, links);
      if (ownerOf(route) === 'node' || scope.isWanted(route.destination)) routes.push(route);
      if (isRouted(route)) routed.push(route.destination);
    });
  }
  const neighbours = await Promise.all(tunnels.map(({ index }) => namespace.neighbours({ index })));
  const forwarding = await Promise.all(tunnels.map(({ index }) => namespace.fdbEntries({ index })));
  return {
    devices: new Map(all.filter((link) => !isPodInterface(link)).map((link) => [link.name, links.toDevice(link)])),
    addresses: addresses.flatMap(({ linkIndex, address, scope: reach }) => {
      const device = links.nameOf(linkIndex);
      return device === undefined || reach === 'link' ? [] : [{ device, address }];
    }),
    routes,
    routed,
    neighbours: neighbours.flat().flatMap((entry) => toNeighbour(entry, links) ?? []),
    forwarding: forwarding.flat().flatMap((entry) => toForwarding(entry, links) ?? []),
    sysctls: await readSysctls(namespace, scope.sysctls),
  };
}

/** Looks at routes part by part, so that others have their turn in between. */
async function eachPart(routes: readonly Route[], look: (route: Route) => void): Promise<void> {
  for (let start = 0; start < routes.length; start += PART_COUNT) {
    if (start > 0) await new Promise((resolve) => setImmediate(resolve));
    for (const route of routes.slice(start, start + PART_COUNT)) look(route);
  }
}

async function listRoutes(namespace: Namespace, family: Family): Promise<Route[]> {
  try {
    return await namespace.routes({ family, table: MAIN_TABLE });
  } catch (error) {
    if (error instanceof NetlinkError && WITHOUT_FAMILY.includes(error.code)) return [];
    throw error;
  }
}

export function toSeenRoute(route: Route, links: NodeLinks): SeenRoute {
  const { destination, outputIndex, gateway, source, protocol, metric, routeType, onlink } = route;
  const type = routeType === 'unicast' || routeType === 'blackhole' ? routeType : 'other';
  // The kernel has IPv6 blackholes leave by the loopback.
  const index = type === 'blackhole' ? null : outputIndex;
  return {
    destination,
    type,
    device: index === null ? undefined : (links.nameOf(index) ?? `link ${index}`),
    gateway: gateway ?? undefined,
    onlink,
    source: source ?? undefined,
    protocol,
    metric,
  };
}

/** @returns undefined for what the kernel learned by itself */
export function toNeighbour(entry: Neighbour, links: NodeLinks): PeerNeighbour | undefined {
  const device = links.nameOf(entry.linkIndex);
  if (device === undefined || entry.mac === null || !entry.permanent) return undefined;
  return { device, address: entry.address, mac: entry.mac };
}

/** @returns undefined for entries of a bridge, and for those without a far end */
export function toForwarding(entry: FdbEntry, links: NodeLinks): PeerForwarding | undefined {
  const device = links.nameOf(entry.linkIndex);
  if (device === undefined || entry.mac === null || entry.destination === null) return undefined;
  return { device, mac: entry.mac, nodeAddress: entry.destination };
}

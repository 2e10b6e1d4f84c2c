import {
  NetlinkError,
  type Family,
  type FdbEntry,
  type Link,
  type MonitorEvent,
  type Namespace,
  type Neighbour,
  type Route,
} from '@podwire/netlink';
import { FAMILIES } from '@podwire/shared/net/address';

import type { NodeScope } from '../routes/kernel.js';
import {
  isPodInterface,
  isRouted,
  ownerOf,
  TUNNEL_DEVICES,
  type NodeChange,
  type ObservedDevice,
  type ObservedNode,
  type PeerForwarding,
  type PeerNeighbour,
  type KernelRoute,
} from '../routes/observed.js';
import { MAIN_TABLE, readSysctls } from './pod-observe.js';

/** Routes processed before yielding to other work. */
const BATCH_COUNT = 1000;

/** Errors of a kernel without IPv6 when its routes are requested. */
const WITHOUT_FAMILY = ['EOPNOTSUPP', 'EAFNOSUPPORT'];

/** Reads the node's full state. Stores the names of links in `links`. */
export async function observeNode(namespace: Namespace, links: NodeLinks, scope: NodeScope): Promise<ObservedNode> {
  const all = await namespace.links();
  links.reset(all);
  const tunnels = all.filter(({ name }) => TUNNEL_DEVICES.includes(name));
  const addresses = await namespace.addresses();
  const routes: KernelRoute[] = [];
  const routed: string[] = [];
  for (const family of FAMILIES) {
    await forEachInBatches(await listRoutes(namespace, family), (listed) => {
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

/** Processes routes in batches, and yields to other work in between. */
async function forEachInBatches(routes: readonly Route[], process: (route: Route) => void): Promise<void> {
  for (let start = 0; start < routes.length; start += BATCH_COUNT) {
    if (start > 0) await new Promise((resolve) => setImmediate(resolve));
    for (const route of routes.slice(start, start + BATCH_COUNT)) process(route);
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

function toSeenRoute(route: Route, links: NodeLinks): KernelRoute {
  const { destination, outputIndex, gateway, source, protocol, metric, routeType, onlink } = route;
  const type = routeType === 'unicast' || routeType === 'blackhole' ? routeType : 'other';
  // The kernel assigns IPv6 blackholes to the loopback.
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

/** @returns undefined for entries that the kernel learned */
function toNeighbour(entry: Neighbour, links: NodeLinks): PeerNeighbour | undefined {
  const device = links.nameOf(entry.linkIndex);
  if (device === undefined || entry.mac === null || !entry.permanent) return undefined;
  return { device, address: entry.address, mac: entry.mac };
}

/** @returns undefined for entries of a bridge, and for entries without a far end */
function toForwarding(entry: FdbEntry, links: NodeLinks): PeerForwarding | undefined {
  const device = links.nameOf(entry.linkIndex);
  if (device === undefined || entry.mac === null || entry.destination === null) return undefined;
  return { device, mac: entry.mac, nodeAddress: entry.destination };
}

/** Attributes that a wiring gives a pod's interface before it is up. */
type PodLink = Pick<Link, 'name' | 'alias' | 'mac' | 'mtuBytes' | 'up'>;

/** Names for the link indexes in the kernel's messages, as last reported. */
export class NodeLinks {
  readonly #names = new Map<number, string>();
  readonly #indexes = new Map<string, number>();
  /** Pods' interfaces as last announced, or first read. */
  readonly #pods = new Map<number, PodLink>();
  /** Links that Podwire has deleted itself; announcements of them are ignored until the deletion is announced. */
  readonly #beingDeleted = new Set<number>();
  /** Links that Podwire has created and set up, by name, until they are announced as up: first they are announced as down. */
  readonly #beingCreated = new Set<string>();

  /**
   * A reading may be ahead of the announcements: a later announcement about a pod's interface is still reported, under its
   * earlier name.
   */
  reset(links: readonly Link[]): void {
    const announced = new Map(this.#pods);
    this.#names.clear();
    this.#indexes.clear();
    this.#pods.clear();
    for (const link of links) {
      this.put(link);
      const pod = announced.get(link.index);
      if (pod) this.#pods.set(link.index, pod);
    }
  }

  put(link: Pick<Link, 'index'> & PodLink): void {
    const { index, name, alias, mac, mtuBytes, up } = link;
    if (this.#beingDeleted.has(index)) return;
    const earlier = this.#names.get(index);
    if (earlier !== undefined && earlier !== name) this.forget(earlier);
    this.#names.set(index, name);
    this.#indexes.set(name, index);
    if (isPodInterface(link) || this.#pods.has(index)) this.#pods.set(index, { name, alias, mac, mtuBytes, up });
  }

  remove({ index, name }: Pick<Link, 'index' | 'name'>): void {
    this.#names.delete(index);
    this.#pods.delete(index);
    this.#beingDeleted.delete(index);
    if (this.#indexes.get(name) === index) this.#indexes.delete(name);
  }

  /** The next selection is by name. */
  forget(name: string): void {
    this.#indexes.delete(name);
  }

  /**
   * Marks a link that Podwire is deleting. Its late announcements may follow its successor's with the same name, and would be
   * attributed to the successor.
   * @returns reverts the mark, when the kernel refuses the deletion
   */
  markDeleting(name: string): () => void {
    const index = this.#indexes.get(name);
    this.forget(name);
    if (index === undefined) return () => undefined;
    this.#names.delete(index);
    this.#beingDeleted.add(index);
    return () => {
      if (!this.#beingDeleted.delete(index)) return;
      this.#names.set(index, name);
      this.#indexes.set(name, index);
    };
  }

  /**
   * Marks a link that Podwire is creating and setting up. A reading may show it before its first announcement, which would then
   * be taken for a change by another program.
   * @returns reverts the mark, when the kernel refuses that
   */
  markCreating(name: string): () => void {
    this.#beingCreated.add(name);
    return () => void this.#beingCreated.delete(name);
  }

  /** Announcements were lost, perhaps announcements that marked links wait for. */
  forgetCreations(): void {
    this.#beingCreated.clear();
  }

  /** Whether an announcement is from before Podwire set its new link up. */
  isBeingCreated({ name, up }: Pick<Link, 'name' | 'up'>): boolean {
    if (up) this.#beingCreated.delete(name);
    return this.#beingCreated.has(name);
  }

  /** Whether Podwire has deleted the link, and the kernel has not announced it yet. */
  isBeingDeleted(index: number): boolean {
    return this.#beingDeleted.has(index);
  }

  nameOf(index: number | null): string | undefined {
    return index === null ? undefined : this.#names.get(index);
  }

  /** Name of the pod's interface with this index, as last announced; undefined when it is none. */
  podNameOf(index: number): string | undefined {
    return this.#pods.get(index)?.name;
  }

  /** Whether a pod's interface was up, and has changed since. */
  isChangedPod({ index, name, alias, mac, mtuBytes, up }: Pick<Link, 'index'> & PodLink): boolean {
    const known = this.#pods.get(index);
    const isSame =
      known?.name === name &&
      known.alias === alias &&
      known.mac === mac &&
      known.mtuBytes === mtuBytes &&
      known.up === up;
    return known?.up === true && !isSame;
  }

  /** Selection by index, when known: it saves a request to the kernel. */
  select(name: string): { readonly index: number } | { readonly name: string } {
    const index = this.#indexes.get(name);
    return index === undefined ? { name } : { index };
  }

  toDevice({ name, kind, up, mac, mtuBytes, vxlan, ipip }: Link): ObservedDevice {
    return { name, kind, up, mac, mtuBytes, tunnel: this.#toTunnel({ vxlan, ipip }) };
  }

  #toTunnel({ vxlan, ipip }: Pick<Link, 'vxlan' | 'ipip'>): ObservedDevice['tunnel'] {
    if (ipip) return { kind: 'ipip', local: ipip.local ?? undefined, remote: ipip.remote ?? undefined };
    if (!vxlan) return undefined;
    const { vni, port, local, group, parentIndex, learning: isLearning, external: isExternal } = vxlan;
    return {
      kind: 'vxlan',
      vni,
      port,
      local: local ?? undefined,
      // A link missing from the map is not a wanted one.
      parent: parentIndex === null ? undefined : (this.nameOf(parentIndex) ?? `link ${parentIndex}`),
      remote: group ?? undefined,
      isLearning,
      isExternal,
    };
  }
}

/** Translates an announcement for the reconciler. @returns undefined when it is irrelevant to the listener */
export function toChange(event: MonitorEvent, links: NodeLinks): NodeChange | undefined {
  if (event.object === 'overrun') {
    links.forgetCreations();
    return event;
  }
  const { deleted } = event;
  switch (event.object) {
    case 'link': {
      const link = event.value;
      if (links.isBeingDeleted(link.index)) {
        if (deleted) links.remove(link);
        return undefined;
      }
      if (!deleted && links.isBeingCreated(link)) {
        links.put(link);
        return undefined;
      }
      const earlierName = links.podNameOf(link.index);
      const isPod = isPodInterface(link) || earlierName !== undefined;
      const isInterference = deleted || links.isChangedPod(link);
      if (deleted) links.remove(link);
      else links.put(link);
      // An interface that was just renamed is known by its earlier name.
      if (isPod) return { object: 'pod-interface', name: earlierName ?? link.name, isInterference };
      return { object: 'device', deleted, device: links.toDevice(link) };
    }
    case 'address': {
      const { linkIndex, address, scope } = event.value;
      const device = links.nameOf(linkIndex);
      return device === undefined || scope === 'link' ? undefined : { object: 'address', deleted, device, address };
    }
    case 'route': {
      const { table, outputIndex } = event.value;
      if (table !== MAIN_TABLE || (outputIndex !== null && links.isBeingDeleted(outputIndex))) return undefined;
      return { object: 'route', deleted, route: toSeenRoute(event.value, links) };
    }
    case 'neighbour':
      return toNeighbourChange(event, links);
    case 'fdb': {
      const entry = isTunnel(event.value.linkIndex, links) ? toForwarding(event.value, links) : undefined;
      return entry && { object: 'forwarding', deleted, ...entry };
    }
  }
}

function toNeighbourChange(
  { deleted, value }: Extract<MonitorEvent, { object: 'neighbour' }>,
  links: NodeLinks,
): NodeChange | undefined {
  if (value.proxy || !isTunnel(value.linkIndex, links)) return undefined;
  const entry = deleted ? undefined : toNeighbour(value, links);
  if (entry) return { object: 'neighbour', deleted: false, ...entry };
  // An entry that is no longer permanent differs from the applied one.
  const device = links.nameOf(value.linkIndex) ?? '';
  return { object: 'neighbour', deleted: true, device, address: value.address, mac: value.mac ?? '' };
}

function isTunnel(index: number, links: NodeLinks): boolean {
  return TUNNEL_DEVICES.includes(links.nameOf(index) ?? '');
}
